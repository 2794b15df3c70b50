//! Ad hoc events at program points whose lines the scene prints.

use std::hint::black_box;
use std::mem::ManuallyDrop;

const INNER_LINE: u32 = line!() + 4;

#[inline(never)]
fn inner() {
    dhat::ad_hoc_event(7);
    dhat::ad_hoc_event(20);
    black_box(());
}

const OUTER_LINE: u32 = line!() + 4;

#[inline(never)]
fn outer() {
    inner();
    dhat::ad_hoc_event(300);
    black_box(());
}

/// Profiles into memory, writes that to `memory.json`, then runs a heap session.
pub fn run() {
    dhat::ad_hoc_event(5);
    let mut profiler = ManuallyDrop::new(
        dhat::Profiler::builder()
            .ad_hoc()
            .trim_backtraces(Some(usize::MAX))
            .build(),
    );
    let at_start = dhat::AdHocStats::get();
    let run_line = line!() + 1;
    dhat::ad_hoc_event(4000);
    outer();
    drop(black_box(Vec::<u8>::with_capacity(100)));
    let at_end = dhat::AdHocStats::get();
    let memory = profiler.drop_and_get_memory_output();
    dhat::ad_hoc_event(6);

    std::fs::write("memory.json", memory).expect("the scene's directory is writable");
    println!("at_start={at_start:?}\nat_end={at_end:?}");
    println!("inner={INNER_LINE}\nouter={OUTER_LINE}\nrun={run_line}");

    drop(dhat::Profiler::new_heap());
}
