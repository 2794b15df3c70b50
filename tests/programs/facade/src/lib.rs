//! A third crate that hands the profiler on, under names of its own.

pub use dhat_ours as memory;
pub use dhat_ours::assert as check;
pub use dhat_ours::{assert_eq, assert_ne};

/// Expands the profiler's macro inside a macro of this crate.
#[macro_export]
macro_rules! check_blocks {
    ($n:expr) => {
        $crate::memory::assert_eq!($crate::memory::HeapStats::get().curr_blocks, $n)
    };
}
