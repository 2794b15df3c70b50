//! Whole lives of a profiler in debug and release programs: figures, frames, where it is kept, how it ends.

use crate::support::{Build, Outcome, Point, Tool, heap_stats, on_both, program, run, scene};
use std::process::Command;

on_both! {
    a_heap_is_counted_to_the_byte: |tool| Build::ALL.into_iter().for_each(|build| heap_figures(tool, build));
    an_ad_hoc_event_is_counted_where_it_happens: |tool| Build::ALL.into_iter().for_each(|build| ad_hoc_figures(tool, build));
    a_profiler_may_be_kept_anywhere: kept_anywhere;
    a_failed_assertion_saves_the_profile: failed_assertion;
    a_panicking_program_has_its_profile: panicking_program;
    hidden_items_say_what_they_do: |tool| {
        let outcome = scene::<&str>(tool, Build::Debug, "heap", &[]);
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        let saved = lines.iter().position(|line| *line == "dhat: The data has been saved to the memory buffer");
        let saved = saved.expect("the memory buffer is named");
        // Ours may have more to say before the JSON.
        let json = outcome.stderr.split_once("dhat: json = `").expect("eprint_json prints").1;
        let json = json.split_once("\n}`\n").expect("and ends so").0.to_owned() + "\n}";
        assert!(saved < lines.iter().position(|line| line.starts_with("dhat: json = `")).unwrap());
        assert_eq!(json, outcome.text("memory.json"));
        assert!(json.starts_with("{\n  \"dhatFileVersion\": 2,\n  \"mode\": \"rust-heap\""));
    };
}

fn heap_figures(tool: Tool, build: Build) {
    let outcome = scene::<&str>(tool, build, "heap", &[]);
    assert_eq!(outcome.fact("at_start"), heap_stats([0, 0, 0, 0, 0, 0]));
    assert_eq!(
        outcome.fact("at_end"),
        heap_stats([12, 64 + 3000 + 500 + 700 + 8, 2, 764, 3, 3764])
    );
    let profile = outcome.profile("memory.json");
    let path = "src/scenes/heap.rs";
    let figures = |key: &str| profile.at_line(path, outcome.number(key)).figures.list();
    assert_eq!(figures("grown"), [64, 1, 64, 1, 64, 1, 64, 1]);
    assert_eq!(figures("large"), [3000, 1, 3000, 1, 3000, 1, 0, 0]);
    assert_eq!(figures("moved"), [1200, 2, 700, 1, 700, 1, 0, 0]);
    assert_eq!(figures("loop"), [8, 8, 1, 1, 0, 0, 0, 0]);
    assert_eq!(profile.points.len(), 4);
    assert!(profile.at_line(path, outcome.number("grown")).tl > 0);

    // Below the function that built the profiler, nothing is shown on its thread.
    if tool == Tool::Ours || build == Build::Debug {
        for point in &profile.points {
            let outermost = &point.frames.last().expect("a point has frames").function;
            assert!(outermost.ends_with("::heap::run"), "{outermost}");
        }
    }
    // Where the standard library's own frames have no lines, upstream shows its allocator.
    let gone: &[&str] = match tool {
        Tool::Ours => &[
            "backtrace::",
            "<dhat::Alloc",
            "__rg_",
            "__rust_alloc",
            "alloc_impl",
        ],
        Tool::Upstream => &["backtrace::"],
    };
    let below_main = ["lang_start", "call_once", "catch_unwind", "panic"];
    for part in gone {
        assert!(!profile.has_frame(part), "{part} in {:#?}", profile.ftbl);
    }
    if tool == Tool::Ours || build == Build::Debug {
        for part in below_main {
            assert!(!profile.has_frame(part), "{part} in {:#?}", profile.ftbl);
        }
    }
    // The second session, of the other mode, had nothing to count.
    let second = outcome.profile("dhat-ad-hoc.json");
    assert!(second.points.is_empty());
    assert_eq!(second.ftbl, ["[root]"]);
}

