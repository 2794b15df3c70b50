//! The one place where the hot rooms meet: guards re-entry, captures the stack, records the event.
//!
//! Everything between setting the guard and setting it back runs inside somebody's allocation: no allocation, no
//! panic, no printing, no lock that anybody can hold while allocating.

#![forbid(unsafe_code)]

use crate::builder_stack::BuilderStack;
use crate::recorder::{LiveBlock, Merged, Mode, PpId, Recorder, ShardId};
use crate::report::StackTag;
use crate::sys::{self, ThreadExit};
use crate::unwind::{Depth, Registers, StackIds, Tracer};
use crate::{modules, unwind};
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence,
};

/// The process's recorder.
pub(crate) static RECORDER: Recorder = Recorder::new();

/// What is recorded at this moment: one of the constants below.
static ACTIVITY: AtomicU8 = AtomicU8::new(IDLE);
const IDLE: u8 = 0;
const HEAP: u8 = 1;
const AD_HOC: u8 = 2;

/// Frames kept of a stack; `usize::MAX` for all. Relaxed: written before the Release store to [`ACTIVITY`], which every
/// reader has seen by the fence in [`is_active`].
static DEPTH: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of the session that runs or ran last; the first is 1. Relaxed: as [`DEPTH`].
static SESSION: AtomicU32 = AtomicU32::new(0);
/// The module generation in which the session that runs or ran last began. Relaxed: as [`DEPTH`].
static FIRST_GENERATION: AtomicU32 = AtomicU32::new(0);
/// The stack of the thread that built the running Profiler.
static BUILDER: BuilderStack = BuilderStack::new();
/// Whether a profiling allocator of this crate was called since the session began. Relaxed: a flag on its own.
static ALLOCATOR_SEEN: AtomicBool = AtomicBool::new(false);
/// Gives back what exiting threads own.
static THREAD_EXIT: ThreadExit = ThreadExit::new();
/// Whether this process is the child of a fork that happened while its parent recorded.
static IS_ORPHAN: AtomicBool = AtomicBool::new(false);
static FORK_HANDLER: Once = Once::new();

thread_local! {
    // Const and without destructor: reaching it neither allocates nor fails, at any moment of a thread's life.
    static THREAD: ThreadState = const { ThreadState::new() };
}

/// What a thread is doing, as far as recording goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Its own work: allocations are recorded.
    Open,
    /// This crate's cold work: allocations are not recorded, frees of tracked blocks are.
    Ignoring,
    /// The hook: it may hold a lock of the recorder's, so even a free must not take one.
    InHook,
}

/// One thread's part of the hook.
struct ThreadState {
    guard: Cell<Guard>,
    shard: Cell<Option<ShardId>>,
    /// Set at the thread's exit; what is allocated later is recorded without thread-owned resources.
    exiting: Cell<bool>,
    /// The last session that this thread built; 0 for none.
    built_session: Cell<u32>,
    tracer: Tracer,
}

impl ThreadState {
    const fn new() -> Self {
        Self {
            guard: Cell::new(Guard::Open),
            shard: Cell::new(None),
            exiting: Cell::new(false),
            built_session: Cell::new(0),
            tracer: Tracer::new(),
        }
    }

    /// Sets the guard and returns what it was. A signal handler on this thread sees every change in program order.
    #[inline(always)]
    fn set_guard(&self, guard: Guard) -> Guard {
        compiler_fence(Ordering::SeqCst);
        let before = self.guard.replace(guard);
        compiler_fence(Ordering::SeqCst);
        before
    }

