//! What is live, what was allocated, what peaked, per program point and in all. Takes frames as plain addresses.

#![forbid(unsafe_code)]

mod clock;
mod journal;
mod ledger;
mod live;
mod snapshot;
mod stacks;

pub(crate) use snapshot::{Anomalies, ProgramPoint, Snapshot, Totals};

/// The number of a program point: an interned stack. Never 0; below 2^28; never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PpId(u32);

impl PpId {
    /// The number as the unwinder's memo keeps it.
    pub(crate) fn to_raw(self) -> u32 {
        self.0
    }

    /// The program point that [`PpId::to_raw`] gave `raw` for; the caller got it there.
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
    pub(crate) pp: PpId,
    pub(crate) size: usize,
}

/// The journal shard that a thread appends to. Threads may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId(u32);

/// The tables of one recorder; the process has one in a static, tests make their own.
pub(crate) struct Recorder {}

impl Recorder {
    /// Makes an idle recorder without tables. Const, so that it can be a static.
    pub(crate) const fn new() -> Self {
        Self {}
    }

    /// Starts a session: makes or empties the tables and opens the shards. Counters start from zero. False when there is no
    /// memory for the tables; then nothing may be recorded. Not hook-safe.
    pub(crate) fn start(&self, _mode: Mode) -> bool {
        todo!()
    }

    /// Ends the session: closes the shards, merges what they hold and returns everything recorded; the tables are empty
    /// afterwards. What other threads still record is dropped. Not hook-safe.
    pub(crate) fn stop(&self) -> Snapshot {
        todo!()
    }

    /// The figures of the running session, all events before the call included.
    pub(crate) fn totals(&self) -> Totals {
        todo!()
    }

    /// Everything recorded so far, while the session goes on. Not hook-safe.
    pub(crate) fn snapshot(&self) -> Snapshot {
        todo!()
    }

    /// The shard for a thread that records for the first time. Hook-safe.
    pub(crate) fn join(&self) -> ShardId {
        todo!()
    }

    /// Tells that a thread no longer uses the shard that [`Recorder::join`] gave it. Hook-safe.
    pub(crate) fn leave(&self, _shard: ShardId) {
        todo!()
    }

    /// Whether `pp` belongs to the running session. Hook-safe.
    #[inline]
    pub(crate) fn is_current(&self, _pp: PpId) -> bool {
        todo!()
    }

    /// The program point of a stack: return addresses, innermost first, and a tag that is part of the key and means nothing
    /// here. When no more program points can be had, a point with no frames that stands for all further stacks, and the
    /// loss is counted. Hook-safe.
    pub(crate) fn intern(&self, _frames: &[usize], _tag: u32) -> PpId {
        todo!()
    }

    /// Records that `size` bytes at `addr` were allocated. A block still recorded there was freed behind the allocator's
    /// back: it is retired and counted. Hook-safe.
    #[inline]
    pub(crate) fn record_alloc(&self, _shard: ShardId, _addr: usize, _size: usize, _pp: PpId) {
        todo!()
    }

    /// Takes the block at `addr` out of the live map; `None` when it is not tracked in this session. To be called before
    /// the inner allocator frees or moves the block. Wait-free but for blocks in the side table; hook-safe.
    #[inline]
    pub(crate) fn take(&self, _addr: usize) -> Option<LiveBlock> {
        todo!()
    }

    /// Puts a taken block back, because the inner realloc failed. Hook-safe.
    pub(crate) fn put_back(&self, _addr: usize, _block: LiveBlock) {
        todo!()
    }

    /// Records that a taken block was freed. Hook-safe.
    #[inline]
    pub(crate) fn record_free(&self, _shard: ShardId, _block: LiveBlock) {
        todo!()
    }

    /// Records that a taken block is now at `addr` with `new_size` bytes; it stays with its program point. Hook-safe.
    #[inline]
    pub(crate) fn record_realloc(
        &self,
        _shard: ShardId,
        _block: LiveBlock,
        _addr: usize,
        _new_size: usize,
    ) {
        todo!()
    }

    /// As [`Recorder::record_free`], for a thread that may hold one of the recorder's locks: a signal handler that
    /// interrupts the hook. Takes no lock. Async-signal-safe.
    pub(crate) fn defer_free(&self, _block: LiveBlock) {
        todo!()
    }

    /// As [`Recorder::record_realloc`], for a thread that may hold one of the recorder's locks. Async-signal-safe.
    pub(crate) fn defer_realloc(&self, _block: LiveBlock, _addr: usize, _new_size: usize) {
        todo!()
    }

    /// Records an ad hoc event. Hook-safe.
    pub(crate) fn record_event(&self, _shard: ShardId, _weight: usize, _pp: PpId) {
        todo!()
    }
}
