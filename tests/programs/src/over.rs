//! `AllocOver` around allocators of the program's own: what reaches them, and that it is counted.

extern crate dhat_ours as dhat;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system allocator, counting the calls of each method.
struct Tally {
    allocs: AtomicUsize,
    zeroed: AtomicUsize,
    reallocs: AtomicUsize,
    frees: AtomicUsize,
}

impl Tally {
    const fn new() -> Tally {
        Tally {
            allocs: AtomicUsize::new(0),
            zeroed: AtomicUsize::new(0),
            reallocs: AtomicUsize::new(0),
            frees: AtomicUsize::new(0),
        }
    }
}

// SAFETY: everything is answered by the system allocator.
unsafe impl GlobalAlloc for Tally {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocs.fetch_add(1, Relaxed);
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.zeroed.fetch_add(1, Relaxed);
        System.alloc_zeroed(layout)
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.reallocs.fetch_add(1, Relaxed);
        System.realloc(ptr, layout, new_size)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.frees.fetch_add(1, Relaxed);
        System.dealloc(ptr, layout)
    }
}

static TALLY: Tally = Tally::new();

/// A handle on `TALLY`, so that the program can read what its allocator counted.
struct Handle;

// SAFETY: everything is answered by `TALLY`.
unsafe impl GlobalAlloc for Handle {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TALLY.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        TALLY.alloc_zeroed(layout)
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        TALLY.realloc(ptr, layout, new_size)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        TALLY.dealloc(ptr, layout)
    }
}

#[global_allocator]
static ALLOC: dhat::AllocOver<Handle> = dhat::AllocOver::new(Handle);

const ARENA_BYTES: usize = 1 << 16;

/// Hands out blocks that lie 8 bytes apart and takes none back.
#[repr(align(16))]
struct Bump {
    arena: std::cell::UnsafeCell<[u8; ARENA_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: every byte of the arena is handed out once.
unsafe impl Sync for Bump {}

// SAFETY: blocks are disjoint, as large as asked and aligned to 8 bytes, which is all the program asks for.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size().next_multiple_of(8);
        let start = self.used.fetch_add(size, Relaxed);
        if layout.align() > 8 || start + size > ARENA_BYTES {
            return std::ptr::null_mut();
        }
        self.arena.get().cast::<u8>().add(start)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

static BUMP: dhat::AllocOver<Bump> = dhat::AllocOver::new(Bump {
    arena: std::cell::UnsafeCell::new([0; ARENA_BYTES]),
    used: AtomicUsize::new(0),
});

fn calls() -> [usize; 4] {
    [&TALLY.allocs, &TALLY.zeroed, &TALLY.reallocs, &TALLY.frees].map(|n| n.load(Relaxed))
}

/// The inner allocator sees each call as the one it is, and each is counted.
fn forwarding() {
    let profiler = dhat::Profiler::builder().testing().build();
    let before = calls();
    let mut grown = black_box(Vec::<u8>::with_capacity(100));
    grown.reserve_exact(200);
    let zeroed = black_box(vec![0u8; 1000]);
    drop(grown);
    let after = calls();
    let stats = dhat::HeapStats::get();
    drop(zeroed);
    drop(profiler);
    assert_eq!(
        std::array::from_fn(|idx| after[idx] - before[idx]),
        [1, 1, 1, 1]
    );
    assert_eq!((stats.total_blocks, stats.total_bytes), (3, 1300));
    assert_eq!((stats.curr_blocks, stats.curr_bytes), (1, 1000));
    assert_eq!((stats.max_blocks, stats.max_bytes), (2, 1200));
}

/// Neighbors in one 16-byte granule are two blocks.
fn eight_bytes_apart() {
    let profiler = dhat::Profiler::builder().testing().build();
    let layout = Layout::from_size_align(8, 8).expect("a valid layout");
    // SAFETY: the layout has a size.
    let blocks: [*mut u8; 64] = std::array::from_fn(|_| unsafe { BUMP.alloc(layout) });
    let all = dhat::HeapStats::get();
    for block in blocks.iter().step_by(2) {
        // SAFETY: the block was allocated with this layout.
        unsafe { BUMP.dealloc(*block, layout) };
    }
    let half = dhat::HeapStats::get();
    drop(profiler);
    assert_eq!(blocks[1] as usize - blocks[0] as usize, 8);
    assert_eq!((all.curr_blocks, all.curr_bytes), (64, 512));
    assert_eq!((half.curr_blocks, half.curr_bytes), (32, 256));
    assert_eq!((half.total_blocks, half.max_bytes), (64, 512));
}

/// A block that the inner allocator gives out again although it was never freed here is a new block.
fn reused_address() {
    let profiler = dhat::Profiler::new_heap();
    let layout = Layout::from_size_align(48, 8).expect("a valid layout");
    // SAFETY: the layout has a size.
    let first = unsafe { ALLOC.alloc(layout) };
    // SAFETY: the block is the system's; the profiler is not told that it goes.
    unsafe { System.dealloc(first, layout) };
    // SAFETY: the layout has a size.
    let again = unsafe { ALLOC.alloc(layout) };
    let stats = dhat::HeapStats::get();
    // SAFETY: the block was allocated with this layout.
    unsafe { ALLOC.dealloc(again, layout) };
    let freed = dhat::HeapStats::get();
    drop(profiler);
    // The system allocator gives the block that was freed last.
    assert_eq!(first, again);
    assert_eq!((stats.total_blocks, stats.curr_blocks), (2, 1));
    assert_eq!((freed.curr_blocks, freed.curr_bytes), (0, 0));
}

fn main() {
    forwarding();
    eight_bytes_apart();
    reused_address();
}
