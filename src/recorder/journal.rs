//! The journal: what happened, in per-shard buffers sorted by time, until it is merged into the ledger.
//!
//! Locks, in the order in which they may be taken: the ledger, then shards by their index. Appending takes its shard alone;
//! who finds it full gives it back before waiting for the ledger, and looks again once it has it, because somebody else may
//! have made a cut meanwhile. A cut holds all shards while each swaps its two buffers, and the ledger until what they held
//! is merged; the spare buffers belong to the ledger's holder.
//!
//! An event is a word of time and kind, and either one word (a packed block) or three (operation and program point, old
//! size, new size).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::clock::Clock;
use super::ledger::{Ledger, OpenLedger};
use super::live::{pack, unpack};
use super::merge::Runs;
use super::pending::Pending;
use super::words::Slot;
use super::{LiveBlock, Merged, PpId, ShardId};
use crate::sys::lock::Lock;

/// Threads share shards only when more of them than this record at once.
pub(super) const N_SHARDS: usize = 64;
/// Words of a buffer: 64 KiB, of which pages take memory once they are written.
pub(super) const BUFFER_WORDS: usize = 8192;
/// Words of the longest event.
pub(super) const WIDE_WORDS: usize = 4;

/// A shard's events.
pub(super) type Buffer = [AtomicU64; BUFFER_WORDS];

/// Bits of an event's first word below the time.
const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;
/// Kinds: a packed block allocated, a packed block freed, an operation with both sizes in full.
const ALLOC: u64 = 0;
const FREE: u64 = 1;
const WIDE: u64 = 2;

/// Operations of wide events, above the point's 28 bits.
const OP_SHIFT: u32 = 28;
const OP_ALLOC: u64 = 0;
const OP_FREE: u64 = 1;
const OP_REALLOC: u64 = 2;
const OP_AD_HOC: u64 = 3;

/// The journal with the ledger that it is merged into.
pub(super) struct Journal {
    pub(super) clock: Clock,
    shards: [Padded; N_SHARDS],
    /// Threads that use each shard.
    n_users: [AtomicU32; N_SHARDS],
    buffers: Slot<[[Buffer; 2]; N_SHARDS]>,
    pending: Pending,
    ledger: Ledger,
    /// Taken by the ledger's holder only.
    runs: Lock<Runs>,
}

/// A shard alone in its cache lines, prefetched in pairs.
#[repr(align(128))]
struct Padded(Lock<Shard>);

struct Shard {
    active: Option<&'static Buffer>,
    spare: Option<&'static Buffer>,
    /// Words of `active` that hold events.
    len: usize,
    /// Words that may be used: all, or none while the shard is closed.
    limit: usize,
    /// The time of the last event or cut; no later event is earlier.
    last_ticks: u64,
}

/// What a thread that found no room shall do.
enum Room {
    TryAgain,
    Closed,
}

