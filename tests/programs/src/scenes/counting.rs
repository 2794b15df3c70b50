//! Programs of a few allocator calls, each exact to the block, made through `GlobalAlloc` itself.

use super::ALLOC;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::OsStr;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A block that is freed only where a scene says so.
struct Block {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}

impl Block {
    #[inline(always)]
    fn aligned(size: usize, align: usize) -> Block {
        let layout = Layout::from_size_align(size, align).expect("a valid layout");
        // SAFETY: the system allocator below answers layouts of no bytes with a block, too.
        let ptr = unsafe { ALLOC.alloc(layout) };
        assert!(!ptr.is_null());
        Block { ptr, layout }
    }

    #[inline(always)]
    fn resize(&mut self, size: usize) -> bool {
        // SAFETY: `ptr` was allocated with `layout`.
        let moved = unsafe { ALLOC.realloc(self.ptr, self.layout, size) };
        if moved.is_null() {
            return false;
        }
        self.ptr = moved;
        self.layout = Layout::from_size_align(size, self.layout.align()).expect("a valid layout");
        true
    }

    fn free(self) {
        // SAFETY: `ptr` was allocated with `layout`.
        unsafe { ALLOC.dealloc(self.ptr, self.layout) };
    }
}

/// A program point that its function's name tells.
#[inline(never)]
fn first(size: usize, align: usize) -> Block {
    black_box(Block::aligned(size, align))
}

/// Another one.
#[inline(never)]
fn second(size: usize, align: usize) -> Block {
    black_box(Block::aligned(size, align))
}

/// Resizes somewhere else than where blocks are made.
#[inline(never)]
fn resized(block: &mut Block, size: usize) -> bool {
    black_box(block.resize(black_box(size)))
}

