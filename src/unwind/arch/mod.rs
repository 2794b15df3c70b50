//! What differs between processors: reading the registers, and where a frame record holds what.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("milliner supports x86-64 only so far");

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
