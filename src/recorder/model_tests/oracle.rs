//! The oracle: keeps every event of a session and computes every figure anew when asked.

use std::collections::HashMap;

use super::super::journal::N_SHARDS;
use super::super::shard::BUFFER_WORDS;
use super::super::{Anomalies, Mode, ProgramPoint, Snapshot, Totals};

/// A stack as the model identifies it.
pub(super) type Stack = (Vec<usize>, u32);

/// What happened, in terms of the order in which blocks and stacks were first seen.
#[derive(Clone, Copy)]
pub(super) enum What {
    Alloc { block_no: usize, size: usize },
    Free { block_no: usize, size: usize },
    Realloc { old_size: usize, size: usize },
    AdHoc { weight: usize },
}

#[derive(Clone, Copy)]
struct Event {
    /// Time, cut, shard and place: what the ledger's order is made of.
    order: (u64, usize, usize, usize),
    stack_no: usize,
    what: What,
}

/// The shard number that the model gives to deferred events: after all shards.
const DEFERRED: usize = N_SHARDS;

/// Keeps every event of a session and computes every figure anew when asked.
pub(super) struct Model {
    pub(super) mode: Mode,
    start_ticks: u64,
    stacks: Vec<Stack>,
    events: Vec<Event>,
    pub(super) n_blocks: usize,
    pub(super) n_freed_behind: u64,
    /// The shards' buffers as the journal's header describes them.
    shard_words: [usize; N_SHARDS],
    shard_ticks: [u64; N_SHARDS],
    cut_no: usize,
    pub(super) cut_ticks: u64,
    pub(super) n_deferred: usize,
    /// Cuts that a full buffer made.
    pub(super) n_fills: usize,
}

/// One stack's figures while the model replays a session.
#[derive(Clone, Copy, Default)]
struct Tally {
    n_total: u64,
    total_bytes: u64,
    blocks: i128,
    bytes: i128,
    max_bytes: i128,
    max_blocks: i128,
    gmax_bytes: i128,
    gmax_blocks: i128,
    lifetimes: i128,
}

fn clamped(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap()
}

impl Model {
    /// Makes the model of a session without events.
    pub(super) fn new(mode: Mode, start_ticks: u64) -> Self {
        Self {
            mode,
            start_ticks,
            stacks: Vec::new(),
            events: Vec::new(),
            n_blocks: 0,
            n_freed_behind: 0,
            shard_words: [0; N_SHARDS],
            shard_ticks: [start_ticks; N_SHARDS],
            cut_no: 0,
            cut_ticks: start_ticks,
            n_deferred: 0,
            n_fills: 0,
        }
    }

    /// The number of a stack, in the order in which stacks were first seen.
    pub(super) fn stack_no(&mut self, stack: &Stack) -> usize {
        let known = self.stacks.iter().position(|known| known == stack);
        known.unwrap_or_else(|| {
            self.stacks.push(stack.clone());
            self.stacks.len() - 1
        })
    }

    /// An event takes its place in a shard's buffer; a full buffer makes a cut first.
    pub(super) fn place(
        &mut self,
        shard: usize,
        now: u64,
        n_words: usize,
    ) -> (u64, usize, usize, usize) {
        if self.shard_words[shard] + n_words > BUFFER_WORDS {
            self.cut(now);
            self.n_fills += 1;
        }
        self.shard_words[shard] += n_words;
        self.shard_ticks[shard] = self.shard_ticks[shard].max(now);
        let place = self.events.len();
        (self.shard_ticks[shard], self.cut_no, shard, place)
    }

    /// Keeps an event that goes to a shard's buffer.
    pub(super) fn append(
        &mut self,
        shard: usize,
        now: u64,
        n_words: usize,
        stack_no: usize,
        what: What,
    ) {
        let order = self.place(shard, now, n_words);
        self.events.push(Event {
            order,
            stack_no,
            what,
        });
    }

    /// Keeps an event that waits for the next cut outside the shards.
    pub(super) fn defer(&mut self, now: u64, stack_no: usize, what: What) {
        let ticks = now.max(self.cut_ticks);
        self.n_deferred += 1;
        let order = (ticks, self.cut_no, DEFERRED, self.events.len());
        self.events.push(Event {
            order,
            stack_no,
            what,
        });
    }

