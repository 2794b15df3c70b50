//! One journal shard: a pair of event buffers with one writer at a time.
//!
//! A shard either belongs to one thread, its owner, or is shared by guests. Guests take its lock. The owner only says that it
//! is inside, by plain stores: whoever wants to swap the buffers takes the lock, asks the owner to stay out, makes every
//! running thread pass a memory barrier, and then waits for the owner to leave. So the owner's store of `is_inside` and
//! load of `must_stay_out` need no fence between them (the asymmetric form of Dekker's algorithm; membarrier(2)).

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use super::clock::Clock;
use super::event::{Kind, first_word};
use crate::sys;
use crate::sys::lock::{Lock, LockGuard};

/// Words of a buffer: 64 KiB, of which pages take memory once they are written.
pub(super) const BUFFER_WORDS: usize = 8192;

/// A shard's events.
pub(super) type Buffer = [AtomicU64; BUFFER_WORDS];

/// A shard, alone in its cache lines, which are prefetched in pairs.
///
/// All fields but those of the gate belong to whoever is inside, so their accesses are Relaxed unless they say why not.
#[repr(align(128))]
pub(super) struct Shard {
    is_inside: AtomicU32,
    must_stay_out: AtomicU32,
    /// Which of the two buffers is written.
    active_idx: AtomicUsize,
    /// Words of the active buffer that hold events.
    len: AtomicUsize,
    /// Words that may be used: all, or none while the shard is closed.
    limit: AtomicUsize,
    /// The time of the last event or cut; no later event is earlier.
    last_ticks: AtomicU64,
    lock: Lock<()>,
}

/// Proof that nobody is inside and nobody can enter.
pub(super) struct Stopped<'a> {
    shard: &'a Shard,
    _held: LockGuard<'a, ()>,
}

impl Shard {
    /// Makes a closed shard. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            is_inside: AtomicU32::new(0),
            must_stay_out: AtomicU32::new(0),
            active_idx: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            last_ticks: AtomicU64::new(0),
            lock: Lock::new(()),
        }
    }

    /// Empties the shard and lets events in. Nobody is inside with an event, because the shard is closed.
    pub(super) fn open(&self, start_ticks: u64) {
        self.active_idx.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        self.last_ticks.store(start_ticks, Ordering::Relaxed);
        // Release: pairs with the Acquire in `append`, so that whoever may write sees the rest.
        self.limit.store(BUFFER_WORDS, Ordering::Release);
    }

    /// Lets no more events in; one that is just being written may still come.
    pub(super) fn close(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    /// Whether the shard lets no events in.
    pub(super) fn is_closed(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == 0
    }

    /// Whether `n_words` more fit. A hint unless the caller holds the ledger, without which nothing is swapped.
    pub(super) fn has_room(&self, n_words: usize) -> bool {
        self.len.load(Ordering::Relaxed) + n_words <= BUFFER_WORDS
    }

    /// Appends an event of the owner's with the time `ticks`, or a later one so that no event is before another. False if
    /// there is no room.
    #[inline(always)]
    pub(super) fn append_as_owner<const N: usize>(
        &self,
        buffers: &[Buffer; 2],
        ticks: u64,
        kind: Kind,
        rest: [u64; N],
    ) -> bool {
        self.is_inside.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in the drop of `Stopped`.
        if self.must_stay_out.load(Ordering::Acquire) != 0 {
            return self.append_stopped_owner(buffers, ticks, kind, rest);
        }
        let is_appended = self.append(buffers, ticks, kind, rest);
        self.leave();
        is_appended
    }

    #[inline(always)]
    fn leave(&self) {
        // Release: pairs with the Acquire in `wait_until_empty`; the event is written before the owner is seen outside.
        self.is_inside.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if self.must_stay_out.load(Ordering::Relaxed) != 0 {
            self.leave_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_slow(&self) {
        sys::wake_one(&self.is_inside);
    }

    #[cold]
    #[inline(never)]
    fn append_stopped_owner<const N: usize>(
        &self,
        buffers: &[Buffer; 2],
        ticks: u64,
        kind: Kind,
        rest: [u64; N],
    ) -> bool {
        // Release: as in `leave`.
        self.is_inside.store(0, Ordering::Release);
        self.leave_slow();
        let _held = self.lock.lock();
        self.append(buffers, ticks, kind, rest)
    }

    /// Appends an event of any thread's at the present time; false if there is no room.
    pub(super) fn append_as_guest<const N: usize>(
        &self,
        buffers: &[Buffer; 2],
        clock: &Clock,
        kind: Kind,
        rest: [u64; N],
    ) -> bool {
        let _held = self.lock.lock();
        self.append(buffers, clock.ticks(), kind, rest)
    }

    #[inline(always)]
    fn append<const N: usize>(
        &self,
        buffers: &[Buffer; 2],
        ticks: u64,
        kind: Kind,
        rest: [u64; N],
    ) -> bool {
        // Acquire: pairs with the Release in `open`.
        let limit = self.limit.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let active = &buffers[self.active_idx.load(Ordering::Relaxed) & 1];
        let room = active.get(len..).and_then(<[_]>::split_first);
        let room = room.and_then(|(first, others)| Some((first, others.first_chunk::<N>()?)));
        let Some((first, others)) = room.filter(|_| len < limit) else {
            return false;
        };
        let ticks = ticks.max(self.last_ticks.load(Ordering::Relaxed));
        first.store(first_word(kind, ticks), Ordering::Relaxed);
        for (word, value) in others.iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        self.last_ticks.store(ticks, Ordering::Relaxed);
        self.len.store(len + 1 + N, Ordering::Relaxed);
        true
    }

    /// Keeps everybody out from now on but for an owner who is inside already. Between this and
    /// [`Stopped::wait_until_empty`] the caller makes all threads pass a barrier.
    pub(super) fn stop(&self) -> Stopped<'_> {
        let held = self.lock.lock();
        // Relaxed: the caller's barrier orders it.
        self.must_stay_out.store(1, Ordering::Relaxed);
        Stopped {
            shard: self,
            _held: held,
        }
    }
}

impl Stopped<'_> {
    /// Waits for an owner who was inside when the shard was stopped.
    pub(super) fn wait_until_empty(&self) {
        // Acquire: pairs with the Release in `leave`.
        while self.shard.is_inside.load(Ordering::Acquire) != 0 {
            sys::wait(&self.shard.is_inside, 1);
        }
    }

    /// The time of the last event or cut, in ticks.
    pub(super) fn last_ticks(&self) -> u64 {
        self.shard.last_ticks.load(Ordering::Relaxed)
    }

    /// Makes the empty buffer the active one and returns the other, with the number of words that hold events. No event from
    /// now on is before `cut_ticks`.
    pub(super) fn swap<'b>(&self, buffers: &'b [Buffer; 2], cut_ticks: u64) -> (&'b Buffer, usize) {
        let active_idx = self.shard.active_idx.load(Ordering::Relaxed) & 1;
        let len = self.shard.len.load(Ordering::Relaxed);
        self.shard
            .active_idx
            .store(1 - active_idx, Ordering::Relaxed);
        self.shard.len.store(0, Ordering::Relaxed);
        self.shard.last_ticks.store(cut_ticks, Ordering::Relaxed);
        (&buffers[active_idx], len)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `append_as_owner`. An owner that was kept out waits for the lock.
        self.shard.must_stay_out.store(0, Ordering::Release);
    }
}
