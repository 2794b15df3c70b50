//! Programs, compiled here in many ways, that print return addresses beside the functions and lines they belong to.

use super::*;
use object::{Object, ObjectSection, ObjectSymbol};
use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const RUST_PROGRAM: &str = r#"
extern "C" { static __ehdr_start: u8; }

#[inline(never)]
fn note(expected: &str) {
    let to: usize;
    #[cfg(target_arch = "x86_64")]
    unsafe { std::arch::asm!("mov {}, [rbp + 8]", out(reg) to) };
    #[cfg(target_arch = "aarch64")]
    unsafe { std::arch::asm!("ldr {}, [x29, #8]", out(reg) to) };
    println!("{:#x} {expected}", to - std::ptr::addr_of!(__ehdr_start) as usize);
}

#[inline(always)]
fn inner(middle: u32, outer: u32) {
    let expected = format!("inner:{} middle:{middle} outer:{outer}", line!() + 1);
    note(&expected);
    std::hint::black_box(&expected);
}

#[inline(always)]
fn middle(outer: u32) {
    inner(line!(), outer);
}

#[inline(never)]
fn outer() {
    middle(line!());
    std::hint::black_box(0);
}

mod deep {
    #[inline(never)]
    pub fn generic<T: Default>() {
        let expected = format!("generic:{}", line!() + 1);
        crate::note(&expected);
        std::hint::black_box((&expected, T::default()));
    }
}

fn main() {
    outer();
    deep::generic::<u64>();
}
"#;

const C_PROGRAM: &str = r#"
#include <stdio.h>
extern const char __ehdr_start;
#ifndef BASE
#define BASE &__ehdr_start
#endif
__attribute__((noinline)) static void note(const char *inner, int line, const char *outer, int outer_line) {
    long offset = (char *)__builtin_return_address(0) - (BASE);
    if (outer) printf("%#lx %s:%d %s:%d\n", offset, inner, line, outer, outer_line);
    else printf("%#lx %s:%d\n", offset, inner, line);
}
static volatile int sink;
__attribute__((always_inline)) static inline void inner(int outer_line) { note("inner", __LINE__, "outer", outer_line); sink++; }
__attribute__((noinline)) void outer(void) {
    inner(__LINE__);
    sink++;
}
int main(void) {
    outer();
    note("main", __LINE__, 0, 0);
    return sink - 2;
}
"#;

/// A directory of this test's own that goes away with it.
pub(super) struct Dir(pub(super) PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        static N_DIRS: AtomicU32 = AtomicU32::new(0);
        let n_dirs = N_DIRS.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("names-{}-{n_dirs}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir.canonicalize().unwrap())
    }

    /// Compiles [`RUST_PROGRAM`] with further arguments.
    fn rust(&self, args: &str) -> PathBuf {
        let fixed = "--edition=2021 -C force-frame-pointers=yes -Cdebuginfo=2";
        fs::write(self.0.join("program.rs"), RUST_PROGRAM).unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        self.run(rustc, &format!("{fixed} {args} program.rs"));
        self.0.join("program")
    }

    /// Compiles [`C_PROGRAM`] as C, or as C++ when the compiler is `c++`, with further arguments.
    pub(super) fn c(&self, compiler: &str, args: &str) -> PathBuf {
        let source = if compiler == "c++" {
            "program.cc"
        } else {
            "program.c"
        };
        fs::write(self.0.join(source), C_PROGRAM).unwrap();
        self.run(
            compiler,
            &format!("-O2 -pie -fPIE {args} {source} -o program"),
        );
        self.0.join("program")
    }

    fn run(&self, program: impl AsRef<OsStr>, args: &str) {
        let mut command = Command::new(program);
        let output = command
            .current_dir(&self.0)
            .args(args.split_whitespace())
            .output()
            .unwrap();
        std::assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A return address, its innermost function first, each with its line.
type Noted = (u64, Vec<(String, u32)>);

/// Runs a program and reads what it prints.
fn noted(program: &Path) -> Vec<Noted> {
    let output = Command::new(program).output().unwrap();
    std::assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let noted: Vec<Noted> = text
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let address = words.next().unwrap().trim_start_matches("0x");
            let frames = words.map(|word| {
                let (name, line) = word.split_once(':').unwrap();
                (name.to_owned(), line.parse().unwrap())
            });
            (u64::from_str_radix(address, 16).unwrap(), frames.collect())
        })
        .collect();
    std::assert_eq!(noted.len(), 2);
    noted
}

