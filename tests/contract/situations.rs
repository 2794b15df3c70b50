//! Programs that are hard to walk or to name: how they were built must not cost a frame.

use crate::support::{Frame, Outcome, Point, Profile, build, fresh_dir, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = "programs/src/walk.rs";

#[test]
fn stacks_are_whole_without_optimization() {
    named(&walked(&built("dev", "walker", &[])));
}

#[test]
fn stacks_are_whole_in_a_stock_release_build() {
    named(&walked(&built("release", "walker", &[])));
}

#[test]
fn stacks_are_whole_with_fat_lto() {
    named(&walked(&built("fat", "walker", &[])));
}

#[test]
fn stacks_are_whole_when_panics_abort() {
    named(&walked(&built(
        "release",
        "walker-abort",
        &["-C", "panic=abort"],
    )));
}

#[test]
fn stacks_are_whole_in_a_position_dependent_executable() {
    let program = built(
        "release",
        "walker-static",
        &["-C", "relocation-model=static"],
    );
    let header = std::fs::read(&program).expect("the program is readable");
    // ELF's e_type: ET_EXEC.
    assert_eq!(header[16..18], [2, 0]);
    named(&walked(&program));
}

#[test]
fn an_executable_without_debug_info_has_its_symbols() {
    let outcome = walked(&stripped("--strip-debug"));
    let profile = outcome.heap();
    stacks(&profile);
    let [one, two] = sites(&profile);
    for name in ["two_sites", "back_in_rust", "into_c", "deep"] {
        assert!(profile.has_frame(name), "{name} in {:#?}", profile.ftbl);
    }
    assert!(
        one.iter()
            .chain(&two)
            .all(|frame| !frame.contains("walk.rs"))
    );
}

#[test]
fn a_stripped_executable_has_module_and_offset() {
    let outcome = walked(&stripped("--strip-all"));
    let profile = outcome.heap();
    stacks(&profile);
    let offset = |frame: &String| {
        let (ip, rest) = frame.split_once(": walker-stripped--strip-all+0x")?;
        let offset = u64::from_str_radix(rest.strip_suffix(" (???:0:0)")?, 16).ok()?;
        Some((
            u64::from_str_radix(ip.strip_prefix("0x")?, 16).ok()?,
            offset,
        ))
    };
    let offsets: Vec<(u64, u64)> = profile.ftbl.iter().filter_map(offset).collect();
    assert!(offsets.len() >= 5, "{:#?}", profile.ftbl);
    // One module, one bias, and that a multiple of the page size.
    let bias = offsets[0].0 - offsets[0].1;
    assert!(offsets.iter().all(|(ip, offset)| ip - offset == bias));
    assert_eq!(bias % 4096, 0);
    assert!(
        profile.ftbl.iter().all(|frame| !frame.contains(": ???")),
        "{:#?}",
        profile.ftbl
    );
}

#[test]
fn a_forked_child_neither_hangs_nor_touches_its_parents_profile() {
    let outcome = run(Command::new(built("release", "forks", &[]))).succeeded();
    assert_eq!(outcome.number("fine"), outcome.number("children"));
    let profile = outcome.heap();
    assert_eq!(profile.field("pid").as_u64(), Some(outcome.number("pid")));
    let child_block = outcome.number("child_block");
    let is_childs = |point: &&Point| point.figures.tb % child_block == 0;
    assert_eq!(profile.points.iter().filter(is_childs).count(), 0);
    // Once, by the parent.
    assert_eq!(outcome.stderr.matches("has been saved to").count(), 1);
}

#[test]
fn a_library_in_another_ones_place_has_its_own_names() {
    let program = built("release", "replaced", &[]);
    let first = compiled("first", &["-Dc_outer=first_outer", "-Dc_inner=first_inner"]);
    // As long, so that the second lies exactly where the first did.
    let second = compiled("other", &["-Dc_outer=other_outer", "-Dc_inner=other_inner"]);
    // Fewer and more than fill the recorder's buffers.
    for n_blocks in [1, 3, 9_000] {
        let mut command = Command::new(&program);
        command.arg(n_blocks.to_string());
        command.args([first.as_os_str(), "first_outer".as_ref()]);
        command.args([second.as_os_str(), "other_outer".as_ref()]);
        let outcome = run(command).succeeded();
        assert_eq!(outcome.number("places"), 1, "both at one address");
        let profile = outcome.heap();
        let blocks_through = |function: &str, size: u64| -> u64 {
            let points = profile.points.iter();
            let through = points.filter(|point| {
                point.figures.tb == size * point.figures.tbk
                    && point.frames.iter().any(|frame| frame.function == function)
            });
            through.map(|point| point.figures.tbk).sum()
        };
        let n_in_all = n_blocks * outcome.number("turns");
        for (own, size, foreign) in [("first", 1111, "other"), ("other", 2222, "first")] {
            for level in ["inner", "outer"] {
                assert_eq!(blocks_through(&format!("{own}_{level}"), size), n_in_all);
                assert_eq!(blocks_through(&format!("{foreign}_{level}"), size), 0);
            }
        }
    }
}

/// Two allocations in one function, each the only one at its line; every function of every stack has its name.
fn named(outcome: &Outcome) {
    let profile = outcome.heap();
    stacks(&profile);
    let line = outcome.number("two_sites");
    for (line, size) in [(line, 1111), (line + 1, 2222)] {
        let point = profile.at_line(SOURCE, line);
        assert_eq!(point.figures.list(), [size, 1, size, 1, 0, 0, 0, 0]);
    }
    let expected = [
        "back_in_rust",
        "c_inner",
        "c_outer",
        "into_c",
        "::walk::main",
    ];
    let frames = frames(&profile, 333 * 8);
    let mut rest = frames.iter();
    for function in expected {
        assert!(
            rest.any(|frame| frame.contains(function)),
            "{function} in order in {frames:#?}"
        );
    }
    let n_deep = self::frames(&profile, 4444)
        .iter()
        .filter(|frame| frame.contains("::deep"))
        .count();
    assert_eq!(n_deep, 301);
    same_callers(outcome, "callers_in_c", 333 * 8, "::back_in_rust", 4);
    same_callers(outcome, "callers_in_recursion", 4444, "::deep", 2);
}

/// The callers of a block's allocating function are those that the `backtrace` crate saw from the same function.
fn same_callers(outcome: &Outcome, place: &str, size: u64, function: &str, n_least: usize) {
    let profile = outcome.heap();
    let point = profile.points.iter().find(|point| point.figures.tb == size);
    let frames = &point.expect("the block is there").frames;
    let is_in_function = |frame: &Frame| frame.function.ends_with(function);
    let own = frames
        .iter()
        .find(|frame| is_in_function(frame))
        .expect("its function is there")
        .ip;
    let mut ours: Vec<u64> = frames
        .iter()
        .map(|frame| frame.ip)
        .skip_while(|ip| *ip != own)
        .collect();
    ours.dedup();
    let mut theirs: Vec<u64> = outcome
        .fact(place)
        .split(',')
        .map(|ip| u64::from_str_radix(ip.trim_start_matches("0x"), 16).expect("an address"))
        .collect();
    // Inlined callers repeat an address, and so does a recursion, whose depth is checked apart.
    theirs.dedup();
    // Below the Profiler's own function the profile is trimmed. Above, each called from another place in the function.
    let ours = &ours[1..];
    assert!(ours.len() >= n_least, "{ours:x?}");
    let start = theirs
        .iter()
        .position(|ip| *ip == ours[0])
        .expect("the first caller is in both");
    assert_eq!(theirs[start..][..ours.len()], *ours);
}

/// Every block is there once, and no stack ends short.
fn stacks(profile: &Profile) {
    let [one, two] = sites(profile);
    assert_ne!(one, two);
    // Through C: the callback, two frames of C, the caller; then the function that built the profiler.
    assert!(frames(profile, 333 * 8).len() >= 5);
    assert!(
        frames(profile, 4444).len() >= 302,
        "{:#?}",
        frames(profile, 4444).len()
    );
}

fn sites(profile: &Profile) -> [Vec<String>; 2] {
    [frames(profile, 1111), frames(profile, 2222)]
}

/// The frames of the one program point that allocated so many bytes.
fn frames(profile: &Profile, size: u64) -> Vec<String> {
    let mut found = profile
        .points
        .iter()
        .filter(|point| point.figures.tb == size);
    let point = found
        .next()
        .unwrap_or_else(|| panic!("no block of {size} bytes"));
    assert!(found.next().is_none(), "two points of {size} bytes");
    assert_eq!(point.figures.tbk, 1);
    let text = |frame: &crate::support::Frame| {
        format!("{:#x}: {} ({})", frame.ip, frame.function, frame.location)
    };
    point.frames.iter().map(text).collect()
}

fn walked(program: &Path) -> Outcome {
    let mut command = Command::new(program);
    command.arg(library());
    run(command).succeeded()
}

fn built(profile: &str, bin: &str, rustc_args: &[&str]) -> PathBuf {
    build(profile, &["--bin", bin], rustc_args).join(bin)
}

/// The stock release program after `strip` with a flag.
fn stripped(flag: &str) -> PathBuf {
    let program = built("release", "walker", &[]);
    let target = fresh_dir().join(format!("walker-stripped{flag}"));
    let status = Command::new("strip")
        .arg(flag)
        .arg("-o")
        .arg(&target)
        .arg(program)
        .status();
    assert!(status.expect("binutils has strip").success());
    target
}

/// C code without frame pointers.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compiled("callback", &[]))
}

fn compiled(name: &str, gcc_args: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c/callback.c");
    let library = fresh_dir().join(format!("lib{name}.so"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .args(gcc_args);
    assert!(gcc.status().expect("gcc starts").success());
    library
}
