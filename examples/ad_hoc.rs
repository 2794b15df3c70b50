//! Ad hoc profiling: the program reports a cost of its own, here the elements that a badly sorted list makes an insertion
//! sort move, and the profile says which callers pay it.
//!
//! `cargo run --release --example ad_hoc` writes `dhat-ad-hoc.json` to the current directory.

fn main() {
    let _profiler = dhat::Profiler::new_ad_hoc();
    println!("smallest of the readings: {}", smallest(readings()));
    println!("median of the readings: {}", median(readings()));
}

/// 500 numbers in no order, always the same ones.
fn readings() -> Vec<u32> {
    (0..500_u32)
        .map(|n| n.wrapping_mul(2_654_435_761) >> 16)
        .collect()
}

#[inline(never)]
fn smallest(mut values: Vec<u32>) -> u32 {
    values.truncate(50);
    insertion_sort(&mut values);
    values[0]
}

#[inline(never)]
fn median(mut values: Vec<u32>) -> u32 {
    insertion_sort(&mut values);
    values[values.len() / 2]
}

#[inline(never)]
fn insertion_sort(values: &mut [u32]) {
    for end in 1..values.len() {
        let place = values[..end].partition_point(|value| *value <= values[end]);
        values[place..=end].rotate_right(1);
        // One event an insertion; its weight is the number of elements moved.
        dhat::ad_hoc_event(end - place);
    }
}