fn module(path: &Path) -> Module {
    let bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    Module {
        path: path.to_owned(),
        is_executable: false,
        has_file: true,
        build_id: file.build_id().unwrap().map(<[u8]>::to_vec),
        range: 0..usize::MAX,
        bias: 0,
        generations: (0, 0),
    }
}

/// Resolves the noted addresses of a program.
fn resolved(module: &Module, noted: &[Noted], debug_root: &Path) -> Vec<Vec<SourceFrame>> {
    let mut probes: Vec<u64> = noted.iter().map(|(address, _)| address - 1).collect();
    probes.sort_unstable();
    let mut resolver = Resolver::with_debug_root(debug_root.to_owned());
    let names = resolver.resolve(module, &probes);
    noted
        .iter()
        .map(|(address, _)| {
            let idx = probes.binary_search(&(address - 1)).unwrap();
            names.frames.get(idx).cloned().unwrap_or_default()
        })
        .collect()
}

/// The last part of a function's path, without generic arguments and parameters.
fn last_part(name: &str) -> &str {
    let name = name
        .split(['<', '('])
        .next()
        .unwrap()
        .trim_end_matches("::");
    name.rsplit("::").next().unwrap()
}

#[track_caller]
fn assert_all_known(program: &Path, debug_root: &Path) {
    let noted = noted(program);
    let resolved = resolved(&module(program), &noted, debug_root);
    for ((_, expected), frames) in noted.iter().zip(&resolved) {
        let found: Vec<(String, u32)> = frames
            .iter()
            .map(|frame| {
                let name = frame.function.as_deref().unwrap_or("???");
                (last_part(name).to_owned(), frame.line.unwrap_or(0))
            })
            .collect();
        std::assert_eq!(&found, expected, "{frames:?}");
        for frame in frames {
            let file = frame.file.as_deref().unwrap();
            std::assert!(file.is_absolute());
            std::assert_eq!(file.file_stem(), Some(OsStr::new("program")));
        }
    }
}

/// Asserts that only the physical functions are known, and nothing else.
#[track_caller]
fn assert_only_symbols(module: &Module, noted: &[Noted], debug_root: &Path) {
    for ((_, expected), frames) in noted.iter().zip(resolved(module, noted, debug_root)) {
        std::assert_eq!(frames.len(), 1, "{frames:?}");
        let name = frames[0].function.as_deref().unwrap();
        std::assert_eq!(last_part(name), expected.last().unwrap().0);
        std::assert_eq!((&frames[0].file, frames[0].line), (&None, None));
    }
}

#[track_caller]
fn assert_nothing_known(module: &Module, noted: &[Noted]) {
    for frames in resolved(module, noted, Path::new("/nowhere")) {
        std::assert_eq!(frames, []);
    }
}

fn nowhere() -> &'static Path {
    Path::new("/nowhere")
}

#[test]
fn rust_programs_have_every_inlined_level() {
    let combinations = [
        "",
        "-Cdebuginfo=1 -Copt-level=3",
        "-Cdebuginfo=line-tables-only -Copt-level=3",
        "-Copt-level=3 -Csymbol-mangling-version=v0 -Cpanic=abort",
        "-Copt-level=3 -Clto=fat -Csplit-debuginfo=off",
        "-Copt-level=3 -Csplit-debuginfo=packed",
        "-Copt-level=3 -Csplit-debuginfo=unpacked -Ccodegen-units=2",
        "-Copt-level=3 -Clink-arg=-Wl,--compress-debug-sections=zlib",
        "-Copt-level=3 -Clink-arg=-Wl,--build-id=none",
    ];
    for args in combinations {
        let dir = Dir::new();
        println!("{args}");
        assert_all_known(&dir.rust(args), nowhere());
    }
}

