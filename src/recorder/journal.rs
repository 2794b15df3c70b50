//! The journal: what happened, in per-shard buffers sorted by time, until it is merged into the ledger.
//!
//! Locks, in the order in which they may be taken: the ledger, then shards. Appending takes at most its shard; who finds it
//! full leaves it before waiting for the ledger, and looks again once it has it, because somebody else may have made a cut
//! meanwhile. A cut stops all shards while each swaps its two buffers, and holds the ledger until what they held is merged;
//! the spare buffers belong to the ledger's holder.
//!
//! An event is a word of time and kind, and either one word (a packed block) or three (operation and program point, old
//! size, new size).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::clock::Clock;
use super::ledger::{Ledger, OpenLedger};
use super::live::{pack, unpack};
use super::merge::Runs;
use super::pending::Pending;
use super::shard::{Buffer, KIND_BITS, Shard, Stopped};
use super::words::Slot;
use super::{LiveBlock, Merged, PpId, ShardId};
use crate::sys;
use crate::sys::lock::Lock;

/// A thread owns its shard unless more of them than this record at once.
pub(super) const N_SHARDS: usize = 64;
/// The last shards, which are never owned but shared by guests.
const N_GUEST_SHARDS: usize = 8;
const OWNABLE: u64 = u64::MAX >> N_GUEST_SHARDS;
/// Words of the longest event.
pub(super) const WIDE_WORDS: usize = 4;

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
    shards: [Shard; N_SHARDS],
    /// A bit for each shard that has an owner.
    owned: AtomicU64,
    /// A bit for each shard that was ever used. Set before a shard's first event, never cleared.
    used: AtomicU64,
    next_guest_shard: AtomicUsize,
    buffers: Slot<[[Buffer; 2]; N_SHARDS]>,
    pending: Pending,
    ledger: Ledger,
    /// Taken by the ledger's holder only.
    runs: Lock<Runs>,
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
            shards: [const { Shard::new() }; N_SHARDS],
            owned: AtomicU64::new(0),
            used: AtomicU64::new(0),
            next_guest_shard: AtomicUsize::new(0),
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
        if !has_room || self.buffers.fill().is_none() {
            return false;
        }
        self.ledger.open().restart(first, start_ticks);
        self.shards.iter().for_each(|shard| shard.open(start_ticks));
        true
    }

    /// Closes the shards. What they hold stays for the next [`Journal::drain`]; what comes later is ignored.
    pub(super) fn close(&self) {
        self.shards.iter().for_each(Shard::close);
    }

    /// Forgets all and gives the memory back to the system. The journal is closed and drained.
    pub(super) fn clear(&self) {
        self.ledger.open().clear();
        if let Some(buffers) = self.buffers.get() {
            sys::zero_words(buffers.as_flattened().as_flattened());
        }
    }

    /// A shard for a new thread: one of its own if there is one and the system has barriers for owners. Hook-safe.
    pub(super) fn join(&self) -> ShardId {
        let free = || OWNABLE & !self.owned.load(Ordering::Relaxed);
        while free() != 0 && sys::has_process_barrier() {
            let shard_idx = free().trailing_zeros();
            if shard_idx >= OWNABLE.count_ones() {
                break;
            }
            // Acquire pairs with the Release in `leave`: the last owner is outside.
            if self.owned.fetch_or(1 << shard_idx, Ordering::Acquire) >> shard_idx & 1 == 0 {
                self.mark_used(shard_idx as usize);
                return ShardId(OWNED | shard_idx);
            }
        }
        self.join_as_guest()
    }

    /// A shard for a thread that may end without telling. Hook-safe.
    pub(super) fn join_as_guest(&self) -> ShardId {
        let nth = self.next_guest_shard.fetch_add(1, Ordering::Relaxed);
        ShardId((N_SHARDS - 1 - nth % N_GUEST_SHARDS) as u32)
    }

    /// Ends a thread's use of a shard. Hook-safe.
    pub(super) fn leave(&self, shard: ShardId) {
        if shard.0 & OWNED != 0 {
            // Release pairs with the Acquire in `join`.
            self.owned.fetch_and(!(1 << shard.idx()), Ordering::Release);
        }
    }

    /// Relaxed is enough for the look: a thread that sees the bit set by itself or by an earlier owner of its shard.
    #[inline]
    fn mark_used(&self, shard_idx: usize) {
        if self.used.load(Ordering::Relaxed) >> shard_idx & 1 == 0 {
            // AcqRel: whoever sees an event of the shard sees the bit, by way of what handed the block over.
            self.used.fetch_or(1 << shard_idx, Ordering::AcqRel);
        }
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
        let shard_idx = shard.idx();
        if let (Some(buffers), true) = (self.buffers.get(), shard.0 & OWNED != 0) {
            let (shard, buffers) = (&self.shards[shard_idx], &buffers[shard_idx]);
            if shard.append_as_owner(buffers, &self.clock, kind, rest) {
                return Merged::No;
            }
        }
        self.append_slow(shard, kind, rest)
    }

    /// Appends where nobody owns the shard, or after making room.
    #[cold]
    #[inline(never)]
    fn append_slow<const N: usize>(&self, shard: ShardId, kind: u64, rest: [u64; N]) -> Merged {
        let shard_idx = shard.idx();
        self.mark_used(shard_idx);
        let Some(buffers) = self.buffers.get() else {
            return Merged::No;
        };
        let mut merged = Merged::No;
        let (at, buffers) = (&self.shards[shard_idx], &buffers[shard_idx]);
        loop {
            let is_appended = match shard.0 & OWNED != 0 {
                true => at.append_as_owner(buffers, &self.clock, kind, rest),
                false => at.append_as_guest(buffers, &self.clock, kind, rest),
            };
            if is_appended {
                return merged;
            }
            match self.make_room_in(shard_idx) {
                Room::TryAgain => merged = Merged::Yes,
                Room::Closed => return merged,
            }
        }
    }

    fn make_room_in(&self, shard_idx: usize) -> Room {
        if self.shards[shard_idx].is_closed() {
            return Room::Closed;
        }
        let mut ledger = self.ledger.open();
        if !self.shards[shard_idx].has_room(WIDE_WORDS) {
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
        let Some(buffers) = self.buffers.get() else {
            return;
        };
        let mut runs = self.runs.lock();
        runs.clear();
        {
            let stopped = self.stop_used();
            let floor_ticks = ledger.cut_ticks();
            let pending = self.pending.collect(floor_ticks << KIND_BITS | WIDE);
            let last_ticks = stopped.iter().flatten().map(Stopped::last_ticks);
            let cut_ticks = last_ticks.fold(floor_ticks.max(self.clock.ticks()), u64::max);
            for (stopped, buffers) in stopped.iter().zip(buffers) {
                if let Some(stopped) = stopped {
                    let (filled, len) = stopped.swap(buffers, cut_ticks);
                    runs.push(filled, len);
                }
            }
            if let Some((sorted, n_words)) = pending {
                runs.push(sorted, n_words);
            }
            ledger.set_cut_ticks(cut_ticks);
        }
        runs.merge(ledger);
    }

    /// Stops every shard that was ever used. The caller holds the ledger.
    fn stop_used(&self) -> [Option<Stopped<'_>>; N_SHARDS] {
        let mut stopped = [const { None }; N_SHARDS];
        let mut stopped_bits = 0;
        // An event of a shard that is used for the first time may have been followed by one in a shard stopped before: look
        // again. Acquire pairs with `mark_used`.
        loop {
            let new_bits = self.used.load(Ordering::Acquire) & !stopped_bits;
            if new_bits == 0 {
                return stopped;
            }
            let is_new = |(shard_idx, _): &(usize, _)| new_bits >> shard_idx & 1 != 0;
            for (shard_idx, place) in stopped.iter_mut().enumerate().filter(is_new) {
                *place = Some(self.shards[shard_idx].stop());
            }
            if new_bits & OWNABLE != 0 {
                sys::process_barrier();
            }
            let is_new = |(shard_idx, _): &(usize, _)| new_bits >> shard_idx & 1 != 0;
            for (_, stopped) in stopped.iter().enumerate().filter(is_new) {
                stopped.iter().for_each(Stopped::wait_until_empty);
            }
            stopped_bits |= new_bits;
        }
    }
}

/// Marks the shard of a thread that owns it.
const OWNED: u32 = 1 << 31;

impl ShardId {
    #[inline]
    fn idx(self) -> usize {
        self.0 as usize % N_SHARDS
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
    fn threads_own_shards_until_there_are_none_and_reuse_those_left() {
        let journal = journal(0);
        let n_owned = match sys::has_process_barrier() {
            true => N_SHARDS - N_GUEST_SHARDS,
            false => 0,
        };
        let owned: Vec<ShardId> = (0..n_owned).map(|_| journal.join()).collect();
        let mut idxs: Vec<usize> = owned.iter().map(|shard| shard.idx()).collect();
        idxs.dedup();
        std::assert!(idxs.into_iter().eq(0..n_owned));
        let guest = journal.join();
        std::assert!(guest.0 & OWNED == 0 && guest.idx() >= N_SHARDS - N_GUEST_SHARDS);
        journal.leave(guest);
        if let Some(&left) = owned.get(17) {
            journal.leave(left);
            std::assert_eq!(journal.join(), left);
            std::assert_eq!(journal.join().0 & OWNED, 0);
        }
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
        let n_events = 3 * super::super::shard::BUFFER_WORDS;
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
