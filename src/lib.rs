//! A heap profiler for Rust programs, and a drop-in replacement for the `dhat` crate.

mod ad_hoc;
mod alloc;
mod asserts;
mod builder_stack;
mod hook;
mod modules;
mod profiler;
mod recorder;
mod report;
mod stats;
mod symbolize;
mod sys;
mod texts;
mod unwind;

pub use ad_hoc::ad_hoc_event;
pub use alloc::{Alloc, AllocOver};
#[doc(hidden)]
pub use asserts::{assert_is_panic, check_assert_condition};
pub use profiler::{Profiler, ProfilerBuilder};
pub use stats::{AdHocStats, HeapStats};
#[doc(hidden)]
pub use std as __std;
