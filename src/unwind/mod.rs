//! From registers to return addresses: the stack of the current thread.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub(crate) mod arch;
mod cfi;
mod frame_pointer;
mod frames;
mod memo;
mod memory;
mod row;
mod rule;
mod rule_cache;
#[allow(unsafe_code)]
mod stack;
mod walk;

pub(crate) use arch::Registers;

use crate::modules;
use crate::sys::MappedWords;
use frames::Frames;
use memo::{Memo, Recording};
use memory::{AnyMemory, OwnMemory};
use stack::{Anchor, OwnBounds};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use walk::{Cursor, Stop};

/// How many frames of a stack are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// At most this many, the innermost ones.
    AtMost(usize),
    /// All of them.
    Unlimited,
}

/// Gives numbers to stacks; what a number means is the caller's.
pub(crate) trait StackIds {
    /// Whether a number given out earlier still stands for its stack. Hook-safe.
    fn is_current(&self, id: u32) -> bool;

    /// The number of a stack: return addresses, innermost first, cut to the depth asked for. `may_go` tells that some of them
    /// may mean something else in another module generation. Hook-safe.
    fn intern(&self, frames: &[usize], may_go: bool) -> u32;
}

/// What walks could not do, and why; counts since the last [`reset_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkCounts {
    /// Walks that ended in code without unwind rules, where no plausible frame record was found either.
    pub(crate) n_no_rule: u64,
    /// Walks that ended at a table entry that asks for more than the rules can say.
    pub(crate) n_unsupported_rule: u64,
    /// Walks that ended because the next frame was not on a readable stack or did not lie above the last.
    pub(crate) n_bad_stack: u64,
    /// Walks that went on behind code without unwind rules, by frame records that looked plausible; not short, but less
    /// certain.
    pub(crate) n_guessed: u64,
}

// Relaxed everywhere: the counts are independent of each other and of everything else.
static N_NO_RULE: AtomicU64 = AtomicU64::new(0);
static N_UNSUPPORTED_RULE: AtomicU64 = AtomicU64::new(0);
static N_BAD_STACK: AtomicU64 = AtomicU64::new(0);
static N_GUESSED: AtomicU64 = AtomicU64::new(0);

/// One thread's walker: its stack bounds, its memo, its buffer for deep stacks. Const-made, has no destructor.
pub(crate) struct Tracer {
    /// Empty before the first walk.
    bounds: Cell<OwnBounds>,
    is_started: Cell<bool>,
    memo: Cell<Option<Memo>>,
    spill: Cell<Option<ManuallyDrop<MappedWords>>>,
    is_released: Cell<bool>,
}

impl Tracer {
    /// Makes the walker of a thread that has not walked yet.
    pub(crate) const fn new() -> Self {
        Self {
            bounds: Cell::new(OwnBounds::EMPTY),
            is_started: Cell::new(false),
            memo: Cell::new(None),
            spill: Cell::new(None),
            is_released: Cell::new(false),
        }
    }

    /// Makes a walker that never has a memo.
    fn without_memo() -> Self {
        let tracer = Self::new();
        tracer.is_released.set(true);
        tracer
    }

    /// The number of the stack that starts at `registers`, which were read in a caller that has not returned. From the memo
    /// when it knows the stack, else by a walk and `ids.intern`. Hook-safe.
    // Never inlined, so that the anchor lies below the frame that `registers` are of.
    #[inline(never)]
    pub(crate) fn stack_id(&self, registers: Registers, depth: Depth, ids: &impl StackIds) -> u32 {
        let anchor = Anchor::new();
        if let Some(memo) = self.memo.get() {
            let stack = self.bounds.get().live_above(&anchor, registers.sp);
            let known = stack.and_then(|stack| memo.find(registers, modules::generation(), &stack));
            if let Some(entry) = known {
                // Other code may have been loaded where the stack was walked through.
                let is_stale = entry.may_go() && refresh();
                if ids.is_current(entry.id()) && !is_stale {
                    return entry.id();
                }
                entry.forget();
            }
        }
        self.walk_and_intern(registers, depth, ids)
    }

    /// Gives the thread's memo and buffers back; later walks of this thread do without. Hook-safe.
    pub(crate) fn release(&self) {
        self.is_released.set(true);
        if let Some(memo) = self.memo.take() {
            memo.release();
        }
        drop(self.spill.take().map(ManuallyDrop::into_inner));
    }

