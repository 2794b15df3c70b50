//! The allocators that programs install: they forward to an inner allocator and tell the hook.

use crate::hook;
use crate::unwind::Registers;
use std::alloc::{GlobalAlloc, Layout, System};

/// The profiling allocator over the system's: install it as the global allocator, and a running
/// [`Profiler`](crate::Profiler) records every heap block.
///
/// While no Profiler does heap profiling it costs one load and one branch a call.
///
/// # Examples
/// ```
/// #[global_allocator]
/// static ALLOC: dhat::Alloc = dhat::Alloc;
/// # fn main() {
/// #     let _profiler = dhat::Profiler::builder().testing().build();
/// #     let boxed = Box::new(1_u64);
/// #     assert_eq!(dhat::HeapStats::get().curr_bytes, 8);
/// #     drop(boxed);
/// # }
/// ```
#[derive(Debug)]
pub struct Alloc;

/// The profiling allocator over any other allocator, such as jemalloc, mimalloc or one made for a test.
///
/// Every method is forwarded as what it is: `alloc_zeroed` as `alloc_zeroed`, `realloc` as `realloc`. Blocks count exactly
/// as they do with [`Alloc`].
///
/// # Examples
/// ```
/// use std::alloc::System;
///
/// #[global_allocator]
/// static ALLOC: dhat::AllocOver<System> = dhat::AllocOver::new(System);
/// # fn main() {
/// #     let _profiler = dhat::Profiler::builder().testing().build();
/// #     let boxed = Box::new(1_u64);
/// #     assert_eq!(dhat::HeapStats::get().curr_bytes, 8);
/// #     drop(boxed);
/// # }
/// ```
#[derive(Debug)]
pub struct AllocOver<A> {
    inner: A,
}

impl<A> AllocOver<A> {
    /// Makes a profiling allocator that takes its memory from `inner`.
    ///
    /// # Examples
    /// ```
    /// static ALLOC: dhat::AllocOver<std::alloc::System> = dhat::AllocOver::new(std::alloc::System);
    /// ```
    pub const fn new(inner: A) -> Self {
        Self { inner }
    }

    /// The allocator that the memory comes from.
    ///
    /// # Examples
    /// ```
    /// static ALLOC: dhat::AllocOver<std::alloc::System> = dhat::AllocOver::new(std::alloc::System);
    /// let _system: &std::alloc::System = ALLOC.inner();
    /// ```
    pub const fn inner(&self) -> &A {
        &self.inner
    }
}

/// Calls of the inner allocator that are kept out of line: they may need a stack frame, which the methods below then need not
/// make before they know whether anything is recorded.
mod forward {
    use crate::hook;
    use std::alloc::{GlobalAlloc, Layout};

    /// Allocates from `inner`. Hook-safe.
    ///
    /// # Safety
    /// As [`GlobalAlloc::alloc`].
    #[inline(never)]
    pub(super) unsafe fn alloc(inner: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the inner allocator asks for.
        unsafe { inner.alloc(layout) }
    }

    /// Allocates zeroed memory from `inner`. Hook-safe.
    ///
    /// # Safety
    /// As [`GlobalAlloc::alloc_zeroed`].
    #[inline(never)]
    pub(super) unsafe fn alloc_zeroed(inner: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { inner.alloc_zeroed(layout) }
    }

    /// Records that the block is freed, and gives it to `inner`. Hook-safe.
    ///
    /// # Safety
    /// As [`GlobalAlloc::dealloc`].
    #[inline(never)]
    pub(super) unsafe fn recorded_dealloc(
        inner: &impl GlobalAlloc,
        block: *mut u8,
        layout: Layout,
    ) {
        hook::freeing(block as usize);
        // SAFETY: as in `alloc`.
        unsafe { inner.dealloc(block, layout) }
    }

    /// Reallocates from `inner`. Hook-safe.
    ///
    /// # Safety
    /// As [`GlobalAlloc::realloc`].
    #[inline(never)]
    pub(super) unsafe fn realloc(
        inner: &impl GlobalAlloc,
        block: *mut u8,
        layout: Layout,
        new_size: usize,
    ) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { inner.realloc(block, layout, new_size) }
    }
}

/// The methods of `GlobalAlloc` over `$inner`. None is inlined: each is one physical frame in every build, and the return
/// address of that frame is the call site in the program.
macro_rules! profiling_methods {
    (|$this:ident| $inner:expr) => {
        #[inline(never)]
        unsafe fn alloc(&$this, layout: Layout) -> *mut u8 {
            if !hook::records_blocks() {
                // SAFETY: the caller's promises are those that the inner allocator asks for.
                return unsafe { forward::alloc(&$inner, layout) };
            }
            // SAFETY: as above.
            let block = unsafe { forward::alloc(&$inner, layout) };
            if !block.is_null() {
                hook::allocated(block as usize, layout.size(), Registers::here());
            }
            block
        }

        #[inline(never)]
        unsafe fn alloc_zeroed(&$this, layout: Layout) -> *mut u8 {
            if !hook::records_blocks() {
                // SAFETY: as in `alloc`.
                return unsafe { forward::alloc_zeroed(&$inner, layout) };
            }
            // SAFETY: as in `alloc`.
            let block = unsafe { forward::alloc_zeroed(&$inner, layout) };
            if !block.is_null() {
                hook::allocated(block as usize, layout.size(), Registers::here());
            }
            block
        }

        #[inline(never)]
        unsafe fn dealloc(&$this, block: *mut u8, layout: Layout) {
            if !hook::records_blocks() {
                // SAFETY: as in `alloc`.
                return unsafe { $inner.dealloc(block, layout) };
            }
            // SAFETY: as in `alloc`.
            unsafe { forward::recorded_dealloc(&$inner, block, layout) }
        }

        #[inline(never)]
        unsafe fn realloc(&$this, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
            if !hook::records_blocks() {
                // SAFETY: as in `alloc`.
                return unsafe { forward::realloc(&$inner, block, layout, new_size) };
            }
            let moving = hook::reallocating(block as usize);
            // SAFETY: as in `alloc`.
            let moved = unsafe { forward::realloc(&$inner, block, layout, new_size) };
            if moved.is_null() {
                hook::realloc_failed(moving);
            } else {
                hook::reallocated(moving, moved as usize, new_size, Registers::here());
            }
            moved
        }
    };
}

// SAFETY: every method forwards to the system allocator, which keeps the contract; the hook neither touches the block nor
// unwinds.
unsafe impl GlobalAlloc for Alloc {
    profiling_methods!(|self| System);
}

// SAFETY: every method forwards to `inner`, which keeps the contract; the hook neither touches the block nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for AllocOver<A> {
    profiling_methods!(|self| self.inner);
}
