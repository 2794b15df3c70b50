//! The return addresses of the stack that a Profiler was built on, readable in the hook.

#![forbid(unsafe_code)]

use crate::sys;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Words of the smallest table; table `k` holds this many times 2^k.
const MIN_WORDS: usize = 512;

/// A list of addresses that is replaced at the start of a session and searched in the hook.
///
/// Only the thread that set it searches it, so that Relaxed accesses are enough. Tables are made at most once a size and
/// stay for the life of the process.
pub(crate) struct BuilderStack {
    tables: [OnceLock<&'static [AtomicU64]>; 24],
    table_idx: AtomicUsize,
    n_frames: AtomicUsize,
}

impl BuilderStack {
    /// Makes an empty list.
    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { OnceLock::new() }; 24],
            table_idx: AtomicUsize::new(0),
            n_frames: AtomicUsize::new(0),
        }
    }

    /// Replaces the list. It is empty afterwards if there is no memory for it. Not hook-safe.
    pub(crate) fn set(&self, frames: &[usize]) {
        self.n_frames.store(0, Ordering::Relaxed);
        let table_idx = frames
            .len()
            .div_ceil(MIN_WORDS)
            .next_power_of_two()
            .trailing_zeros() as usize;
        let Some(slot) = self.tables.get(table_idx) else {
            return;
        };
        if slot.get().is_none() {
            let Some(words) = sys::map_words(MIN_WORDS << table_idx) else {
                return;
            };
            // Sessions start one at a time, so nobody else fills the slot.
            let _ = slot.set(words);
        }
        let Some(words) = slot.get() else { return };
        words
            .iter()
            .zip(frames)
            .for_each(|(word, frame)| word.store(*frame as u64, Ordering::Relaxed));
        self.table_idx.store(table_idx, Ordering::Relaxed);
        self.n_frames.store(frames.len(), Ordering::Relaxed);
    }

    /// Whether `frame` is in the list. Hook-safe.
    pub(crate) fn contains(&self, frame: usize) -> bool {
        let table = self
            .tables
            .get(self.table_idx.load(Ordering::Relaxed))
            .and_then(OnceLock::get);
        let n_frames = self.n_frames.load(Ordering::Relaxed);
        // From the outermost frame, where shared frames are.
        table.is_some_and(|words| {
            words
                .iter()
                .take(n_frames)
                .rev()
                .any(|word| word.load(Ordering::Relaxed) == frame as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_what_was_set_last_and_nothing_else() {
        let stack = BuilderStack::new();
        std::assert!(!stack.contains(0));
        stack.set(&(1..=3000).collect::<Vec<_>>());
        std::assert!(
            stack.contains(1)
                && stack.contains(3000)
                && !stack.contains(3001)
                && !stack.contains(0)
        );
        stack.set(&[7]);
        std::assert!(stack.contains(7) && !stack.contains(1));
    }
}