    #[cold]
    #[inline(never)]
    fn walk_and_intern(&self, registers: Registers, depth: Depth, ids: &impl StackIds) -> u32 {
        // Before the walk, so that a change that the walk may not have seen makes its memo stale.
        let generation = modules::generation();
        let bounds = self.start();
        let mut frames = Frames::new(self.spill.take().map(ManuallyDrop::into_inner));
        let max = match depth {
            Depth::AtMost(n_frames) => n_frames,
            Depth::Unlimited => usize::MAX,
        };
        let mut cursor = Cursor::new(registers);
        if max > 0 {
            frames.push(cursor.pc);
        }
        let anchor = Anchor::new();
        let stack = bounds.live_above(&anchor, registers.sp);
        let mut stop = Stop::BadStack;
        let mut recording = None;
        if let Some(stack) = stack {
            let memo = self.memo.get();
            let mut memory = OwnMemory {
                stack,
                recording: memo.map_or(Recording::nowhere(registers.sp), |memo| {
                    memo.record(registers.sp)
                }),
            };
            stop = walk::walk_fast(&mut cursor, &mut memory, &mut frames, max);
            recording = Some(memory.recording);
        }
        let is_complete = matches!(stop, Stop::Outermost | Stop::Depth);
        if matches!(stop, Stop::BadStack | Stop::NoRule) {
            stop = walk_any(&bounds, &mut cursor, &mut frames, max);
        }
        let may_go = frames
            .as_slice()
            .iter()
            .any(|&pc| !modules::is_pinned_code(modules::call_of(pc)));
        if may_go && refresh() {
            // Rules that the walk used may have been those of other code.
            self.keep_spill(frames);
            return self.walk_and_intern(registers, depth, ids);
        }
        count(stop);
        if cursor.is_guessed {
            N_GUESSED.fetch_add(1, Ordering::Relaxed);
        }
        let id = ids.intern(frames.as_slice(), may_go);
        if let (true, Some(memo), Some(recording), Some(stack)) = (
            is_complete && !cursor.is_guessed,
            self.memo.get(),
            recording,
            stack,
        ) {
            memo.insert(registers, generation, &stack, &recording, id, may_go);
        }
        self.keep_spill(frames);
        id
    }

    /// Keeps the mapping of a deep stack for the next one.
    fn keep_spill(&self, frames: Frames) {
        let spill = frames.into_spill();
        if !self.is_released.get() {
            self.spill.set(spill.map(ManuallyDrop::new));
        }
    }

    /// What a thread needs before its first walk.
    fn start(&self) -> OwnBounds {
        if self.is_started.get() {
            return self.bounds.get();
        }
        let bounds = OwnBounds::query();
        self.bounds.set(bounds);
        self.is_started.set(true);
        if !self.is_released.get() {
            self.memo.set(Memo::claim());
        }
        bounds
    }
}

/// Makes walks possible: resolves what the loader offers. Not hook-safe; to be called before the first walk of a session.
pub(crate) fn prepare() {
    modules::prepare();
    memo::prepare();
    refresh();
}

/// Compares the loader's unload counter with the one seen last. On a change, starts a new module generation, forgets all
/// cached rules and memos, and returns true. Takes the loader's lock; never to be called with a lock of ours held. Hook-safe.
pub(crate) fn refresh() -> bool {
    let is_changed = modules::notice_unloading();
    if is_changed {
        // Memos carry the generation, so they are stale by now.
        rule_cache::clear();
    }
    is_changed
}

/// The return addresses of the stack that starts at `registers`, innermost first. Report path only.
pub(crate) fn trace(registers: Registers, depth: Depth) -> Vec<usize> {
    let ids = Collect(RefCell::default());
    Tracer::without_memo().stack_id(registers, depth, &ids);
    ids.0.into_inner()
}

/// What walks could not do since the last [`reset_counts`]. Report path only.
pub(crate) fn counts() -> WalkCounts {
    WalkCounts {
        n_no_rule: N_NO_RULE.load(Ordering::Relaxed),
        n_unsupported_rule: N_UNSUPPORTED_RULE.load(Ordering::Relaxed),
        n_bad_stack: N_BAD_STACK.load(Ordering::Relaxed),
        n_guessed: N_GUESSED.load(Ordering::Relaxed),
    }
}

/// Sets the counts to zero. Hook-safe.
pub(crate) fn reset_counts() {
    for counter in [&N_NO_RULE, &N_UNSUPPORTED_RULE, &N_BAD_STACK, &N_GUESSED] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Takes stacks as they come.
struct Collect(RefCell<Vec<usize>>);

impl StackIds for Collect {
    fn is_current(&self, _id: u32) -> bool {
        false
    }

    fn intern(&self, frames: &[usize], _may_go: bool) -> u32 {
        self.0.replace(frames.to_vec());
        0
    }
}

/// Goes on where the thread's own stack does not lead further.
#[cold]
#[inline(never)]
fn walk_any(bounds: &OwnBounds, cursor: &mut Cursor, frames: &mut Frames, max: usize) -> Stop {
    let mut memory = AnyMemory::new(bounds.range());
    walk::walk(cursor, &mut memory, frames, max)
}

fn count(stop: Stop) {
    let counter = match stop {
        Stop::Outermost | Stop::Depth => return,
        Stop::NoRule => &N_NO_RULE,
        Stop::UnsupportedRule => &N_UNSUPPORTED_RULE,
        Stop::BadStack => &N_BAD_STACK,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
#[allow(unsafe_code)]
mod walker_tests;
