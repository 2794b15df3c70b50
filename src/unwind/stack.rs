//! The current thread's own stack, and the one place that reads its words.

use crate::sys;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<usize>();

/// Where the current thread's own stack lies. Stays on its thread.
#[derive(Clone, Copy)]
pub(super) struct OwnBounds {
    low: usize,
    high: usize,
    not_send: PhantomData<*const ()>,
}

/// The part of the thread's own stack that is in use, from a word in a living frame up to the end: all of it is mapped.
#[derive(Clone, Copy)]
pub(super) struct LiveStack<'anchor> {
    /// Word-aligned.
    start: usize,
    /// At least 1.
    n_words: usize,
    anchor: PhantomData<&'anchor Anchor>,
}

/// A local variable that marks the lowest part of a stack in use.
pub(super) struct Anchor(usize);

impl Anchor {
    /// Makes an anchor to be kept in a local variable.
    #[inline(always)]
    pub(super) fn new() -> Self {
        // A constant would allow the compiler to keep it off the stack.
        Self(std::hint::black_box(0))
    }
}

impl OwnBounds {
    /// Asks the system. Empty bounds when it does not tell, so that no address is on the stack. Hook-safe.
    pub(super) fn query() -> Self {
        let bounds = sys::stack_bounds().unwrap_or(0..0);
        Self {
            low: bounds.start,
            high: bounds.end & !(WORD - 1),
            not_send: PhantomData,
        }
    }

    /// The addresses of the stack.
    pub(super) fn range(&self) -> Range<usize> {
        self.low..self.high
    }

    /// The stack from `anchor` up, if `anchor` is a local variable on it.
    #[inline]
    pub(super) fn live_from<'anchor>(&self, anchor: &'anchor Anchor) -> Option<LiveStack<'anchor>> {
        let start = &raw const anchor.0 as usize;
        let is_inside = start >= self.low && start < self.high;
        is_inside.then(|| LiveStack {
            start,
            n_words: (self.high - start) / WORD,
            anchor: PhantomData,
        })
    }
}

impl LiveStack<'_> {
    /// The word at `addr`; `None` when it is not word-aligned or not inside.
    #[inline]
    pub(super) fn read(&self, addr: usize) -> Option<usize> {
        // By address and not by index, so that the checks are not on the way from one frame to the next.
        self.contains(addr).then(|| self.word(addr))
    }

    /// Whether there is a word at `addr`.
    #[inline]
    pub(super) fn contains(&self, addr: usize) -> bool {
        self.index(addr) < self.n_words
    }

    /// Whether each of `words`, as [`StackWord`] packs them relative to `sp`, is on the stack. Takes the same time whatever
    /// the stack holds.
    #[inline]
    pub(super) fn matches(&self, sp: usize, words: &[AtomicU64]) -> bool {
        let last = self.n_words - 1;
        // The anchor may be a local of the very frame that `sp` is of, a little above it.
        let sp_idx = (sp.wrapping_sub(self.start) as isize >> WORD.trailing_zeros()) as usize;
        let mut differences = 0;
        for word in words {
            // Relaxed: a memo is only written by the thread that reads it.
            let word = StackWord(word.load(Ordering::Relaxed));
            // An index outside cannot come from this stack; the word at the end then decides nothing that could fault.
            let idx = sp_idx.wrapping_add(word.distance()).min(last);
            differences |= self.word(self.start + idx * WORD) ^ word.value();
        }
        differences == 0
    }

    /// The index of the word at `addr`; a huge one when `addr` is below the start or not aligned.
    #[inline]
    fn index(&self, addr: usize) -> usize {
        addr.wrapping_sub(self.start)
            .rotate_right(WORD.trailing_zeros())
    }

    /// The word at `addr`, which the caller has seen to be inside.
    #[inline]
    fn word(&self, addr: usize) -> usize {
        std::debug_assert!(self.contains(addr));
        let addr = addr as *const usize;
        // SAFETY: `live_from` saw that the range starts at a borrowed local of the running thread's own stack and ends
        // where the system says that the stack ends; the stack is contiguous, so each aligned word between is mapped.
        // Volatile, because other frames own the word.
        unsafe { addr.read_volatile() }
    }
}

/// A word of the stack and its place relative to a stack pointer, for [`LiveStack::matches`].
#[derive(Clone, Copy)]
pub(super) struct StackWord(pub(super) u64);

const VALUE_BITS: u32 = 47;

impl StackWord {
    /// Packs `value`, found at `addr`; `None` when the value has more bits than a user-space address has, or when `addr` is
    /// not within a megabyte above `sp`.
    #[inline]
    pub(super) fn new(sp: usize, addr: usize, value: usize) -> Option<Self> {
        let distance = (addr.wrapping_sub(sp) / WORD) as u64;
        let fits = distance >> (64 - VALUE_BITS) | value as u64 >> VALUE_BITS == 0;
        fits.then_some(Self(distance << VALUE_BITS | value as u64))
    }

    #[inline]
    fn value(self) -> usize {
        (self.0 & ((1 << VALUE_BITS) - 1)) as usize
    }

    #[inline]
    fn distance(self) -> usize {
        (self.0 >> VALUE_BITS) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_the_live_part_or_between_words_are_not_read() {
        let anchor = Anchor(std::hint::black_box(42));
        let bounds = OwnBounds::query();
        let stack = bounds.live_from(&anchor).unwrap();
        let addr = &raw const anchor.0 as usize;
        std::assert_eq!(stack.read(addr), Some(42));
        std::assert_eq!(stack.read(addr - 8), None);
        std::assert_eq!(stack.read(addr + 1), None);
        std::assert_eq!(stack.read(bounds.range().end), None);
        std::assert!(stack.read(bounds.range().end - 8).is_some());
        std::assert_eq!(stack.read(usize::MAX - 7), None);
    }

    #[test]
    fn a_value_on_the_heap_anchors_no_stack() {
        let boxed = Box::new(Anchor::new());
        std::assert!(OwnBounds::query().live_from(&boxed).is_none());
    }

    #[test]
    fn matching_tells_equal_words_from_changed_and_moved_ones() {
        let words = std::hint::black_box([Anchor(7), Anchor(8), Anchor(9)]);
        let bounds = OwnBounds::query();
        let stack = bounds.live_from(&words[0]).unwrap();
        let base = &raw const words as usize;
        let pack =
            |at: usize, value| AtomicU64::new(StackWord::new(base, base + at, value).unwrap().0);
        std::assert!(stack.matches(base, &[pack(16, 9), pack(0, 7), pack(8, 8)]));
        std::assert!(!stack.matches(base, &[pack(16, 9), pack(0, 8)]));
        std::assert!(!stack.matches(base, &[pack(8, 9)]));
        let above = bounds.range().end - base;
        std::assert!(!stack.matches(base, &[pack(0, 7), pack(above, 7_777)]));
    }

    #[test]
    fn words_that_cannot_be_packed_are_refused() {
        std::assert!(StackWord::new(64, 64, 1 << 47).is_none());
        std::assert!(StackWord::new(64, 64 + (1 << 20), 1).is_none());
        std::assert!(StackWord::new(64, 56, 1).is_none());
        std::assert!(StackWord::new(64, 56 + (1 << 20), (1 << 47) - 1).is_some());
    }
}