fn ad_hoc_figures(tool: Tool, build: Build) {
    let outcome = scene::<&str>(tool, build, "ad_hoc", &[]);
    assert_eq!(
        outcome.fact("at_start"),
        "AdHocStats { total_events: 0, total_units: 0 }"
    );
    assert_eq!(
        outcome.fact("at_end"),
        "AdHocStats { total_events: 4, total_units: 4327 }"
    );
    let profile = outcome.profile("memory.json");
    let path = "src/scenes/ad_hoc.rs";
    let inner = outcome.number("inner");
    for (line, units) in [(inner, 7), (inner + 1, 20), (outcome.number("run"), 4000)] {
        let point = profile.at_line(path, line);
        assert_eq!(point.figures.list(), [units, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(point.frames[0].function, "dhat::ad_hoc_event");
        assert_eq!(point.keys, ["tb", "tbk", "fs"]);
    }
    // `outer` calls `inner`, then has its own event on the next line.
    let outer = outcome.number("outer");
    let units = |line: u64| {
        let start = format!("{path}:{line}:");
        let at_line = |point: &&Point| {
            point
                .frames
                .iter()
                .any(|frame| frame.location.starts_with(&start))
        };
        let mut units: Vec<u64> = profile
            .points
            .iter()
            .filter(at_line)
            .map(|point| point.figures.tb)
            .collect();
        units.sort();
        units
    };
    assert_eq!(units(outer), [7, 20]);
    assert_eq!(units(outer + 1), [300]);
    assert_eq!(profile.points.len(), 4);
    if tool == Tool::Ours || build == Build::Debug {
        for part in [
            "backtrace::",
            "lang_start",
            "call_once",
            "catch_unwind",
            "panic",
        ] {
            assert!(!profile.has_frame(part), "{part} in {:#?}", profile.ftbl);
        }
    }
    // The second session, of the other mode.
    assert_eq!(outcome.heap().sums().tbk, 0);
}

fn kept_anywhere(tool: Tool) {
    for place in ["option", "struct", "mutex", "atexit", "other_thread"] {
        let outcome = scene(tool, Build::Release, "kept", &[place]);
        let profile = outcome.heap();
        let work = profile
            .points
            .iter()
            .filter(|point| point.figures.tb == 1234);
        assert_eq!(work.count(), 1, "{place}: {profile:#?}");
    }
    let outcome = scene(tool, Build::Release, "kept", &["once"]);
    assert_eq!((outcome.files(), outcome.stderr.as_str()), (vec![], ""));
}

fn failed_assertion(tool: Tool) {
    let outcome = scene(tool, Build::Release, "kept", &["assert_fails"]);
    assert_eq!(outcome.fact("saved"), "true");
    // Dropping the profiler writes nothing more.
    assert_eq!(outcome.files(), ["saved.json"]);
    let profile = outcome.profile("saved.json");
    assert_eq!(profile.sums().list()[..2], [1234, 1]);
    assert_eq!(profile.sums().list()[6..], [1234, 1]);
    let summary: Vec<&str> = outcome.stderr.lines().take(4).collect();
    assert_eq!(
        summary,
        [
            "dhat: Total:     1,234 bytes in 1 blocks",
            "dhat: At t-gmax: 1,234 bytes in 1 blocks",
            "dhat: At t-end:  1,234 bytes in 1 blocks",
            "dhat: The data has been saved to dhat-heap.json, and is viewable with dhat/dh_view.html",
        ]
    );
    assert_eq!(n_summaries(&outcome), 1);
}

fn panicking_program(tool: Tool) {
    for build in Build::ALL {
        let mut command = Command::new(program(tool, build));
        command.args(["kept", "panic_unwinds"]);
        let outcome = run(command);
        assert_eq!(outcome.status.code(), Some(101), "{}", outcome.stderr);
        let profile = outcome.heap();
        assert_eq!(
            profile
                .points
                .iter()
                .filter(|point| point.figures.tb == 1234)
                .count(),
            1
        );
        assert_eq!(n_summaries(&outcome), 1);
    }
}

fn n_summaries(outcome: &Outcome) -> usize {
    outcome
        .stderr
        .lines()
        .filter(|line| line.starts_with("dhat: Total:"))
        .count()
}