impl Journal {
    /// Makes a closed journal without buffers. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            clock: Clock::new(),
            shards: [const { Padded(Lock::new(Shard::closed())) }; N_SHARDS],
            n_users: [const { AtomicU32::new(0) }; N_SHARDS],
            buffers: Slot::new(),
            pending: Pending::new(),
            ledger: Ledger::new(),
            runs: Lock::new(Runs::new()),
        }
    }

    /// Makes room in the ledger for a point; false without memory. Hook-safe.
    pub(super) fn make_room(&self, pp: PpId) -> bool {
        self.ledger.make_room(pp)
    }

    /// Starts from zero at `start_ticks` with points from `first` on, and opens the shards. False without memory.
    pub(super) fn open(&self, first: PpId, start_ticks: u64) -> bool {
        let has_room = self.pending.restart() && self.ledger.make_room(first);
        let Some(buffers) = self.buffers.fill().filter(|_| has_room) else {
            return false;
        };
        self.ledger.open().restart(first, start_ticks);
        for (padded, [active, spare]) in self.shards.iter().zip(buffers) {
            *padded.0.lock() = Shard {
                active: Some(active),
                spare: Some(spare),
                len: 0,
                limit: BUFFER_WORDS,
                last_ticks: start_ticks,
            };
        }
        true
    }

    /// Closes the shards. What they hold stays for the next [`Journal::drain`]; what comes later is ignored.
    pub(super) fn close(&self) {
        for padded in &self.shards {
            padded.0.lock().limit = 0;
        }
    }

    /// Forgets all and gives the memory back to the system. The journal is closed and drained.
    pub(super) fn clear(&self) {
        self.ledger.open().clear();
        if let Some(buffers) = self.buffers.get() {
            crate::sys::zero_words(buffers.as_flattened().as_flattened());
        }
    }

    /// The least used shard. Hook-safe.
    pub(super) fn join(&self) -> ShardId {
        // Relaxed: the counts are a hint; two threads that join at once may get one shard.
        let counts = self.n_users.iter().enumerate();
        let least = counts.min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        let shard_idx = least.map_or(0, |(shard_idx, _)| shard_idx);
        self.n_users[shard_idx].fetch_add(1, Ordering::Relaxed);
        ShardId(shard_idx as u32)
    }

    /// Ends a thread's use of a shard. Hook-safe.
    pub(super) fn leave(&self, shard: ShardId) {
        self.n_users[shard.0 as usize % N_SHARDS].fetch_sub(1, Ordering::Relaxed);
    }

    /// A block was allocated. Hook-safe.
    #[inline]
    pub(super) fn alloc(&self, shard: ShardId, block: LiveBlock) -> Merged {
        match pack(block) {
            Some(packed) => self.append(shard, ALLOC, [packed]),
            None => self.append(shard, WIDE, wide(OP_ALLOC, block.pp, 0, block.size)),
        }
    }

    /// A block was freed. Hook-safe.
    #[inline]
    pub(super) fn free(&self, shard: ShardId, block: LiveBlock) -> Merged {
        match pack(block) {
            Some(packed) => self.append(shard, FREE, [packed]),
            None => self.append(shard, WIDE, wide(OP_FREE, block.pp, block.size, 0)),
        }
    }

    /// A block changed its size. Hook-safe.
    #[inline]
    pub(super) fn realloc(&self, shard: ShardId, block: LiveBlock, new_size: usize) -> Merged {
        let rest = wide(OP_REALLOC, block.pp, block.size, new_size);
        self.append(shard, WIDE, rest)
    }

    /// An ad hoc event happened. Hook-safe.
    pub(super) fn ad_hoc(&self, shard: ShardId, pp: PpId, weight: usize) -> Merged {
        self.append(shard, WIDE, wide(OP_AD_HOC, pp, 0, weight))
    }

    /// [`Journal::free`] without a lock; false if the event is lost, which is counted. Async-signal-safe.
    pub(super) fn defer_free(&self, block: LiveBlock) -> bool {
        self.defer(wide(OP_FREE, block.pp, block.size, 0))
    }

    /// [`Journal::realloc`] without a lock; false if the event is lost, which is counted. Async-signal-safe.
    pub(super) fn defer_realloc(&self, block: LiveBlock, new_size: usize) -> bool {
        self.defer(wide(OP_REALLOC, block.pp, block.size, new_size))
    }

    fn defer(&self, [point, old, new]: [u64; WIDE_WORDS - 1]) -> bool {
        let first = self.clock.ticks() << KIND_BITS | WIDE;
        self.pending.push([first, point, old, new])
    }

    /// Deferred events that were lost.
    pub(super) fn n_lost(&self) -> u64 {
        self.pending.n_lost()
    }

    #[inline]
    fn append<const N: usize>(&self, shard: ShardId, kind: u64, rest: [u64; N]) -> Merged {
        let shard_idx = shard.0 as usize % N_SHARDS;
        let mut merged = Merged::No;
        while !self.shards[shard_idx]
            .0
            .lock()
            .append(&self.clock, kind, rest)
        {
            merged = Merged::Yes;
            match self.make_room_in(shard_idx) {
                Room::TryAgain => {}
                Room::Closed => break,
            }
        }
        merged
    }

    #[cold]
    #[inline(never)]
    fn make_room_in(&self, shard_idx: usize) -> Room {
        if self.shards[shard_idx].0.lock().limit == 0 {
            return Room::Closed;
        }
        let mut ledger = self.ledger.open();
        let has_room = self.shards[shard_idx].0.lock().len + WIDE_WORDS <= BUFFER_WORDS;
        if !has_room {
            self.cut(&mut ledger);
        }
        Room::TryAgain
    }

    /// Merges everything recorded until now, and returns the ledger. Hook-safe, but nothing may be allocated while the
    /// ledger is open.
    pub(super) fn drain(&self) -> OpenLedger<'_> {
        let mut ledger = self.ledger.open();
        self.cut(&mut ledger);
        ledger
    }

    fn cut(&self, ledger: &mut OpenLedger<'_>) {
        let mut runs = self.runs.lock();
        runs.clear();
        {
            let mut shards: [_; N_SHARDS] =
                std::array::from_fn(|shard_idx| self.shards[shard_idx].0.lock());
            let last = |latest: u64, ticks: u64| latest.max(ticks);
            let of_shards = shards.iter().map(|shard| shard.last_ticks);
            let floor_ticks = ledger.cut_ticks();
            let pending = self.pending.collect(floor_ticks << KIND_BITS | WIDE);
            let cut_ticks = of_shards.fold(floor_ticks.max(self.clock.ticks()), last);
            for shard in &mut shards {
                if let (Some(active), true) = (shard.active, shard.len != 0) {
                    runs.push(active, shard.len);
                }
                shard.swap(cut_ticks);
            }
            if let Some((sorted, n_words)) = pending.filter(|(_, n_words)| *n_words != 0) {
                runs.push(sorted, n_words);
            }
            ledger.set_cut_ticks(cut_ticks);
        }
        runs.merge(ledger);
    }
}

