//! What is live, what was allocated, what peaked, per program point and in all. Takes frames as plain addresses.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod clock;
mod event;
mod journal;
mod ledger;
mod live;
mod merge;
mod pending;
mod shard;
mod snapshot;
mod stacks;
#[allow(unsafe_code)]
mod words;

#[cfg(test)]
mod model_tests;

use std::sync::atomic::{AtomicU64, Ordering};

use clock::{Moment, Scale};
use journal::Journal;
use live::{LiveMap, pack};
use stacks::Stacks;

use crate::sys::lock::Lock;

pub(crate) use snapshot::{Anomalies, ProgramPoint, Snapshot, Totals};

/// The number of a program point: an interned stack. Never 0; below 2^28; never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PpId(u32);

impl PpId {
    /// How many low bits of a word hold a number.
    const BITS: u32 = 28;
    /// Those bits.
    const MASK: u64 = (1 << Self::BITS) - 1;

    /// The number as the unwinder's memo keeps it. Hook-safe.
    pub(crate) fn to_raw(self) -> u32 {
        self.0
    }

    /// The program point that [`PpId::to_raw`] gave `raw` for; the caller got it there. Hook-safe.
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// What a session records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Heap blocks.
    Heap,
    /// Weighted events that the program reports itself.
    AdHoc,
}

/// A live block as the live map holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveBlock {
    /// The point that allocated it first.
    pub(crate) pp: PpId,
    /// In bytes, as the program asked for.
    pub(crate) size: usize,
}

/// The journal shard that a thread appends to: its own, or one that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId(u32);

/// Whether recording an event found a full buffer, so that the journal was merged into the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merged {
    /// There was room.
    No,
    /// There was none; the events of all shards are in the ledger now.
    Yes,
}

/// The tables of one recorder; the process has one in a static, tests make their own.
///
/// All bytes of a new one are zero, so that a static takes no room in the executable.
pub(crate) struct Recorder {
    stacks: Stacks,
    live: LiveMap,
    journal: Journal,
    session: Lock<Session>,
    /// Relaxed, as the next one: a counter on its own.
    n_freed_behind: AtomicU64,
    n_untracked: AtomicU64,
}

/// What a session is started with.
#[derive(Clone, Copy)]
struct Session {
    mode: Mode,
    start: Moment,
}

impl Recorder {
    /// Makes an idle recorder without tables. Const, so that it can be a static.
    pub(crate) const fn new() -> Self {
        Self {
            stacks: Stacks::new(),
            live: LiveMap::new(),
            journal: Journal::new(),
            session: Lock::new(Session {
                mode: Mode::Heap,
                start: Moment { ticks: 0, ns: 0 },
            }),
            n_freed_behind: AtomicU64::new(0),
            n_untracked: AtomicU64::new(0),
        }
    }

    /// Starts a session: makes or empties the tables and opens the shards. Counters start from zero. False when there is no
    /// memory for the tables; then nothing may be recorded. Not hook-safe.
    pub(crate) fn start(&self, mode: Mode) -> bool {
        self.journal.clock.choose();
        self.n_freed_behind.store(0, Ordering::Relaxed);
        self.n_untracked.store(0, Ordering::Relaxed);
        let start = self.journal.clock.moment();
        *self.session.lock() = Session { mode, start };
        self.stacks
            .restart(|first| self.journal.open(first, start.ticks))
    }

    /// Ends the session: closes the shards, merges what they hold and returns everything recorded; the tables are empty
    /// afterwards. What other threads still record is dropped. Not hook-safe.
    pub(crate) fn stop(&self) -> Snapshot {
        self.journal.close();
        let snapshot = self.snapshot();
        self.stacks.clear();
        self.live.clear();
        self.journal.clear();
        snapshot
    }

    /// The figures of the running session, all events before the call included. Hook-safe.
    pub(crate) fn totals(&self) -> Totals {
        self.journal.drain().totals()
    }