    /// Makes a cut: buffers are empty afterwards, and no later event is before it.
    pub(super) fn cut(&mut self, now: u64) {
        let latest = self.shard_ticks.iter().copied().max().unwrap();
        self.cut_ticks = self.cut_ticks.max(now).max(latest);
        self.shard_ticks = [self.cut_ticks; N_SHARDS];
        self.shard_words = [0; N_SHARDS];
        self.n_deferred = 0;
        self.cut_no += 1;
    }

    /// Replays the session, copying every stack's values at every new peak.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut sorted = self.events.clone();
        sorted.sort_by_key(|event| (event.order.1, event.order));
        let mut all = Tally::default();
        let mut gmax_ticks = self.start_ticks;
        let mut of_stacks = vec![Tally::default(); self.stacks.len()];
        for event in &sorted {
            let (n_blocks, n_bytes, n_allocated) = match event.what {
                What::Alloc { size, .. } => (1, size as i128, Some(size)),
                What::Free { size, .. } => (-1, -(size as i128), None),
                What::Realloc { old_size, size } => {
                    (0, size as i128 - old_size as i128, Some(size))
                }
                What::AdHoc { weight } => (0, 0, Some(weight)),
            };
            let of_stack = &mut of_stacks[event.stack_no];
            for tally in [&mut all, &mut *of_stack] {
                tally.blocks += n_blocks;
                tally.bytes += n_bytes;
                if let Some(size) = n_allocated {
                    tally.n_total += 1;
                    tally.total_bytes += size as u64;
                }
                let is_heap = self.mode == Mode::Heap;
                if is_heap && n_allocated.is_some() && tally.bytes >= tally.max_bytes {
                    tally.max_bytes = tally.bytes;
                    tally.max_blocks = tally.blocks;
                }
            }
            let is_peak = all.bytes == all.max_bytes && n_allocated.is_some();
            if self.mode == Mode::Heap && is_peak {
                gmax_ticks = event.order.0;
                for tally in &mut of_stacks {
                    tally.gmax_bytes = tally.bytes;
                    tally.gmax_blocks = tally.blocks;
                }
            }
        }
        self.add_lifetimes(&mut of_stacks);
        self.snapshot_of(all, &of_stacks, gmax_ticks)
    }

    /// Adds the life of each block on its own: from its allocation to its free or to the end.
    fn add_lifetimes(&self, of_stacks: &mut [Tally]) {
        let mut born: HashMap<usize, (usize, u64)> = HashMap::new();
        let mut died: HashMap<usize, u64> = HashMap::new();
        for event in &self.events {
            match event.what {
                What::Alloc { block_no, .. } => {
                    born.insert(block_no, (event.stack_no, event.order.0));
                }
                What::Free { block_no, .. } => {
                    died.insert(block_no, event.order.0);
                }
                What::Realloc { .. } | What::AdHoc { .. } => {}
            }
        }
        for (block_no, (stack_no, birth)) in born {
            let death = died.get(&block_no).copied().unwrap_or(self.cut_ticks);
            of_stacks[stack_no].lifetimes += i128::from(death) - i128::from(birth);
        }
    }

    fn snapshot_of(&self, all: Tally, of_stacks: &[Tally], gmax_ticks: u64) -> Snapshot {
        let points = of_stacks.iter().zip(&self.stacks);
        let points = points.filter(|(tally, _)| tally.n_total != 0);
        Snapshot {
            mode: self.mode,
            totals: Totals {
                total_blocks: all.n_total,
                total_bytes: all.total_bytes,
                curr_blocks: clamped(all.blocks),
                curr_bytes: clamped(all.bytes),
                max_blocks: clamped(all.max_blocks),
                max_bytes: clamped(all.max_bytes),
            },
            end_ns: self.cut_ticks - self.start_ticks,
            gmax_ns: gmax_ticks - self.start_ticks,
            points: points
                .map(|(tally, (frames, tag))| ProgramPoint {
                    frames: frames.clone().into(),
                    tag: *tag,
                    total_blocks: tally.n_total,
                    total_bytes: tally.total_bytes,
                    max_bytes: clamped(tally.max_bytes),
                    max_blocks: clamped(tally.max_blocks),
                    at_gmax_bytes: clamped(tally.gmax_bytes),
                    at_gmax_blocks: clamped(tally.gmax_blocks),
                    at_end_bytes: clamped(tally.bytes),
                    at_end_blocks: clamped(tally.blocks),
                    lifetimes_ns: clamped(tally.lifetimes).into(),
                })
                .collect(),
            anomalies: Anomalies {
                n_freed_behind: self.n_freed_behind,
                ..Anomalies::default()
            },
        }
    }
}
