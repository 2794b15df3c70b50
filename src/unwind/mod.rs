//! From registers to return addresses: the call stack of the current thread.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub(crate) mod arch;

pub(crate) use arch::Registers;

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
    /// Whether a number given out earlier still stands for its stack.
    fn is_current(&self, id: u32) -> bool;

    /// The number of a stack: return addresses, innermost first, cut to the depth asked for. `is_whole` tells that the walk
    /// reached the thread's outermost frame within that depth.
    fn intern(&self, frames: &[usize], is_whole: bool) -> u32;
}

/// Why walks ended before the outermost frame; counts since the last [`reset_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkCounts {
    /// Walks that ended in code without unwind rules, where no plausible frame record was found either.
    pub(crate) n_no_rule: u64,
    /// Walks that ended at a table entry that asks for more than the rules can say.
    pub(crate) n_unsupported_rule: u64,
    /// Walks that ended because the next frame was not on a readable stack or did not lie above the last.
    pub(crate) n_bad_stack: u64,
}

/// One thread's walker: its stack bounds, its memo, its buffer for deep stacks. Const-made, has no destructor.
pub(crate) struct Tracer {}

impl Tracer {
    /// Makes the walker of a thread that has not walked yet.
    pub(crate) const fn new() -> Self {
        Self {}
    }

    /// The number of the stack that starts at `registers`, which were read in a caller that has not returned. From the memo
    /// when it knows the stack, else by a walk and `ids.intern`. Hook-safe.
    pub(crate) fn stack_id(
        &self,
        _registers: Registers,
        _depth: Depth,
        _ids: &impl StackIds,
    ) -> u32 {
        todo!()
    }

    /// Gives the thread's memo and buffers back; later walks of this thread do without. Hook-safe.
    pub(crate) fn release(&self) {
        todo!()
    }
}

/// Makes walks possible: resolves what the loader offers. Not hook-safe; to be called before the first walk of a session.
pub(crate) fn prepare() {
    todo!()
}

/// Compares the loader's unload counter with the one seen last. On a change, starts a new module generation and forgets
/// all cached rules and memos. Hook-safe.
pub(crate) fn refresh() {
    todo!()
}

/// The reasons for short stacks since the last [`reset_counts`].
pub(crate) fn counts() -> WalkCounts {
    todo!()
}

/// Sets the counts to zero.
pub(crate) fn reset_counts() {
    todo!()
}

/// The stack that starts at `registers`: return addresses, innermost first. Not hook-safe.
pub(crate) fn trace(_registers: Registers, _depth: Depth) -> Vec<usize> {
    todo!()
}