impl Shard {
    const fn closed() -> Self {
        Self {
            active: None,
            spare: None,
            len: 0,
            limit: 0,
            last_ticks: 0,
        }
    }

    /// Appends an event at the present time; false if there is no room.
    #[inline]
    fn append<const N: usize>(&mut self, clock: &Clock, kind: u64, rest: [u64; N]) -> bool {
        let end = self.len + 1 + N;
        if end > self.limit {
            return false;
        }
        let Some(words) = self
            .active
            .and_then(|active| active.get(self.len..)?.get(..1 + N))
        else {
            return false;
        };
        let ticks = clock.ticks().max(self.last_ticks);
        words[0].store(ticks << KIND_BITS | kind, Ordering::Relaxed);
        for (word, value) in words[1..].iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        self.last_ticks = ticks;
        self.len = end;
        true
    }

    /// Makes the empty spare buffer the active one. No event from now on is before `cut_ticks`.
    fn swap(&mut self, cut_ticks: u64) {
        std::mem::swap(&mut self.active, &mut self.spare);
        self.len = 0;
        self.last_ticks = cut_ticks;
    }
}

/// A wide event without its first word.
#[inline]
fn wide(op: u64, pp: PpId, old_size: usize, new_size: usize) -> [u64; WIDE_WORDS - 1] {
    let point = op << OP_SHIFT | u64::from(pp.0);
    [point, old_size as u64, new_size as u64]
}

/// The time of the event that starts with `first`, in ticks.
#[inline]
pub(super) fn ticks_of(first: u64) -> u64 {
    first >> KIND_BITS
}

/// Applies the event at the start of `words` to the ledger and returns its length.
#[inline]
pub(super) fn apply(words: &[AtomicU64], ledger: &mut OpenLedger<'_>) -> usize {
    let word = |word_idx: usize| match words.get(word_idx) {
        Some(word) => word.load(Ordering::Relaxed),
        None => 0,
    };
    let first = word(0);
    let ticks = ticks_of(first);
    match first & KIND_MASK {
        ALLOC => ledger.alloc(ticks, unpack(word(1))),
        FREE => ledger.free(ticks, unpack(word(1))),
        _ => {
            apply_wide(ticks, [word(1), word(2), word(3)], ledger);
            return WIDE_WORDS;
        }
    }
    2
}

