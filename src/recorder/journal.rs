//! The journal: what happened, in per-shard buffers sorted by time, until it is merged into the ledger.
//!
//! Locks, in the order in which they may be taken: the ledger, then shards. Appending takes at most its shard; who finds it
//! full leaves it before waiting for the ledger, and looks again once it has it, because somebody else may have made a cut
//! meanwhile. A cut stops all shards while each swaps its two buffers, and holds the ledger until what they held is merged;
//! the spare buffers belong to the ledger's holder.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::clock::Clock;
use super::event::{Kind, WIDE_WORDS, Wide, first_word};
use super::ledger::{Ledger, OpenLedger};
use super::live::pack;
use super::merge::Runs;
use super::pending::Pending;
use super::shard::{Buffer, Shard, Stopped};
use super::words::Slot;
use super::{LiveBlock, Merged, PpId, ShardId};
use crate::sys;
use crate::sys::lock::Lock;

/// A thread owns its shard unless more of them than this record at once.
pub(super) const N_SHARDS: usize = 64;
/// The last shards, which are never owned but shared by guests.
const N_GUEST_SHARDS: usize = 8;
const OWNABLE: u64 = u64::MAX >> N_GUEST_SHARDS;

/// The journal with the ledger that it is merged into.
pub(super) struct Journal {
    /// What events get their times from.
    pub(super) clock: Clock,
    shards: [Shard; N_SHARDS],
    /// A bit for each shard that has an owner.
    owned: AtomicU64,
    /// A bit for each shard that was ever used. Set before a shard's first event, never cleared.
    used: AtomicU64,
    /// Relaxed: any guest shard will do.
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
        // Relaxed: a first look; `fetch_or` decides.
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

    /// A block was allocated that fits one word. Hook-safe.
    #[inline(always)]
    pub(super) fn alloc_packed(&self, shard: ShardId, packed: u64) -> Merged {
        self.append(shard, Kind::Alloc, [packed])
    }

    /// A block was allocated. Hook-safe.
    pub(super) fn alloc(&self, shard: ShardId, block: LiveBlock) -> Merged {
        match pack(block) {
            Some(packed) => self.alloc_packed(shard, packed),
            None => self.append_wide(shard, Wide::Alloc(block)),
        }
    }

    /// A block was freed. Hook-safe.
    #[inline(always)]
    pub(super) fn free(&self, shard: ShardId, block: LiveBlock) -> Merged {
        match pack(block) {
            Some(packed) => self.append(shard, Kind::Free, [packed]),
            None => self.append_wide(shard, Wide::Free(block)),
        }
    }

    /// A block changed its size. Hook-safe.
    #[inline]
    pub(super) fn realloc(&self, shard: ShardId, block: LiveBlock, new_size: usize) -> Merged {
        let resized = LiveBlock {
            size: new_size,
            ..block
        };
        match (pack(block), pack(resized)) {
            (Some(before), Some(after)) => self.append(shard, Kind::Resize, [before, after]),
            _ => self.append_wide(shard, Wide::Realloc { block, new_size }),
        }
    }

    /// An ad hoc event happened. Hook-safe.
    pub(super) fn ad_hoc(&self, shard: ShardId, pp: PpId, weight: usize) -> Merged {
        self.append_wide(shard, Wide::AdHoc { pp, weight })
    }

    /// [`Journal::free`] without a lock; false if the event is lost, which is counted. Async-signal-safe.
    pub(super) fn defer_free(&self, block: LiveBlock) -> bool {
        self.defer(Wide::Free(block))
    }

    /// [`Journal::realloc`] without a lock; false if the event is lost, which is counted. Async-signal-safe.
    pub(super) fn defer_realloc(&self, block: LiveBlock, new_size: usize) -> bool {
        self.defer(Wide::Realloc { block, new_size })
    }

    fn defer(&self, event: Wide) -> bool {
        let [point, old, new] = event.words();
        let first = first_word(Kind::Wide, self.clock.ticks());
        self.pending.push([first, point, old, new])
    }

    /// Deferred events that were lost.
    pub(super) fn n_lost(&self) -> u64 {
        self.pending.n_lost()
    }

    #[inline(never)]
    fn append_wide(&self, shard: ShardId, event: Wide) -> Merged {
        self.append(shard, Kind::Wide, event.words())
    }

    /// Appends an event at the present time.
    #[inline(always)]
    fn append<const N: usize>(&self, shard: ShardId, kind: Kind, rest: [u64; N]) -> Merged {
        if let (Some(buffers), true) = (self.buffers.get(), shard.0 & OWNED != 0) {
            let (shard, buffers) = (&self.shards[shard.idx()], &buffers[shard.idx()]);
            // A time that is read before the event's turn is set forward by the shard.
            let ticks = self.clock.counter_ticks();
            if ticks.is_some_and(|ticks| shard.append_as_owner(buffers, ticks, kind, rest)) {
                return Merged::No;
            }
        }
        self.append_slow(shard, kind, rest)
    }

    /// Appends where nobody owns the shard, where the clock must be asked, or after making room.
    #[cold]
    #[inline(never)]
    fn append_slow<const N: usize>(&self, shard: ShardId, kind: Kind, rest: [u64; N]) -> Merged {
        let shard_idx = shard.idx();
        self.mark_used(shard_idx);
        let Some(buffers) = self.buffers.get() else {
            return Merged::No;
        };
        let mut merged = Merged::No;
        let (place, buffers) = (&self.shards[shard_idx], &buffers[shard_idx]);
        loop {
            let is_appended = match shard.0 & OWNED != 0 {
                true => place.append_as_owner(buffers, self.clock.ticks(), kind, rest),
                false => place.append_as_guest(buffers, &self.clock, kind, rest),
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
            let pending = self.pending.collect(first_word(Kind::Wide, floor_ticks));
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
