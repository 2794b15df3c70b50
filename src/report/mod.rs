//! From a snapshot to the file and the summary.

#![forbid(unsafe_code)]

use crate::modules::ModuleMap;
use crate::recorder::Snapshot;
use crate::symbolize::Symbols;
use crate::unwind::WalkCounts;
use std::path::PathBuf;

/// What a finished session hands over.
pub(crate) struct Session {
    pub(crate) snapshot: Snapshot,
    pub(crate) modules: ModuleMap,
    pub(crate) walks: WalkCounts,
    /// The builder's own stack, innermost first, whole.
    pub(crate) builder_frames: Vec<usize>,
    /// Whether frames at the top and the bottom of stacks are trimmed.
    pub(crate) trims: bool,
    /// Whether the allocator of this crate was called at all while the session ran.
    pub(crate) allocator_seen: bool,
}

/// Where a report goes.
pub(crate) enum Output {
    /// To a file.
    File(PathBuf),
    /// To a string, indented.
    Memory,
}

/// The tag of an interned stack: the module generation that its addresses belong to, and whether its outermost frames are
/// shared with the builder of the Profiler (same thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackTag {
    pub(crate) generation: u32,
    pub(crate) shares_builder: bool,
}

impl StackTag {
    /// The tag as the recorder keeps it.
    pub(crate) fn to_raw(self) -> u32 {
        self.generation << 1 | u32::from(self.shares_builder)
    }

    /// The tag that [`StackTag::to_raw`] gave `raw` for.
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self {
            generation: raw >> 1,
            shares_builder: raw & 1 != 0,
        }
    }
}

/// Symbolizes, trims, folds, writes and prints. Returns the JSON for [`Output::Memory`], else an empty string. Write errors
/// are printed, print errors ignored. The caller makes sure that nothing it allocates is recorded and that no lock is held.
pub(crate) fn finish(_session: &Session, _output: &Output, _print_json: bool) -> String {
    todo!()
}