fn apply_wide(ticks: u64, [point, old, new]: [u64; WIDE_WORDS - 1], ledger: &mut OpenLedger<'_>) {
    let pp = PpId((point & ((1 << OP_SHIFT) - 1)) as u32);
    let (old_size, new_size) = (old as usize, new as usize);
    match point >> OP_SHIFT {
        OP_ALLOC => ledger.alloc(ticks, LiveBlock { pp, size: new_size }),
        OP_FREE => ledger.free(ticks, LiveBlock { pp, size: old_size }),
        OP_REALLOC => ledger.realloc(ticks, LiveBlock { pp, size: old_size }, new_size),
        _ => ledger.ad_hoc(pp, new_size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PP: PpId = PpId(1);

    fn journal(start_ticks: u64) -> Box<Journal> {
        let journal = Box::new(Journal::new());
        journal.clock.set(start_ticks);
        std::assert!(journal.open(PP, start_ticks));
        journal
    }

    fn block(size: usize) -> LiveBlock {
        LiveBlock { pp: PP, size }
    }

    #[test]
    fn threads_spread_over_shards_and_reuse_those_left() {
        let journal = journal(0);
        let mut joined: Vec<u32> = (0..N_SHARDS).map(|_| journal.join().0).collect();
        joined.sort_unstable();
        std::assert!(joined.into_iter().eq(0..N_SHARDS as u32));
        journal.leave(ShardId(17));
        std::assert_eq!(journal.join(), ShardId(17));
        std::assert_eq!(journal.join(), ShardId(0));
        std::assert_eq!(journal.join(), ShardId(1));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_reorder() {
        let journal = journal(100);
        let shard = ShardId(0);
        journal.clock.set(120);
        journal.alloc(shard, block(10));
        journal.clock.set(110);
        journal.free(shard, block(10));
        journal.alloc(shard, block(4));
        let ledger = journal.drain();
        std::assert_eq!(ledger.totals().max_bytes, 10);
        std::assert_eq!(ledger.elapsed_at_end_and_gmax(), (20, 20));
    }

    #[test]
    fn no_event_is_lost_when_buffers_fill() {
        let journal = journal(0);
        let n_events = 3 * BUFFER_WORDS;
        for _ in 0..n_events {
            journal.alloc(ShardId(3), block(1));
            journal.realloc(ShardId(3), block(1), 2);
        }
        let totals = journal.drain().totals();
        std::assert_eq!(totals.total_blocks, 2 * n_events as u64);
        std::assert_eq!(totals.curr_bytes, 2 * n_events as u64);
    }

    #[test]
    fn a_closed_journal_keeps_what_it_has_and_ignores_the_rest() {
        let journal = journal(0);
        journal.alloc(ShardId(0), block(1));
        journal.close();
        journal.alloc(ShardId(0), block(1));
        std::assert_eq!(journal.drain().totals().total_blocks, 1);
        std::assert_eq!(journal.drain().totals().total_blocks, 1);
    }

    #[test]
    fn a_journal_that_was_never_opened_ignores_everything() {
        let journal = Box::new(Journal::new());
        journal.alloc(ShardId(0), block(1));
        std::assert_eq!(journal.drain().totals().total_blocks, 0);
    }

    #[test]
    fn deferred_events_take_their_place_in_time() {
        let journal = journal(0);
        journal.clock.set(10);
        journal.alloc(ShardId(0), block(10));
        journal.clock.set(20);
        std::assert!(journal.defer_free(block(10)));
        journal.clock.set(30);
        journal.alloc(ShardId(0), block(10));
        let totals = journal.drain().totals();
        std::assert_eq!((totals.max_bytes, totals.max_blocks), (10, 1));
        std::assert_eq!((totals.curr_bytes, totals.curr_blocks), (10, 1));
    }
}
