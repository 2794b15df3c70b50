//! Everything the crate asks of the operating system, one file per system, each primitive with its contract.
//!
//! Unless an item says otherwise it is hook-safe: it does not allocate through the global allocator, does not panic and
//! touches no lazily initialised state.

#[cfg(not(target_os = "linux"))]
compile_error!("milliner supports Linux only so far");

#[cfg(target_os = "linux")]
mod linux;
pub(crate) mod lock;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
