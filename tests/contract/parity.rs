//! One deterministic program profiled by both tools: the same figures at the same program points.

use crate::support::{Build, Figures, Frame, Outcome, Point, Profile, Tool, cargo, scene};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[test]
fn a_parser_has_the_same_profile_in_debug() {
    compare(Build::Debug, 10, 60_000);
}

#[test]
fn a_parser_has_the_same_profile_in_debug_with_whole_stacks() {
    compare(Build::Debug, usize::MAX, 15_000);
}

#[test]
fn a_parser_has_the_same_profile_in_release() {
    compare(Build::Release, 10, 200_000);
}

#[test]
fn a_parser_has_the_same_profile_in_release_with_whole_stacks() {
    compare(Build::Release, usize::MAX, 100_000);
}

#[test]
fn a_thread_pool_has_the_same_totals() {
    for build in Build::ALL {
        let [ours, theirs] =
            [Tool::Ours, Tool::Upstream].map(|tool| scene::<&str>(tool, build, "pool", &[]));
        assert_eq!(ours.fact("bytes"), theirs.fact("bytes"));
        let totals = |outcome: &Outcome| {
            let sums = outcome.heap().sums();
            (sums.tb, sums.tbk, sums.eb, sums.ebk)
        };
        assert_eq!(totals(&ours), totals(&theirs));
        assert!(totals(&ours).1 > 10_000);
    }
}

/// The sources that the parser reads: those of the `syn` that parses them.
fn sources() -> PathBuf {
    let mut cargo = cargo("metadata");
    cargo.args(["--format-version", "1", "--features", "oracle"]);
    let output = cargo.output().expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let syn = packages
        .iter()
        .find(|package| package["name"] == "syn")
        .expect("syn is a dependency");
    PathBuf::from(syn["manifest_path"].as_str().expect("a path")).with_file_name("src")
}

fn compare(build: Build, max_frames: usize, source_bytes: usize) {
    let args = [
        sources().into_os_string(),
        max_frames.to_string().into(),
        source_bytes.to_string().into(),
    ];
    let [ours, theirs] =
        [Tool::Ours, Tool::Upstream].map(|tool| scene(tool, build, "parser", &args));
    for fact in ["files", "exprs", "bytes", "stats"] {
        assert_eq!(ours.fact(fact), theirs.fact(fact), "{fact}");
    }
    let (ours, theirs) = (ours.heap(), theirs.heap());
    let ([tb, tbk, _, _, gb, gbk, eb, ebk], sums) = (ours.sums().list(), theirs.sums());
    assert_eq!(
        [tb, tbk, gb, gbk, eb, ebk],
        [sums.tb, sums.tbk, sums.gb, sums.gbk, sums.eb, sums.ebk]
    );
    assert!(
        tbk > 30_000 && eb > 0 && gb > eb,
        "the program does what it is there for"
    );

    let lineless: BTreeSet<&str> = lineless(&theirs).collect();
    let (ours, theirs) = (groups(&ours, &lineless), groups(&theirs, &lineless));
    let same = |(stack, group): &(&Stack, &Group)| {
        theirs.get(*stack).is_some_and(|other| group.agrees(other))
    };
    let n_same: u64 = ours
        .iter()
        .filter(same)
        .map(|(_, group)| group.figures.tbk)
        .sum();
    let different = || {
        ours.iter()
            .filter(|entry| !same(entry))
            .take(5)
            .collect::<Vec<_>>()
    };
    assert!(
        n_same * 100 >= tbk * 99,
        "{n_same} of {tbk} blocks agree; of the rest: {:#?}",
        different()
    );
}

/// Function and location of each frame that is the program's.
type Stack = Vec<(String, String)>;

/// All program points with one stack.
#[derive(Default, Debug)]
struct Group {
    n_points: usize,
    figures: Figures,
}

impl Group {
    /// Whether all figures are equal; a point's own peak is one only where points are not folded.
    fn agrees(&self, other: &Group) -> bool {
        let (mut mine, mut others) = (self.figures, other.figures);
        if self.n_points != other.n_points {
            (mine.mb, mine.mbk, others.mb, others.mbk) = (0, 0, 0, 0);
        }
        mine == others
    }
}

/// Functions with an instruction that the compiler merged from several lines and gave line 0 (DWARF 5 §6.2.2).
///
/// Which they are depends on what was inlined into them, and so on the allocator. Only upstream's are
/// asked for, so that a line that is lost here is a difference.
fn lineless(profile: &Profile) -> impl Iterator<Item = &str> {
    let frames = profile.points.iter().flat_map(|point| &point.frames);
    frames
        .filter(|frame| frame.location.ends_with(":0:0") && frame.location != "???:0:0")
        .map(|frame| frame.function.as_str())
}

fn groups(profile: &Profile, lineless: &BTreeSet<&str>) -> BTreeMap<Stack, Group> {
    let mut groups: BTreeMap<Stack, Group> = BTreeMap::new();
    for point in &profile.points {
        let group = groups.entry(programs_own(point, lineless)).or_default();
        group.n_points += 1;
        group.figures = group.figures + point.figures;
    }
    groups
}

/// Drops the allocator's frames at the top and the runtime's below the function that built the profiler.
fn programs_own(point: &Point, lineless: &BTreeSet<&str>) -> Stack {
    let allocators = [
        "alloc::alloc::",
        "<alloc::alloc::",
        "__rust_",
        "__rustc::",
        "__rg_",
        "__rdl_",
        "<dhat::",
        "dhat::",
    ];
    let is_allocators = |frame: &&Frame| {
        allocators
            .iter()
            .any(|start| frame.function.starts_with(start))
    };
    let mut stack: Stack = point
        .frames
        .iter()
        .skip_while(is_allocators)
        .map(|frame| {
            // The two programs are one source in crates of two names.
            let function = frame
                .function
                .replace("upstream::", "program::")
                .replace("ours::", "program::");
            let location = match lineless.contains(frame.function.as_str()) {
                true => String::new(),
                false => frame.location.clone(),
            };
            (function, location)
        })
        .collect();
    if let Some(builder) = stack
        .iter()
        .rposition(|(function, _)| function.contains("scenes::parser::run"))
    {
        stack.truncate(builder + 1);
    }
    stack
}
