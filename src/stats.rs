//! The figures of a running session.

#![forbid(unsafe_code)]

use crate::profiler;

/// Statistics of heap profiling: what the running [`Profiler`](crate::Profiler) has recorded so far.
///
/// # Examples
/// ```
/// #[global_allocator]
/// static ALLOC: dhat::Alloc = dhat::Alloc;
///
/// # fn main() {
/// let _profiler = dhat::Profiler::builder().testing().build();
/// let bytes = vec![0_u8; 100];
/// let stats = dhat::HeapStats::get();
/// assert_eq!(stats.curr_blocks, 1);
/// assert_eq!(stats.curr_bytes, 100);
/// # drop(bytes);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Blocks allocated since the Profiler was built; a reallocation counts as one more.
    pub total_blocks: u64,
    /// Bytes allocated since the Profiler was built; a reallocation counts with its whole new size.
    pub total_bytes: u64,
    /// Blocks live now.
    pub curr_blocks: usize,
    /// Bytes live now.
    pub curr_bytes: usize,
    /// Blocks that were live at the global peak.
    pub max_blocks: usize,
    /// Bytes that were live at the global peak: the latest moment when `curr_bytes` was highest.
    pub max_bytes: usize,
}

impl HeapStats {
    /// Gets the figures of this moment.
    ///
    /// # Panics
    /// With one of these texts, when no Profiler does heap profiling:
    /// - `dhat: getting heap stats when no profiler is running`
    /// - `dhat: getting heap stats while doing ad hoc profiling`
    /// - `dhat: getting heap stats after the profiler has asserted`
    ///
    /// # Examples
    /// ```
    /// let _profiler = dhat::Profiler::builder().testing().build();
    /// let before = dhat::HeapStats::get();
    /// let after = dhat::HeapStats::get();
    /// assert!(after.total_blocks >= before.total_blocks);
    /// ```
    pub fn get() -> Self {
        let totals = profiler::heap_totals();
        Self {
            total_blocks: totals.total_blocks,
            total_bytes: totals.total_bytes,
            curr_blocks: saturate(totals.curr_blocks),
            curr_bytes: saturate(totals.curr_bytes),
            max_blocks: saturate(totals.max_blocks),
            max_bytes: saturate(totals.max_bytes),
        }
    }
}

/// Statistics of ad hoc profiling: what the running [`Profiler`](crate::Profiler) has recorded so far.
///
/// # Examples
/// ```
/// let _profiler = dhat::Profiler::builder().ad_hoc().testing().build();
/// dhat::ad_hoc_event(30);
/// dhat::ad_hoc_event(12);
/// let stats = dhat::AdHocStats::get();
/// assert_eq!((stats.total_events, stats.total_units), (2, 42));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdHocStats {
    /// Events since the Profiler was built.
    pub total_events: u64,
    /// The sum of their weights.
    pub total_units: u64,
}

impl AdHocStats {
    /// Gets the figures of this moment.
    ///
    /// # Panics
    /// With one of these texts, when no Profiler does ad hoc profiling:
    /// - `dhat: getting ad hoc stats when no profiler is running`
    /// - `dhat: getting ad hoc stats while doing heap profiling`
    /// - `dhat: getting ad hoc stats after the profiler has asserted`
    ///
    /// # Examples
    /// ```
    /// let _profiler = dhat::Profiler::builder().ad_hoc().testing().build();
    /// assert_eq!(dhat::AdHocStats::get().total_events, 0);
    /// ```
    pub fn get() -> Self {
        let totals = profiler::ad_hoc_totals();
        Self {
            total_events: totals.total_blocks,
            total_units: totals.total_bytes,
        }
    }
}

fn saturate(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
