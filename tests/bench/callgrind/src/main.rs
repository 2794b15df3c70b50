//! A fixed program whose instructions are counted under callgrind.
//!
//! Usage: `milliner-instructions MEASURE N on|off`: does MEASURE N times, with a Profiler or without. The cost of one is
//! the difference between the runs with 2N and N, so that what happens once does not count. The same program built without
//! the crate tells what the calls cost by themselves.
//!
//! Valgrind's CPU does not tell of an invariant time-stamp counter, and its processes have no vDSO: the clock is whatever
//! the crate falls back to there, and the kernel's part of it is not counted.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::hint::black_box;

#[cfg(feature = "profiled")]
#[global_allocator]
static ALLOC: milliner::Alloc = milliner::Alloc;

include!(concat!(env!("OUT_DIR"), "/sites.rs"));

const N_FRAMES: u32 = 10;

fn main() {
    let mut args = std::env::args().skip(1);
    let measure = args.next().expect("a measure");
    let n: usize = args
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number of repetitions");
    let is_on = args.next().as_deref() == Some("on");
    #[cfg(not(feature = "profiled"))]
    assert!(!is_on, "there is no Profiler in this build");
    // In testing mode no report is made.
    #[cfg(feature = "profiled")]
    let profiler = is_on.then(|| milliner::Profiler::builder().testing().build());
    match measure.as_str() {
        "pair" => below(N_FRAMES, 0, &|| (0..n).for_each(|_| pair(32))),
        "walk" => (0..n as u64).for_each(|path| below(N_FRAMES + 2, path << 2, &|| pair(32))),
        "realloc" => below(N_FRAMES, 0, &|| resize(n)),
        "sites" => below(N_FRAMES, 0, &|| visit(n)),
        // The same call sites below another caller: new program points of known frames.
        "sites-twice" => {
            below(N_FRAMES, 0, &|| visit(n));
            below(N_FRAMES, 1, &|| visit(n));
        }
        _ => panic!("no measure is called {measure}"),
    }
    #[cfg(feature = "profiled")]
    drop(profiler);
}

/// Calls `work` below `n_frames` frames. Bit i of `path` chooses between two call sites i frames above the innermost; what
/// stands around them keeps the compiler from making one of both.
#[inline(never)]
fn below(n_frames: u32, path: u64, work: &dyn Fn()) {
    if n_frames == 0 {
        work();
    } else if path >> (n_frames - 1) & 1 == 0 {
        black_box(0_u8);
        below(n_frames - 1, path, work);
        black_box(0_u8);
    } else {
        black_box(0_u16);
        below(n_frames - 1, path, work);
        black_box(0_u16);
    }
}

#[inline(never)]
fn visit(n: usize) {
    for site in &SITES[..n] {
        site();
    }
}

/// One block, allocated and freed. Inlined, so that the call site is the caller's.
#[inline(always)]
fn pair(size: usize) {
    let layout = Layout::from_size_align(size, 8).expect("a valid layout");
    // SAFETY: the layout has a size.
    let block = black_box(unsafe { alloc(layout) });
    // SAFETY: the block was just allocated with this layout.
    unsafe { dealloc(block, layout) }
}

/// `n` reallocations of one block, between two sizes that the inner allocator serves with the same memory.
#[inline(never)]
fn resize(n: usize) {
    let layouts = [33, 40].map(|size| Layout::from_size_align(size, 8).expect("a valid layout"));
    // SAFETY: the layout has a size.
    let mut block = unsafe { alloc(layouts[0]) };
    for i in 0..n {
        let new_size = layouts[(i + 1) & 1].size();
        // SAFETY: the block has the layout of turn `i`; the size is not zero.
        block = black_box(unsafe { realloc(block, layouts[i & 1], new_size) });
    }
    // SAFETY: the block has the layout of turn `n`.
    unsafe { dealloc(block, layouts[n & 1]) }
}