    /// Everything recorded so far, while the session goes on. Not hook-safe.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let Session { mode, start } = *self.session.lock();
        let mut figures = Vec::new();
        let mut ledger = self.journal.drain();
        // Nothing may be allocated while the ledger is open, so room is made before it is opened again.
        while ledger.n_points_bound() > figures.capacity() {
            let n_points = ledger.n_points_bound();
            drop(ledger);
            figures.reserve_exact(n_points + n_points / 8);
            ledger = self.journal.drain();
        }
        ledger.copy_points(&mut figures);
        let scale = Scale::between(start, self.journal.clock.moment());
        let ns = |ticks: u64| u64::try_from(scale.ns(ticks.into())).unwrap_or(u64::MAX);
        let (end_ticks, gmax_ticks) = ledger.elapsed_at_end_and_gmax();
        let totals = ledger.totals();
        let anomalies = Anomalies {
            n_freed_behind: self.n_freed_behind.load(Ordering::Relaxed),
            n_unattributed: ledger.n_unattributed(),
            n_untracked: self.n_untracked.load(Ordering::Relaxed),
            n_lost_deferred: self.journal.n_lost(),
        };
        drop(ledger);
        let points = figures.iter().map(|point| {
            let stack = self.stacks.frames_of(point.pp);
            point.with_frames(stack, mode, scale)
        });
        Snapshot {
            mode,
            totals,
            end_ns: ns(end_ticks),
            gmax_ns: ns(gmax_ticks),
            points: points.collect(),
            anomalies,
        }
    }

    /// The shard for a thread that records for the first time. Hook-safe.
    pub(crate) fn join(&self) -> ShardId {
        self.journal.join()
    }

    /// A shard for a thread that may end without [`Recorder::leave`]. Hook-safe.
    pub(crate) fn join_as_guest(&self) -> ShardId {
        self.journal.join_as_guest()
    }

    /// Tells that a thread no longer uses the shard that [`Recorder::join`] gave it. Hook-safe.
    pub(crate) fn leave(&self, shard: ShardId) {
        self.journal.leave(shard);
    }

    /// Whether `pp` belongs to the running session. Hook-safe.
    #[inline]
    pub(crate) fn is_current(&self, pp: PpId) -> bool {
        pp >= self.stacks.first()
    }

    /// The program point of a stack: return addresses, innermost first, and a tag that is part of the key and means nothing
    /// here. When no more program points can be had, a point with no frames that stands for all further stacks, and the
    /// loss is counted. Hook-safe.
    pub(crate) fn intern(&self, frames: &[usize], tag: u32) -> PpId {
        self.stacks
            .intern(frames, tag, |pp| self.journal.make_room(pp))
    }

    /// Records that `size` bytes at `addr` were allocated. A block still recorded there was freed behind the allocator's
    /// back: it is retired and counted. Without memory for the entry the block is counted as untracked and in no other
    /// figure, because its free could never be recorded. Hook-safe.
    #[inline(always)]
    pub(crate) fn record_alloc(
        &self,
        shard: ShardId,
        addr: usize,
        size: usize,
        pp: PpId,
    ) -> Merged {
        let block = LiveBlock { pp, size };
        match self.track_packed(addr, block) {
            Some(packed) => self.journal.alloc_packed(shard, packed),
            None => self.record_alloc_slow(shard, addr, block),
        }
    }

    /// Puts a block into the live map if nothing is special about it; returns it packed.
    #[inline(always)]
    fn track_packed(&self, addr: usize, block: LiveBlock) -> Option<u64> {
        let first = self.stacks.first();
        pack(block).filter(|&packed| self.live.insert_packed(addr, packed, first))
    }

    #[cold]
    #[inline(never)]
    fn record_alloc_slow(&self, shard: ShardId, addr: usize, block: LiveBlock) -> Merged {
        match self.track(shard, addr, block) {
            true => self.journal.alloc(shard, block),
            false => Merged::No,
        }
    }

    /// Puts a block into the live map and retires the one that is there. False without memory, which is counted.
    #[cold]
    #[inline(never)]
    fn track(&self, shard: ShardId, addr: usize, block: LiveBlock) -> bool {
        let inserted = self.live.insert(addr, block, self.stacks.first());
        if let Some(over) = inserted.over {
            self.retire(shard, over);
        }
        if !inserted.is_tracked {
            self.n_untracked.fetch_add(1, Ordering::Relaxed);
        }
        inserted.is_tracked
    }

    #[cold]
    #[inline(never)]
    fn retire(&self, shard: ShardId, block: LiveBlock) {
        self.n_freed_behind.fetch_add(1, Ordering::Relaxed);
        self.journal.free(shard, block);
    }

    /// Takes the block at `addr` out of the live map; `None` when it is not tracked in this session. To be called before
    /// the inner allocator frees or moves the block. Wait-free but for blocks of 64 GiB and more; hook-safe.
    #[inline(always)]
    pub(crate) fn take(&self, addr: usize) -> Option<LiveBlock> {
        self.live.take(addr, self.stacks.first())
    }

    /// Puts a taken block back, because the inner realloc failed. Hook-safe.
    pub(crate) fn put_back(&self, addr: usize, block: LiveBlock) {
        let inserted = self.live.insert(addr, block, self.stacks.first());
        if !inserted.is_tracked {
            // Its free cannot be recorded when it comes; now is the nearest moment.
            self.n_untracked.fetch_add(1, Ordering::Relaxed);
            self.journal.defer_free(block);
        }
    }

    /// Records that a taken block was freed. Hook-safe.
    #[inline(always)]
    pub(crate) fn record_free(&self, shard: ShardId, block: LiveBlock) -> Merged {
        self.journal.free(shard, block)
    }

    /// Records that a taken block is now at `addr` with `new_size` bytes; it stays with its program point. Without memory
    /// for the new entry the block is counted as untracked, and as freed. Hook-safe.
    #[inline]
    pub(crate) fn record_realloc(
        &self,
        shard: ShardId,
        block: LiveBlock,
        addr: usize,
        new_size: usize,
    ) -> Merged {
        let resized = LiveBlock {
            size: new_size,
            ..block
        };
        if self.track_packed(addr, resized).is_some() || self.track(shard, addr, resized) {
            self.journal.realloc(shard, block, new_size)
        } else {
            self.journal.free(shard, block)
        }
    }

    /// As [`Recorder::record_free`], for a thread that may hold one of the recorder's locks: a signal handler that
    /// interrupts the hook. Takes no lock. Async-signal-safe.
    pub(crate) fn defer_free(&self, block: LiveBlock) {
        self.journal.defer_free(block);
    }

    /// As [`Recorder::record_realloc`], for a thread that may hold one of the recorder's locks. When the event is lost, the
    /// block stays recorded with its old size. Async-signal-safe but for blocks of 64 GiB and more.
    pub(crate) fn defer_realloc(&self, block: LiveBlock, addr: usize, new_size: usize) {
        let known_size = match self.journal.defer_realloc(block, new_size) {
            true => new_size,
            false => block.size,
        };
        let resized = LiveBlock {
            size: known_size,
            ..block
        };
        let inserted = self.live.insert(addr, resized, self.stacks.first());
        if let Some(over) = inserted.over {
            self.n_freed_behind.fetch_add(1, Ordering::Relaxed);
            self.journal.defer_free(over);
        }
        if !inserted.is_tracked {
            self.n_untracked.fetch_add(1, Ordering::Relaxed);
            self.journal.defer_free(resized);
        }
    }

    /// Records an ad hoc event. Hook-safe.
    pub(crate) fn record_event(&self, shard: ShardId, weight: usize, pp: PpId) -> Merged {
        self.journal.ad_hoc(shard, pp, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Box<Recorder> {
        let recorder = Box::new(Recorder::new());
        std::assert!(recorder.start(Mode::Heap));
        recorder
    }

    #[test]
    fn a_lost_deferred_realloc_leaves_the_block_as_it_was() {
        let recorder = started();
        let (shard, pp) = (recorder.join(), recorder.intern(&[1], 0));
        recorder.record_alloc(shard, 64, 10, pp);
        let mut block = recorder.take(64).unwrap();
        let mut size = 10;
        while recorder.journal.n_lost() == 0 {
            size += 1;
            recorder.defer_realloc(block, 64, size);
            block = recorder.take(64).unwrap();
        }
        std::assert_eq!(block.size, size - 1);
        recorder.record_free(shard, block);
        let snapshot = recorder.stop();
        std::assert_eq!(snapshot.anomalies.n_lost_deferred, 1);
        std::assert_eq!(snapshot.totals.curr_bytes, 0);
        std::assert_eq!(snapshot.totals.max_bytes, size as u64 - 1);
    }

    #[test]
    fn blocks_of_the_unattributed_point_are_counted() {
        let recorder = started();
        let (shard, pp) = (recorder.join(), recorder.stacks.first());
        recorder.record_alloc(shard, 64, 10, pp);
        recorder.record_alloc(shard, 96, 10, recorder.intern(&[5], 0));
        let snapshot = recorder.stop();
        std::assert_eq!(snapshot.anomalies.n_unattributed, 1);
        std::assert!(snapshot.points[0].frames.is_empty());
        std::assert_eq!(snapshot.points[1].frames.as_ref(), [5]);
    }

    #[test]
    fn what_comes_after_the_end_is_in_no_session() {
        let recorder = started();
        let (shard, pp) = (recorder.join(), recorder.intern(&[1], 0));
        recorder.record_alloc(shard, 64, 10, pp);
        let taken = recorder.take(64).unwrap();
        std::assert_eq!(recorder.stop().totals.curr_blocks, 1);
        std::assert!(!recorder.is_current(pp));
        recorder.record_free(shard, taken);
        recorder.record_alloc(shard, 96, 10, pp);
        recorder.defer_free(taken);
        std::assert!(recorder.start(Mode::Heap));
        std::assert_eq!(recorder.take(96), None);
        std::assert_eq!(recorder.intern(&[1], 0).max(pp), recorder.intern(&[1], 0));
        let snapshot = recorder.stop();
        std::assert_eq!(snapshot.totals, Totals::default());
        std::assert!(snapshot.points.is_empty());
        std::assert_eq!(snapshot.anomalies, Anomalies::default());
    }

    #[test]
    fn block_lifetimes_follow_the_wall_clock() {
        let recorder = started();
        let (shard, pp) = (recorder.join(), recorder.intern(&[1], 0));
        let outer = std::time::Instant::now();
        recorder.record_alloc(shard, 64, 10, pp);
        let inner = std::time::Instant::now();
        while inner.elapsed().as_millis() < 20 {}
        recorder.record_free(shard, recorder.take(64).unwrap());
        let least_ns = 20_000_000 / 100 * 99;
        let most_ns = outer.elapsed().as_nanos() / 99 * 100;
        let snapshot = recorder.stop();
        let lifetimes_ns = snapshot.points[0].lifetimes_ns;
        std::assert!((least_ns..=most_ns).contains(&lifetimes_ns));
        std::assert!(u128::from(snapshot.end_ns) >= lifetimes_ns);
        std::assert!(snapshot.gmax_ns <= snapshot.end_ns);
    }
}
