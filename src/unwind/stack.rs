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
    anchor: PhantomData<&'anchor usize>,
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
    pub(super) fn live_from<'anchor>(&self, anchor: &'anchor usize) -> Option<LiveStack<'anchor>> {
        let start = &raw const *anchor as usize;
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
        let idx = self.index(addr);
        if idx >= self.n_words {
            return None;
        }
        Some(self.word(idx))
    }

    /// Whether each of `words` describes the stack as it is: the first one relative to `sp`, each next one relative to the
    /// word before it, as [`StackWord`] packs them. Takes the same time whatever the stack holds.
    #[inline]
    pub(super) fn matches(&self, sp: usize, words: &[AtomicU64]) -> bool {
        let last = self.n_words - 1;
        let mut idx = self.index(sp);
        let mut differences = 0;
        for word in words {
            // Relaxed: a memo is only written by the thread that reads it.
            let word = StackWord(word.load(Ordering::Relaxed));
            idx = idx.wrapping_add(word.distance() as usize);
            // An index outside cannot come from this stack; the clamped word then decides nothing that could fault.
            differences |= self.word(idx.min(last)) ^ word.value();
        }
        differences == 0
    }

    /// The index of the word at `addr`; a huge one when `addr` is below the start or not aligned.
    #[inline]
    fn index(&self, addr: usize) -> usize {
        addr.wrapping_sub(self.start)
            .rotate_right(WORD.trailing_zeros())
    }

    /// The word at `idx`, which the caller keeps below `n_words`.
    #[inline]
    fn word(&self, idx: usize) -> usize {
        std::debug_assert!(idx < self.n_words);
        let addr = (self.start + idx * WORD) as *const usize;
        // SAFETY: `live_from` saw that the range starts at a borrowed local of the running thread's own stack and ends
        // where the system says that the stack ends; the stack is contiguous, so each aligned word between is mapped.
        // Volatile, because other frames own the word.
        unsafe { addr.read_volatile() }
    }
}

/// A word of the stack and its place relative to the word before it, for [`LiveStack::matches`].
#[derive(Clone, Copy)]
pub(super) struct StackWord(pub(super) u64);

const DISTANCE_BITS: u32 = 17;

impl StackWord {
    /// Packs `value`, found at `addr`; `None` when the value has more bits than a user-space address has, or when the
    /// distance is above half a megabyte.
    #[inline]
    pub(super) fn new(previous: usize, addr: usize, value: usize) -> Option<Self> {
        let distance = (addr.wrapping_sub(previous).cast_signed() >> WORD.trailing_zeros()) as i64;
        let low = distance.cast_unsigned() & ((1 << DISTANCE_BITS) - 1);
        let word = Self((value as u64) << DISTANCE_BITS | low);
        (word.value() == value && word.distance() == distance).then_some(word)
    }

    #[inline]
    fn value(self) -> usize {
        (self.0 >> DISTANCE_BITS) as usize
    }

    #[inline]
    fn distance(self) -> i64 {
        (self.0 << (64 - DISTANCE_BITS)).cast_signed() >> (64 - DISTANCE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_the_live_part_or_between_words_are_not_read() {
        let anchor = 42_usize;
        let bounds = OwnBounds::query();
        let stack = bounds.live_from(&anchor).unwrap();
        let addr = &raw const anchor as usize;
        std::assert_eq!(stack.read(addr), Some(42));
        std::assert_eq!(stack.read(addr - 8), None);
        std::assert_eq!(stack.read(addr + 1), None);
        std::assert_eq!(stack.read(bounds.range().end), None);
        std::assert!(stack.read(bounds.range().end - 8).is_some());
        std::assert_eq!(stack.read(usize::MAX - 7), None);
    }

    #[test]
    fn a_value_on_the_heap_anchors_no_stack() {
        let boxed = Box::new(1_usize);
        std::assert!(OwnBounds::query().live_from(&boxed).is_none());
    }

    #[test]
    fn matching_tells_equal_words_from_changed_and_moved_ones() {
        let words = [7_usize, 8, 9];
        let bounds = OwnBounds::query();
        let stack = bounds.live_from(&words[0]).unwrap();
        let base = &raw const words as usize;
        let pack = |prev: usize, at: usize, value| {
            AtomicU64::new(StackWord::new(base + prev, base + at, value).unwrap().0)
        };
        std::assert!(stack.matches(base, &[pack(0, 16, 9), pack(16, 0, 7), pack(0, 8, 8)]));
        std::assert!(!stack.matches(base, &[pack(0, 16, 9), pack(16, 0, 8)]));
        std::assert!(!stack.matches(base, &[pack(0, 8, 9)]));
        let above = bounds.range().end - base;
        std::assert!(!stack.matches(base, &[pack(0, 0, 7), pack(0, above, 7_777)]));
    }

    #[test]
    fn words_that_cannot_be_packed_are_refused() {
        std::assert!(StackWord::new(0, 8, 1 << 47).is_none());
        std::assert!(StackWord::new(0, 1 << 19, 1).is_none());
        std::assert!(StackWord::new(1 << 19, 0, (1 << 47) - 1).is_some());
    }
}
