//! A small life of a heap whose every figure is known by hand.

use std::hint::black_box;
use std::mem::ManuallyDrop;

/// Profiles into memory, writes that to `memory.json`, then runs an ad hoc session.
pub fn run() {
    let freed_within = black_box(vec![1u32; 4]);
    let freed_after = black_box(vec![1u32; 4]);
    let mut grown_within = black_box(Vec::<u8>::with_capacity(24));
    let mut grown_after = black_box(Vec::<u8>::with_capacity(24));

    let mut profiler = ManuallyDrop::new(
        dhat::Profiler::builder()
            .trim_backtraces(Some(usize::MAX))
            .eprint_json()
            .build(),
    );
    let at_start = dhat::HeapStats::get();
    drop(freed_within);
    let grown_line = line!() + 1;
    grown_within.reserve_exact(64);
    let large_line = line!() + 1;
    let large = black_box(Vec::<u8>::with_capacity(3000));
    let moved_line = line!() + 1;
    let mut moved = black_box(Vec::<u8>::with_capacity(500));
    moved.reserve_exact(700); // the peak: 64 + 3000 + 700
    drop(large);
    let loop_line = line!() + 2;
    for small in 0..black_box(8u8) {
        drop(black_box(Box::new(small)));
    }
    let at_end = dhat::HeapStats::get();
    drop(moved);
    let memory = profiler.drop_and_get_memory_output();

    drop(freed_after);
    grown_after.reserve_exact(64);
    black_box(&grown_after);
    black_box(&grown_within);

    std::fs::write("memory.json", memory).expect("the scene's directory is writable");
    println!("at_start={at_start:?}\nat_end={at_end:?}");
    println!("grown={grown_line}\nlarge={large_line}\nmoved={moved_line}\nloop={loop_line}");

    drop(dhat::Profiler::new_ad_hoc());
}
