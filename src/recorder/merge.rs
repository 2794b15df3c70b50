//! Merging the sorted buffers of one cut into one sequence.

use std::sync::atomic::Ordering;

use super::event::ticks_of;
use super::journal::N_SHARDS;
use super::ledger::OpenLedger;
use super::shard::Buffer;

/// One buffer of each shard, and the deferred events.
const N_RUNS: usize = N_SHARDS + 1;
/// The head of a run that has no more events; later than any event's time, which has 62 bits.
const EXHAUSTED: u64 = u64::MAX;

/// The buffers of one cut in the order of their shards.
pub(super) struct Runs {
    n_runs: usize,
    runs: [Run; N_RUNS],
    /// The time of each run's next event, apart from the runs for a fast search.
    heads: [u64; N_RUNS],
}

#[derive(Clone, Copy)]
struct Run {
    buffer: Option<&'static Buffer>,
    /// Where the next event starts.
    next_idx: usize,
    len: usize,
}

impl Runs {
    /// Makes an empty set. All bytes are zero.
    pub(super) const fn new() -> Self {
        let empty = Run {
            buffer: None,
            next_idx: 0,
            len: 0,
        };
        Self {
            n_runs: 0,
            runs: [empty; N_RUNS],
            heads: [0; N_RUNS],
        }
    }

    /// Takes all runs out.
    pub(super) fn clear(&mut self) {
        self.n_runs = 0;
    }

    /// Adds a run of `len` words.
    pub(super) fn push(&mut self, buffer: &'static Buffer, len: usize) {
        if len == 0 {
            return;
        }
        self.runs[self.n_runs] = Run {
            buffer: Some(buffer),
            next_idx: 0,
            len,
        };
        self.heads[self.n_runs] = ticks_of(buffer[0].load(Ordering::Relaxed));
        self.n_runs += 1;
    }

    /// Applies all events in the order of their time, then of their run, then of their place in it.
    pub(super) fn merge(&mut self, ledger: &mut OpenLedger<'_>) {
        while let Some((run_idx, bound_ticks)) = self.earliest() {
            self.heads[run_idx] = self.runs[run_idx].apply_until(bound_ticks, ledger);
        }
    }

    /// The run with the next event, and the time from which on another run comes first.
    fn earliest(&self) -> Option<(usize, u64)> {
        let (mut first, mut first_idx) = (EXHAUSTED, 0);
        let (mut second, mut second_idx) = (EXHAUSTED, 0);
        for (run_idx, &head) in self.heads[..self.n_runs].iter().enumerate() {
            if head < first {
                (second, second_idx) = (first, first_idx);
                (first, first_idx) = (head, run_idx);
            } else if head < second {
                (second, second_idx) = (head, run_idx);
            }
        }
        let wins_ties = first_idx < second_idx;
        let bound_ticks = second.saturating_add(u64::from(wins_ties));
        (first != EXHAUSTED).then_some((first_idx, bound_ticks))
    }
}

impl Run {
    /// Applies events up to the first that is not before `bound_ticks`, whose time it returns.
    fn apply_until(&mut self, bound_ticks: u64, ledger: &mut OpenLedger<'_>) -> u64 {
        let words = self.buffer.and_then(|buffer| buffer.get(..self.len));
        let rest = words.and_then(|words| words.get(self.next_idx..));
        self.next_idx += ledger.apply_until(rest.unwrap_or_default(), bound_ticks);
        let next = words.and_then(|words| words.get(self.next_idx));
        next.map_or(EXHAUSTED, |first| ticks_of(first.load(Ordering::Relaxed)))
    }
}
