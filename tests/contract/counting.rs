//! Programs of a few allocator calls with every figure worked out by hand.

use crate::support::{Build, Figures, Outcome, Tool, heap_stats, on_both, scene};

on_both! {
    equal_global_peaks_use_the_latest: |tool| each_build(tool, "equal_global_peaks", |outcome| {
        assert_eq!(outcome.fact("stats"), heap_stats([3, 200, 1, 100, 1, 100]));
        let profile = outcome.heap();
        assert_eq!(sum(outcome, "::first"), [100, 2, 0, 0, 0, 0]);
        assert_eq!(profile.at("::second").figures.list(), [100, 1, 100, 1, 100, 1, 0, 0]);
        assert!(profile.field("tg").as_u64() <= profile.field("te").as_u64());
    });
    equal_peaks_of_a_point_use_the_latest: |tool| each_build(tool, "equal_point_peaks", |outcome| {
        assert_eq!(outcome.heap().at("::first").figures.list(), [200, 3, 100, 1, 100, 1, 0, 0]);
    });
    a_realloc_stays_with_the_first_point: |tool| each_build(tool, "realloc_tracked", |outcome| {
        assert_eq!(outcome.fact("grown"), heap_stats([2, 400, 1, 300, 1, 300]));
        assert_eq!(outcome.fact("shrunk"), heap_stats([3, 450, 1, 50, 1, 300]));
        let profile = outcome.heap();
        assert_eq!(profile.points.len(), 1);
        assert_eq!(profile.at("::first").figures.list(), [450, 3, 300, 1, 300, 1, 50, 1]);
    });
    a_realloc_of_an_untracked_block_is_a_new_block: |tool| each_build(tool, "realloc_untracked", |outcome| {
        assert_eq!(outcome.fact("stats"), heap_stats([1, 300, 1, 300, 1, 300]));
        let profile = outcome.heap();
        assert_eq!(profile.points.len(), 1);
        assert_eq!(profile.at("::resized").figures.list(), [300, 1, 300, 1, 300, 1, 300, 1]);
    });
    a_failing_realloc_changes_nothing: |tool| each_build(tool, "realloc_fails", |outcome| {
        assert_eq!(outcome.fact("refused"), "true");
        assert_eq!(outcome.fact("kept"), heap_stats([1, 100, 1, 100, 1, 100]));
        assert_eq!(outcome.fact("freed"), heap_stats([1, 100, 0, 0, 1, 100]));
        assert_eq!(outcome.heap().at("::first").figures.list(), [100, 1, 100, 1, 100, 1, 0, 0]);
    });
    a_failing_alloc_is_no_block: |tool| each_build(tool, "alloc_fails", |outcome| {
        assert_eq!(outcome.fact("refused"), "true");
        assert_eq!(outcome.fact("stats"), heap_stats([0, 0, 0, 0, 0, 0]));
        assert!(outcome.heap().points.is_empty());
    });
    wide_and_empty_layouts_are_blocks: |tool| each_build(tool, "layouts", |outcome| {
        assert_eq!(outcome.fact("aligned"), "true");
        assert_eq!(outcome.fact("live"), heap_stats([4, 5001, 3, 5000, 3, 5000]));
        assert_eq!(outcome.fact("freed"), heap_stats([4, 5001, 0, 0, 3, 5000]));
        assert_eq!(outcome.heap().at("::first").figures.list(), [5001, 2, 5000, 1, 5000, 1, 0, 0]);
        assert_eq!(sum(outcome, "::second"), [0, 2, 0, 2, 0, 0]);
    });
    a_block_freed_by_another_thread_is_freed: |tool| each_build(tool, "other_thread", |outcome| {
        assert_eq!(outcome.fact("freed_blocks"), "4");
        assert_eq!(sum(outcome, "::first"), [100, 10, 100, 10, 70, 7]);
    });
    each_profiler_starts_from_zero: |tool| each_build(tool, "sequential", |outcome| {
        assert_eq!(outcome.fact("of_100"), heap_stats([2, 200, 1, 100, 2, 200]));
        assert_eq!(outcome.fact("of_1000"), heap_stats([2, 2000, 1, 1000, 2, 2000]));
        assert_eq!(outcome.fact("of_10"), heap_stats([2, 20, 1, 10, 2, 20]));
        assert!(outcome.heap().points.is_empty());
    });
    testing_mode_writes_nothing: |tool| each_build(tool, "testing", |outcome| {
        assert_eq!(outcome.fact("memory"), "\"\"");
        assert_eq!((outcome.files(), outcome.stderr.as_str()), (vec![], ""));
    });
}

#[test]
fn no_part_of_a_reallocated_blocks_life_is_lost() {
    each_build(Tool::Ours, "lifetime", |outcome| {
        let point = outcome.heap().at("::first").clone();
        assert!(point.tl >= outcome.number("life_us"), "{} us", point.tl);
    });
}

#[test]
fn zeroed_pages_stay_lazy_and_are_counted() {
    each_build(Tool::Ours, "zeroed", |outcome| {
        let size = outcome.number("size");
        assert_eq!(outcome.fact("sum"), "0");
        assert!(outcome.number("untouched") < size / 8, "{}", outcome.stdout);
        // The measure sees what it is there to see.
        assert!(outcome.number("touched") >= size, "{}", outcome.stdout);
        assert_eq!(
            outcome.heap().at("::zeroed").figures.list(),
            [size, 1, size, 1, size, 1, size, 1]
        );
    });
}

#[test]
fn an_allocator_over_another_forwards_and_counts() {
    for profile in ["dev", "release"] {
        let program =
            crate::support::build(profile, &["--features", "oracle", "--bin", "over"], &[])
                .join("over");
        crate::support::run(std::process::Command::new(program)).succeeded();
    }
}

fn each_build(tool: Tool, program: &str, check: fn(&Outcome)) {
    for build in Build::ALL {
        check(&scene(tool, build, "counting", &[program]));
    }
}

/// Totals, figures at t-gmax and at the end over all program points in a function.
fn sum(outcome: &Outcome, function: &str) -> [u64; 6] {
    let profile = outcome.heap();
    let inside = profile
        .points
        .iter()
        .filter(|point| point.frames.iter().any(|f| f.function.contains(function)));
    let [tb, tbk, _, _, gb, gbk, eb, ebk] = inside
        .fold(Figures::default(), |sum, p| sum + p.figures)
        .list();
    [tb, tbk, gb, gbk, eb, ebk]
}