#[test]
fn rust_names_have_their_path_and_no_hash() {
    for debuginfo in ["0", "line-tables-only", "1", "2"] {
        for mangling in ["", "-Csymbol-mangling-version=v0"] {
            let dir = Dir::new();
            let args = format!("-Copt-level=3 -Cdebuginfo={debuginfo} {mangling}");
            let program = dir.rust(&args);
            let frames = resolved(&module(&program), &noted(&program), nowhere());
            let physical = frames
                .iter()
                .map(|frames| frames.last()?.function.as_deref());
            let physical: Vec<&str> = physical
                .map(|name| name.unwrap().trim_end_matches("::<u64>"))
                .collect();
            std::assert_eq!(
                physical,
                ["program::outer", "program::deep::generic"],
                "{args}"
            );
        }
    }
}

#[test]
fn c_and_cpp_programs_of_every_dwarf_version_are_known() {
    for compiler in ["cc", "c++"] {
        for args in [
            "-gdwarf-2",
            "-gdwarf-3",
            "-gdwarf-4",
            "-gdwarf-5",
            "-gdwarf-5 -g1",
            "-gdwarf-5 -gz=zlib",
            "-gdwarf-5 -no-pie -fno-pie -DBASE=(char*)0",
            "-gdwarf-4 -gsplit-dwarf",
            "-gdwarf-5 -gsplit-dwarf",
        ] {
            let dir = Dir::new();
            println!("{compiler} {args}");
            assert_all_known(&dir.c(compiler, args), nowhere());
        }
    }
}

#[test]
fn zstd_sections_are_read() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g");
    dir.run("objcopy", "--compress-debug-sections=zstd program");
    let bytes = fs::read(&program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".debug_info").unwrap();
    let format = section.compressed_file_range().unwrap().format;
    std::assert_eq!(format, object::CompressionFormat::Zstandard);
    assert_all_known(&program, nowhere());
}

#[test]
fn split_objects_count_only_when_they_are_the_unit_s() {
    let dir = Dir::new();
    let program = dir.c("cc", "-gdwarf-5 -gsplit-dwarf");
    let noted = noted(&program);
    let objects = || {
        fs::read_dir(&dir.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let object = objects()
        .find(|path| path.extension() == Some(OsStr::new("dwo")))
        .unwrap();
    // Of another compilation: another identity.
    dir.c(
        "cc",
        "-gdwarf-5 -gsplit-dwarf -DOTHER -fno-inline-small-functions",
    );
    let other = dir.0.join("other");
    fs::create_dir(&other).unwrap();
    let other_object = other.join("other.dwo");
    fs::rename(&object, &other_object).unwrap();
    let program = dir.c("cc", "-gdwarf-5 -gsplit-dwarf");
    fs::rename(&other_object, &object).unwrap();
    for frames in resolved(&module(&program), &noted, nowhere()) {
        // The line table is in the program, the functions are not.
        std::assert_eq!(frames.len(), 1);
        std::assert!(frames[0].line.is_some());
    }
}

#[test]
fn stripped_programs_have_symbols_or_nothing() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g");
    let noted = noted(&program);
    dir.run("strip", "--strip-debug program");
    assert_only_symbols(&module(&program), &noted, nowhere());
    dir.run("strip", "program");
    assert_nothing_known(&module(&program), &noted);
}

#[test]
fn debug_file_is_found_by_build_id() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g -Wl,--build-id");
    let id = module(&program).build_id.unwrap();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let debug_dir = dir.0.join("root/.build-id").join(&hex[..2]);
    fs::create_dir_all(&debug_dir).unwrap();
    let debug_file = debug_dir.join(format!("{}.debug", &hex[2..]));
    dir.run(
        "objcopy",
        &format!("--only-keep-debug program {}", debug_file.display()),
    );
    dir.run("strip", "program");
    assert_all_known(&program, &dir.0.join("root"));
    assert_nothing_known(&module(&program), &noted(&program));

    // One of another image that took its place.
    dir.c("c++", "-g -Wl,--build-id");
    dir.run(
        "objcopy",
        &format!("--only-keep-debug program {}", debug_file.display()),
    );
    let program = dir.c("cc", "-g -Wl,--build-id");
    dir.run("strip", "program");
    let names = resolved(&module(&program), &noted(&program), &dir.0.join("root"));
    std::assert!(names.iter().all(Vec::is_empty));
}