    #[inline]
    fn shard(&self) -> ShardId {
        match self.shard.get() {
            Some(shard) => shard,
            None => self.join_slow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn join_slow(&self) -> ShardId {
        let is_seen_off = !self.exiting.get() && THREAD_EXIT.arm();
        let shard = match is_seen_off {
            true => RECORDER.join(),
            // Nobody will tell when this thread is gone, so it may own nothing.
            false => {
                self.tracer.release();
                RECORDER.join_as_guest()
            }
        };
        self.shard.set(Some(shard));
        shard
    }

    fn stack_point(&self, registers: Registers) -> PpId {
        let depth = match DEPTH.load(Ordering::Relaxed) {
            usize::MAX => Depth::Unlimited,
            n_frames => Depth::AtMost(n_frames),
        };
        PpId::from_raw(
            self.tracer
                .stack_id(registers, depth, &PointIds { thread: self }),
        )
    }

    /// Records a block that was allocated at `addr`.
    #[inline(never)]
    fn allocated(&self, addr: usize, size: usize, registers: Registers) {
        if self.guard.get() != Guard::Open {
            return allocated_uncounted();
        }
        self.in_hook(|| {
            let shard = self.shard();
            let pp = self.stack_point(registers);
            RECORDER.record_alloc(shard, addr, size, pp)
        });
    }

    /// Records that the block at `addr` is about to be freed.
    #[inline(never)]
    fn freeing(&self, addr: usize) {
        let Some(block) = RECORDER.take(addr) else {
            return;
        };
        match self.guard.get() {
            Guard::InHook => RECORDER.defer_free(block),
            Guard::Open | Guard::Ignoring => {
                self.in_hook(|| RECORDER.record_free(self.shard(), block))
            }
        }
    }

    /// Records that a tracked block is now at `addr` with `new_size` bytes.
    #[inline(never)]
    fn reallocated(&self, block: LiveBlock, addr: usize, new_size: usize) {
        match self.guard.get() {
            Guard::InHook => RECORDER.defer_realloc(block, addr, new_size),
            Guard::Open | Guard::Ignoring => {
                self.in_hook(|| RECORDER.record_realloc(self.shard(), block, addr, new_size))
            }
        }
    }

    /// Runs `record` with the guard in `InHook`, then sets it back.
    #[inline(always)]
    fn in_hook(&self, record: impl FnOnce() -> Merged) {
        let before = self.set_guard(Guard::InHook);
        if record() == Merged::Yes {
            after_merge();
        }
        self.set_guard(before);
    }
}

/// The recorder's program points as the walker sees them: opaque numbers.
struct PointIds<'a> {
    thread: &'a ThreadState,
}

impl StackIds for PointIds<'_> {
    #[inline]
    fn is_current(&self, id: u32) -> bool {
        RECORDER.is_current(PpId::from_raw(id))
    }

    fn intern(&self, frames: &[usize], may_go: bool) -> u32 {
        let is_builder = self.thread.built_session.get() == SESSION.load(Ordering::Relaxed);
        let shares_builder =
            is_builder && frames.last().is_some_and(|frame| BUILDER.contains(*frame));
        let tag = StackTag {
            // Where nothing can be unloaded one generation stands for all, so that a point is not split by others' unloading.
            generation: match may_go {
                true => modules::generation(),
                false => FIRST_GENERATION.load(Ordering::Relaxed),
            },
            shares_builder,
        };
        RECORDER.intern(frames, tag.to_raw()).to_raw()
    }
}

/// Looks for unloaded libraries once a buffer's worth of events.
#[cold]
#[inline(never)]
fn after_merge() {
    unwind::refresh();
}

/// Whether heap blocks are recorded now. Hook-safe.
#[inline(always)]
pub(crate) fn records_blocks() -> bool {
    is_active(HEAP)
}

/// Whether ad hoc events are recorded now. Hook-safe.
#[inline(always)]
pub(crate) fn records_events() -> bool {
    is_active(AD_HOC)
}

#[inline(always)]
fn is_active(activity: u8) -> bool {
    if ACTIVITY.load(Ordering::Relaxed) != activity {
        return false;
    }
    // Pairs with the Release store in `open`: whoever sees "running" sees the tables.
    fence(Ordering::Acquire);
    true
}

// `with` is inlined, and the thread's state found without a call, only around a closure that does nothing but call.

/// Records a block that was allocated at `addr` by the caller whose registers these are. Hook-safe.
#[inline]
pub(crate) fn allocated(addr: usize, size: usize, registers: Registers) {
    THREAD.with(|thread| thread.allocated(addr, size, registers));
}

#[cold]
#[inline(never)]
fn allocated_uncounted() {
    ALLOCATOR_SEEN.store(true, Ordering::Relaxed);
}

/// Records that the block at `addr` is about to be freed. Hook-safe.
#[inline]
pub(crate) fn freeing(addr: usize) {
    THREAD.with(|thread| thread.freeing(addr));
}

/// A block whose word is cleared while the inner allocator reallocates it.
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    addr: usize,
    /// `None` for a block that is not tracked.
    block: Option<LiveBlock>,
}

/// Clears the word of a block that is about to be reallocated. Hook-safe.
pub(crate) fn reallocating(addr: usize) -> Moving {
    Moving {
        addr,
        block: RECORDER.take(addr),
    }
}

