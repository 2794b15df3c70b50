//! What a session recorded, as plain owned data: the only door from the recorder to the report.

use super::Mode;

/// Counters of the whole session. In ad hoc mode blocks are events and bytes are units, and only the totals have meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Blocks allocated, each reallocation counted as one more.
    pub(crate) total_blocks: u64,
    /// Their bytes, with the whole new size of each reallocation.
    pub(crate) total_bytes: u64,
    /// Blocks live at the cut.
    pub(crate) curr_blocks: u64,
    /// Bytes live at the cut.
    pub(crate) curr_bytes: u64,
    /// Blocks live at t-gmax.
    pub(crate) max_blocks: u64,
    /// Bytes live at t-gmax, the latest moment of the highest `curr_bytes`.
    pub(crate) max_bytes: u64,
}

/// Everything recorded about one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramPoint {
    /// Return addresses as captured, innermost first. Empty for stacks that could not be captured.
    pub(crate) frames: Box<[usize]>,
    /// The tag that the stack was interned with.
    pub(crate) tag: u32,
    /// Blocks allocated here, counted as in [`Totals`].
    pub(crate) total_blocks: u64,
    /// Their bytes, counted likewise.
    pub(crate) total_bytes: u64,
    /// Bytes at the latest moment when this point's own bytes were highest.
    pub(crate) max_bytes: u64,
    /// Blocks at that moment.
    pub(crate) max_blocks: u64,
    /// Bytes live at t-gmax.
    pub(crate) at_gmax_bytes: u64,
    /// Blocks live at t-gmax.
    pub(crate) at_gmax_blocks: u64,
    /// Bytes live at the cut.
    pub(crate) at_end_bytes: u64,
    /// Blocks live at the cut.
    pub(crate) at_end_blocks: u64,
    /// The time that this point's blocks were live, summed over the blocks, in nanoseconds.
    pub(crate) lifetimes_ns: u128,
}

/// What could not be recorded as it should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anomalies {
    /// Blocks whose address was handed out again although they had not been freed through this allocator.
    pub(crate) n_freed_behind: u64,
    /// Allocations that share the point without frames, because no more program points could be had.
    pub(crate) n_unattributed: u64,
    /// Blocks that are not tracked, because there was no memory for their entry in the live map.
    pub(crate) n_untracked: u64,
    /// Frees and reallocations in signal handlers that were not recorded, because too many came at once.
    pub(crate) n_lost_deferred: u64,
}

/// One consistent cut through a session.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// What the session records.
    pub(crate) mode: Mode,
    /// The figures of all program points together.
    pub(crate) totals: Totals,
    /// From the session's start to the cut, in nanoseconds.
    pub(crate) end_ns: u64,
    /// From the session's start to t-gmax, in nanoseconds.
    pub(crate) gmax_ns: u64,
    /// Every program point that recorded at least one block, in the order of their first.
    pub(crate) points: Vec<ProgramPoint>,
    /// What the other figures lack.
    pub(crate) anomalies: Anomalies,
}
