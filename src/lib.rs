//! A heap profiler for Rust programs, and a drop-in replacement for the `dhat` crate.
//!
//! The package is called `milliner`, the library `dhat`. A program that uses `dhat` changes one line of its `Cargo.toml`:
//!
//! ```toml
//! [dependencies]
//! dhat = { package = "milliner", version = "0.1" }
//!
//! [profile.release]
//! debug = 1
//! ```
//!
//! # Heap profiling
//!
//! Install [`Alloc`] as the global allocator and keep a [`Profiler`] alive while the program does what is of interest:
//!
//! ```no_run
//! #[global_allocator]
//! static ALLOC: dhat::Alloc = dhat::Alloc;
//!
//! fn main() {
//!     let _profiler = dhat::Profiler::new_heap();
//!     println!("{}", ["every", "allocation", "is", "recorded"].join(" "));
//! }
//! ```
//!
//! When the Profiler is dropped, a summary goes to stderr and the profile to `dhat-heap.json`, for DHAT's viewer
//! `dh_view.html`, which comes with Valgrind. [`AllocOver`] profiles over any other allocator.
//!
//! # Heap testing
//!
//! In [testing](ProfilerBuilder::testing) mode nothing is saved; [`assert!`], [`assert_eq!`] and [`assert_ne!`] check what
//! [`HeapStats::get`] tells. A failed assertion saves the profile. Each such test needs a process of its own, which
//! integration tests with one test function are.
//!
//! ```
//! #[global_allocator]
//! static ALLOC: dhat::Alloc = dhat::Alloc;
//!
//! # fn main() {
//! let _profiler = dhat::Profiler::builder().testing().build();
//! let squares: Vec<u64> = (0..8).map(|n| n * n).collect();
//! dhat::assert_eq!(dhat::HeapStats::get().total_blocks, 1);
//! # drop(squares);
//! # }
//! ```
//!
//! # Ad hoc profiling
//!
//! [`ad_hoc_event`] records a cost of the program's own at the current call stack; the profile, `dhat-ad-hoc.json`, has the
//! same form.
//!
//! # How blocks are counted
//!
//! - Recorded is what happens between [`ProfilerBuilder::build`] and the Profiler's drop. A block from before is ignored when
//!   it is freed, and counts as a new one when it is reallocated.
//! - A reallocation counts as one more block with its whole new size in the totals; the block stays with the stack that
//!   allocated it first.
//! - Of equal peaks the latest counts.
//!
//! Nothing of this allocates, prints, panics or takes a lock that the program can hold inside the allocator's methods.

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