/// Puts the word back: the inner allocator left the block as it was. Hook-safe.
#[cold]
#[inline(never)]
pub(crate) fn realloc_failed(moving: Moving) {
    if let Some(block) = moving.block {
        RECORDER.put_back(moving.addr, block);
    }
}

/// Records that a block is now at `addr` with `new_size` bytes. One that was not tracked is a new block, allocated by the
/// caller whose registers these are. Hook-safe.
#[inline]
pub(crate) fn reallocated(moving: Moving, addr: usize, new_size: usize, registers: Registers) {
    match moving.block {
        Some(block) => THREAD.with(|thread| thread.reallocated(block, addr, new_size)),
        None => allocated(addr, new_size, registers),
    }
}

/// Records an ad hoc event of the caller whose registers these are. Hook-safe.
pub(crate) fn ad_hoc_event(weight: usize, registers: Registers) {
    THREAD.with(|thread| {
        if thread.guard.get() == Guard::Open {
            thread.in_hook(|| {
                let shard = thread.shard();
                let pp = thread.stack_point(registers);
                RECORDER.record_event(shard, weight, pp)
            });
        }
    });
}

/// While it lives, the current thread's allocations are not recorded; frees of tracked blocks still are.
pub(crate) struct Ignoring {
    before: Guard,
}

impl Ignoring {
    /// Begins to ignore the current thread's allocations. Hook-safe.
    pub(crate) fn begin() -> Self {
        Self {
            before: THREAD.with(|thread| match thread.guard.get() {
                Guard::Open => thread.set_guard(Guard::Ignoring),
                inner => inner,
            }),
        }
    }
}

impl Drop for Ignoring {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.set_guard(self.before));
    }
}

/// Begins a session on the current thread, whose stack is `builder_frames`. False, and nothing begins, when there is no
/// memory for the tables. The caller makes sure that no session runs and ignores its own allocations. Not hook-safe.
pub(crate) fn open(mode: Mode, depth: Depth, builder_frames: &[usize]) -> bool {
    THREAD_EXIT.install(thread_exit);
    FORK_HANDLER.call_once(|| sys::at_fork_in_child(in_forked_child));
    unwind::reset_counts();
    unwind::refresh();
    FIRST_GENERATION.store(modules::generation(), Ordering::Relaxed);
    BUILDER.set(builder_frames);
    let n_frames = match depth {
        Depth::Unlimited => usize::MAX,
        Depth::AtMost(n_frames) => n_frames,
    };
    DEPTH.store(n_frames, Ordering::Relaxed);
    ALLOCATOR_SEEN.store(false, Ordering::Relaxed);
    let session = SESSION.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    THREAD.with(|thread| thread.built_session.set(session));
    if !RECORDER.start(mode) {
        return false;
    }
    let activity = match mode {
        Mode::Heap => HEAP,
        Mode::AdHoc => AD_HOC,
    };
    // Release: pairs with the fence in `is_active`.
    ACTIVITY.store(activity, Ordering::Release);
    // An allocation that is ignored, only to see whether it comes through this crate.
    drop(std::hint::black_box(Box::new(0_u8)));
    true
}

/// Ends recording; what threads in the hook still record is dropped by the recorder once it is stopped. Hook-safe.
pub(crate) fn close() {
    // Relaxed: late readers are harmless.
    ACTIVITY.store(IDLE, Ordering::Relaxed);
}

/// Whether a profiling allocator of this crate was called in the session that runs or ran last. Hook-safe.
pub(crate) fn allocator_seen() -> bool {
    ALLOCATOR_SEEN.load(Ordering::Relaxed)
}

/// Whether this process is the child of a fork that happened while its parent recorded. Such a child inherits a session that
/// it must not touch: threads that it does not have may hold the session's locks.
pub(crate) fn is_orphan() -> bool {
    // Relaxed: set before the child runs anything else.
    IS_ORPHAN.load(Ordering::Relaxed)
}

/// Ends recording in the child of a fork: its blocks are not its parent's.
extern "C" fn in_forked_child() {
    if ACTIVITY.swap(IDLE, Ordering::Relaxed) != IDLE {
        IS_ORPHAN.store(true, Ordering::Relaxed);
    }
}

/// Gives back what the exiting thread owns.
extern "C" fn thread_exit(_: *mut std::ffi::c_void) {
    THREAD.with(|thread| {
        thread.in_hook(|| {
            thread.exiting.set(true);
            thread.tracer.release();
            if let Some(shard) = thread.shard.take() {
                RECORDER.leave(shard);
            }
            Merged::No
        });
    });
}
