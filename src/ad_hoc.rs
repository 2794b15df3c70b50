//! Ad hoc events: costs that the program reports itself.

#![forbid(unsafe_code)]

use crate::hook;
use crate::unwind::Registers;

/// Records an event with a weight whose meaning is the program's own, at the call stack of this call.
///
/// It has no effect unless a [`Profiler`](crate::Profiler) that does ad hoc profiling is running.
///
/// # Examples
/// ```
/// let _profiler = dhat::Profiler::builder().ad_hoc().testing().build();
/// let line = "three small words";
/// dhat::ad_hoc_event(line.len());
/// assert_eq!(dhat::AdHocStats::get().total_units, 17);
/// ```
// Never inlined: its frame is frame 0 of the event's stack.
#[inline(never)]
pub fn ad_hoc_event(weight: usize) {
    if hook::records_events() {
        hook::ad_hoc_event(weight, Registers::here());
    }
}