#[test]
fn debug_link_counts_only_with_its_checksum() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g -Wl,--build-id=none");
    let noted = noted(&program);
    fs::create_dir(dir.0.join(".debug")).unwrap();
    dir.run("objcopy", "--only-keep-debug program .debug/program.dbg");
    dir.run(
        "objcopy",
        "--strip-debug --add-gnu-debuglink=.debug/program.dbg program",
    );
    assert_all_known(&program, nowhere());

    let link = dir.0.join(".debug/program.dbg");
    let mut bytes = fs::read(&link).unwrap();
    bytes.push(0);
    fs::write(&link, bytes).unwrap();
    assert_only_symbols(&module(&program), &noted, nowhere());
}

#[test]
fn another_image_at_the_path_names_nothing() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g -Wl,--build-id");
    let noted = noted(&program);
    let right = module(&program);
    let mut other = right.clone();
    other.build_id.as_mut().unwrap()[0] ^= 1;
    assert_nothing_known(&other, &noted);
    other.build_id = None;
    assert_nothing_known(&other, &noted);
    std::assert!(
        resolved(&right, &noted, nowhere())
            .iter()
            .all(|frames| !frames.is_empty())
    );
}

#[test]
fn addresses_outside_code_and_symbols_have_no_name() {
    let dir = Dir::new();
    let program = dir.c("cc", "");
    let bytes = fs::read(&program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let outer = file.symbol_by_name("outer").unwrap();
    let (start, size) = (outer.address(), outer.size());
    let data = file.section_by_name(".data").unwrap().address();
    let mut probes = [start, start + size - 1, start + size, data, u64::MAX];
    probes.sort_unstable();
    let names = Resolver::with_debug_root("/nowhere".into()).resolve(&module(&program), &probes);
    let name_at = |probe: u64| {
        let frames = &names.frames[probes.binary_search(&probe).unwrap()];
        Some(frames.first()?.function.as_deref()?.to_owned())
    };
    std::assert_eq!(name_at(start).as_deref(), Some("outer"));
    std::assert_eq!(name_at(start + size - 1).as_deref(), Some("outer"));
    std::assert_ne!(name_at(start + size).as_deref(), Some("outer"));
    std::assert_eq!(name_at(data), None);
    std::assert_eq!(name_at(u64::MAX), None);
}

#[test]
fn own_frames_equal_those_of_the_backtrace_crate() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let exe = std::env::current_exe().unwrap();
    let line = maps
        .lines()
        .find(|line| line.ends_with(exe.to_str().unwrap()))
        .unwrap();
    let bias = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let mut of_exe = module(&exe);
    of_exe.is_executable = true;

    let mut expected: Vec<(u64, Vec<SourceFrame>)> = Vec::new();
    let line = line!() + 1;
    backtrace::trace(|frame| {
        let address = frame.ip() as usize;
        let mut frames = Vec::new();
        backtrace::resolve(frame.ip(), |symbol| {
            frames.push(SourceFrame {
                function: symbol.name().map(|name| format!("{name:#}").into()),
                file: symbol
                    .filename()
                    .map(|file| std::rc::Rc::new(file.to_owned())),
                line: symbol.lineno(),
                column: symbol.colno(),
            });
        });
        if maps_contain(&maps, &exe, address) {
            expected.push(((address - 1 - bias) as u64, frames));
        }
        true
    });
    expected.sort_by_key(|(probe, _)| *probe);
    expected.dedup_by_key(|(probe, _)| *probe);
    let probes: Vec<u64> = expected.iter().map(|(probe, _)| *probe).collect();
    let names = Resolver::new().resolve(&of_exe, &probes);
    std::assert!(names.has_debug_info);
    for ((_, expected), found) in expected.iter().zip(&names.frames) {
        std::assert_eq!(found, expected);
    }
    let own = names.frames.iter().flatten().find(|frame| {
        let name = frame.function.as_deref().unwrap_or_default();
        name.ends_with("own_frames_equal_those_of_the_backtrace_crate")
    });
    std::assert_eq!(own.unwrap().line, Some(line));
    std::assert!(own.unwrap().file.as_ref().unwrap().ends_with(file!()));
}

fn maps_contain(maps: &str, exe: &Path, address: usize) -> bool {
    let lines = maps
        .lines()
        .filter(|line| line.ends_with(exe.to_str().unwrap()));
    lines.map(|line| line.split([' ', '-'])).any(|mut words| {
        let mut bound = || usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        (bound()..bound()).contains(&address)
    })
}
