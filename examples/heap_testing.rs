//! Heap testing: assertions about what a piece of code allocates. In a real project each such test is an integration test
//! of its own, since there is one allocator and one Profiler a process.
//!
//! `cargo run --release --example heap_testing` prints what held.

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

fn main() {
    let _profiler = dhat::Profiler::builder().testing().build();

    // Joining allocates once, exactly as much as it needs.
    let before = dhat::HeapStats::get();
    let joined = ["a", "heap", "test"].join(" ");
    let after = dhat::HeapStats::get();
    dhat::assert_eq!(after.total_blocks - before.total_blocks, 1);
    dhat::assert_eq!(after.total_bytes - before.total_bytes, joined.len() as u64);

    // Growing one element at a time reallocates a few times only, and never holds more than twice what is used.
    let before = dhat::HeapStats::get();
    let mut numbers = Vec::new();
    (0..1000_u32).for_each(|number| numbers.push(number));
    let after = dhat::HeapStats::get();
    dhat::assert!(
        after.total_blocks - before.total_blocks < 12,
        "{} blocks",
        after.total_blocks - before.total_blocks
    );
    dhat::assert!(after.curr_bytes - before.curr_bytes <= 2 * size_of_val(numbers.as_slice()));

    // Nothing is left behind.
    drop((joined, numbers));
    dhat::assert_eq!(dhat::HeapStats::get().curr_blocks, 0);
    println!("Every heap assertion held.");
}