#[inline(never)]
fn zeroed(size: usize) -> *mut u8 {
    let layout = Layout::from_size_align(size, 16).expect("a valid layout");
    // SAFETY: the layout has a size.
    black_box(unsafe { ALLOC.alloc_zeroed(layout) })
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process's pages");
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn heap() -> dhat::Profiler {
    dhat::Profiler::new_heap()
}

/// Runs the program called `name`; the profile goes to the default file.
pub fn run(name: &OsStr) {
    match name.to_str().unwrap() {
        "equal_global_peaks" => equal_global_peaks(),
        "equal_point_peaks" => equal_point_peaks(),
        "realloc_tracked" => realloc_tracked(),
        "realloc_untracked" => realloc_untracked(),
        "realloc_fails" => realloc_fails(),
        "alloc_fails" => alloc_fails(),
        "lifetime" => lifetime(),
        "layouts" => layouts(),
        "zeroed" => lazy_zeroes(),
        "other_thread" => other_thread(),
        "sequential" => sequential(),
        "testing" => testing(),
        other => panic!("no such program: {other}"),
    }
}

fn equal_global_peaks() {
    let profiler = heap();
    let a = [first(50, 1), first(50, 1)];
    a.into_iter().for_each(Block::free);
    let b = second(100, 1);
    let stats = dhat::HeapStats::get();
    b.free();
    drop(profiler);
    println!("stats={stats:?}");
}

fn equal_point_peaks() {
    let profiler = heap();
    let mut held = black_box([None, None]);
    // One call site, so that all three blocks share a program point.
    for round in black_box([[Some(50), Some(50)], [Some(100), None]]) {
        for (slot, size) in held.iter_mut().zip(round) {
            *slot = size.map(|size| first(size, 1));
        }
        held.iter_mut()
            .filter_map(Option::take)
            .for_each(Block::free);
    }
    drop(profiler);
}

fn realloc_tracked() {
    let profiler = heap();
    let mut a = first(100, 1);
    assert!(resized(&mut a, 300));
    let grown = dhat::HeapStats::get();
    assert!(resized(&mut a, 50));
    let shrunk = dhat::HeapStats::get();
    drop(profiler);
    a.free();
    println!("grown={grown:?}\nshrunk={shrunk:?}");
}

fn realloc_untracked() {
    let mut a = first(100, 1);
    let b = first(70, 1);
    let profiler = heap();
    b.free();
    assert!(resized(&mut a, 300));
    let stats = dhat::HeapStats::get();
    drop(profiler);
    a.free();
    println!("stats={stats:?}");
}

fn realloc_fails() {
    let profiler = heap();
    let mut a = first(100, 1);
    let refused = !resized(&mut a, isize::MAX as usize - 4096);
    let kept = dhat::HeapStats::get();
    a.free();
    let freed = dhat::HeapStats::get();
    drop(profiler);
    println!("refused={refused}\nkept={kept:?}\nfreed={freed:?}");
}

fn alloc_fails() {
    let profiler = heap();
    let layout = Layout::from_size_align(isize::MAX as usize - 4096, 1).unwrap();
    // SAFETY: the layout has a size.
    let refused = black_box(unsafe { ALLOC.alloc(layout) }).is_null();
    let stats = dhat::HeapStats::get();
    drop(profiler);
    println!("refused={refused}\nstats={stats:?}");
}

fn lifetime() {
    const LIFE: Duration = Duration::from_millis(40);
    let profiler = heap();
    let mut a = first(100, 1);
    let start = Instant::now();
    while start.elapsed() < LIFE {}
    assert!(resized(&mut a, 200));
    a.free();
    drop(profiler);
    println!("life_us={}", LIFE.as_micros());
}

fn layouts() {
    let profiler = heap();
    let mut wide = first(1, 4096);
    let aligned = wide.ptr as usize & 4095 == 0;
    assert!(resized(&mut wide, 5000));
    let still_aligned = wide.ptr as usize & 4095 == 0;
    let empty = [second(0, 1), second(0, 64)];
    let live = dhat::HeapStats::get();
    wide.free();
    empty.into_iter().for_each(Block::free);
    let freed = dhat::HeapStats::get();
    drop(profiler);
    println!("aligned={}", aligned && still_aligned);
    println!("live={live:?}\nfreed={freed:?}");
}

fn lazy_zeroes() {
    const SIZE: usize = 128 << 20;
    let profiler = heap();
    let before = resident_bytes();
    let ptr = zeroed(SIZE);
    let untouched = resident_bytes().saturating_sub(before);
    let mut sum = 0u64;
    for offset in (0..SIZE).step_by(4096) {
        // SAFETY: the block has SIZE bytes.
        let byte = unsafe { ptr.add(offset) };
        // SAFETY: as above, and nobody else has the block.
        sum += u64::from(unsafe { byte.read() });
        // SAFETY: as above.
        unsafe { byte.write(1) };
    }
    let touched = resident_bytes().saturating_sub(before);
    drop(profiler);
    println!("sum={sum}\nuntouched={untouched}\ntouched={touched}\nsize={SIZE}");
}

fn other_thread() {
    let profiler = heap();
    let mut blocks: Vec<Block> = (0..black_box(10)).map(|_| first(10, 1)).collect();
    let rest = blocks.split_off(7);
    let counts = move || {
        let before = dhat::HeapStats::get();
        rest.into_iter().for_each(Block::free);
        (before, dhat::HeapStats::get())
    };
    let (before, after) = std::thread::spawn(counts).join().unwrap();
    drop(profiler);
    // Three blocks of the scene and the vector that held them.
    println!("freed_blocks={}", before.curr_blocks - after.curr_blocks);
    blocks.into_iter().for_each(Block::free);
}

fn sequential() {
    let mut lines = String::with_capacity(4096);
    for size in [100, 1000, 10] {
        let profiler = dhat::Profiler::builder().testing().build();
        let a = first(size, 1);
        let b = first(size, 1);
        a.free();
        let stats = dhat::HeapStats::get();
        drop(profiler);
        b.free();
        lines += &format!("of_{size}={stats:?}\n");
    }
    let profiler = heap();
    drop(profiler);
    print!("{lines}");
}

fn testing() {
    let mut profiler = dhat::Profiler::builder().testing().eprint_json().build();
    let a = first(100, 1);
    let memory = profiler.drop_and_get_memory_output();
    std::mem::forget(profiler);
    a.free();
    drop(dhat::Profiler::builder().testing().build());
    println!("memory={memory:?}");
}
