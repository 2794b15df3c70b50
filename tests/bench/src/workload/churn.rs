//! Blocks of 32 to 64 bytes that are freed at once, allocated below stacks that vary.

use crate::Prepared;
use crate::random::Random;
use std::hint::black_box;

/// Pairs for which the stack stays as it is in [`churn`]: a loop that allocates.
const PAIRS_A_DESCENT: usize = 32;
const N_PATHS: usize = 64;

/// Tight loops 10 to 14 frames below here, in which four call sites allocate and free; `n` pairs.
pub fn churn(n: usize) -> Prepared {
    Box::new(move || Box::new(churn_now(n, 1)))
}

/// The same on `n_threads` threads, which share the `n` pairs.
pub fn on_threads(n: usize, n_threads: usize) -> Prepared {
    Box::new(move || {
        std::thread::scope(|scope| {
            for thread_idx in 0..n_threads {
                scope.spawn(move || churn_now(n / n_threads, 1 + thread_idx as u64));
            }
        });
        Box::new(())
    })
}

/// One pair, and then another way down: 1,024 paths that differ only above the two innermost calls; `n` pairs.
pub fn paths(n: usize) -> Prepared {
    Box::new(move || {
        let mut sum = 0_u64;
        for i in 0..n as u64 {
            sum = sum.wrapping_add(left(12, i << 2, 0));
        }
        Box::new(sum)
    })
}

/// One pair, and then another way down, `n_frames` deep; `n` pairs.
pub fn deep(n: usize, n_frames: u32) -> Prepared {
    Box::new(move || {
        let mut sum = 0_u64;
        for i in 0..n as u64 {
            sum = sum.wrapping_add(left(n_frames, (i % 256) << 2, 0));
        }
        Box::new(sum)
    })
}

fn churn_now(n: usize, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let paths: [(u32, u64); N_PATHS] =
        std::array::from_fn(|_| (10 + random.below(5) as u32, random.next()));
    let mut sum = 0_u64;
    for _ in 0..n / PAIRS_A_DESCENT {
        let (n_frames, turns) = paths[random.below(N_PATHS as u64) as usize];
        sum = sum.wrapping_add(left(n_frames, turns, PAIRS_A_DESCENT));
    }
    sum
}

// Two functions with two call sites each, so that a path of n bits is one of 2^n stacks. The lowest bits of `turns` are
// the innermost calls; below 64 frames the bits are used again. The results are used so that no call is a tail call.

#[inline(never)]
fn left(n_frames: u32, turns: u64, n_pairs: usize) -> u64 {
    if n_frames == 0 {
        return innermost(n_pairs);
    }
    if turns.wrapping_shr(n_frames - 1) & 1 == 0 {
        black_box(left(n_frames - 1, turns, n_pairs)).wrapping_add(1)
    } else {
        black_box(right(n_frames - 1, turns, n_pairs)) ^ 3
    }
}

#[inline(never)]
fn right(n_frames: u32, turns: u64, n_pairs: usize) -> u64 {
    if n_frames == 0 {
        return innermost(n_pairs);
    }
    if turns.wrapping_shr(n_frames - 1) & 1 == 0 {
        black_box(left(n_frames - 1, turns, n_pairs)) ^ 5
    } else {
        black_box(right(n_frames - 1, turns, n_pairs)).wrapping_add(7)
    }
}

/// `n_pairs` pairs from four call sites in turn; one pair for 0.
#[inline(never)]
fn innermost(n_pairs: usize) -> u64 {
    if n_pairs == 0 {
        return pair(48);
    }
    let mut sum = 0;
    for i in 0..n_pairs / 4 {
        let size = 32 + (i & 7) * 4;
        sum += pair(size);
        sum += pair(size + 1);
        sum += pair(size + 2);
        sum += pair(size + 3);
    }
    sum
}

/// Inlined, so that every use is a call site of its own.
#[inline(always)]
fn pair(size: usize) -> u64 {
    let mut block = Vec::with_capacity(size);
    block.push(1_u8);
    let block = black_box(block);
    block.len() as u64
}
