//! The current thread's own stack, and the one place that reads its words.

use crate::sys;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
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
pub(super) struct Anchor(MaybeUninit<usize>);

impl Anchor {
    /// Makes an anchor to be kept in a local variable.
    #[inline(always)]
    pub(super) fn new() -> Self {
        // Only its address counts.
        Self(MaybeUninit::uninit())
    }
}

impl OwnBounds {
    /// No stack.
    pub(super) const EMPTY: Self = Self {
        low: 0,
        high: 0,
        not_send: PhantomData,
    };

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

    /// The stack from `sp` up, if `sp` is word-aligned and lies on it, above `anchor`, a local variable on it.
    #[inline]
    pub(super) fn live_above<'anchor>(
        &self,
        anchor: &'anchor Anchor,
        sp: usize,
    ) -> Option<LiveStack<'anchor>> {
        let lowest = &raw const anchor.0 as usize;
        let is_inside = lowest >= self.low && sp >= lowest && sp < self.high && sp % WORD == 0;
        is_inside.then(|| LiveStack {
            start: sp,
            n_words: (self.high - sp) / WORD,
            anchor: PhantomData,
        })
    }
}

impl LiveStack<'_> {
    /// The index of the word at `addr`, which need not be inside, above the word at `sp`.
    #[inline]
    pub(super) fn index_above(sp: usize, addr: usize) -> u64 {
        (addr.wrapping_sub(sp) / WORD) as u64
    }

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

    /// Whether the stack holds all words of `pairs`, which are a word's index above the start and its value each. They may
    /// hold anything; an index outside the stack is never read and never matches.
    #[inline(always)]
    pub(super) fn matches(&self, pairs: &[AtomicU64]) -> bool {
        // Relaxed: a memo is only written by the thread that reads it.
        let is_at = |pair: &[AtomicU64]| {
            let idx = pair[0].load(Ordering::Relaxed) as usize;
            idx < self.n_words && self.holds(idx, pair[1].load(Ordering::Relaxed))
        };
        // Unrolled: the end of the loop costs nearly as much as a word.
        let mut quads = pairs.chunks_exact(8);
        for quad in &mut quads {
            if !(is_at(&quad[0..2])
                && is_at(&quad[2..4])
                && is_at(&quad[4..6])
                && is_at(&quad[6..8]))
            {
                return false;
            }
        }
        let mut rest = quads.remainder().chunks_exact(2);
        rest.all(is_at)
    }

    /// The word with the index `idx` above the start; `None` when it is not inside.
    #[inline(always)]
    pub(super) fn read_above(&self, idx: usize) -> Option<usize> {
        (idx < self.n_words).then(|| self.word(self.start + idx * WORD))
    }

    /// The start of the live part.
    #[inline]
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The address of the word with the index `idx` above the start, which need not be inside.
    #[inline]
    pub(super) fn address_above(&self, idx: usize) -> usize {
        self.start.wrapping_add(idx.wrapping_mul(WORD))
    }

    /// The index of the word at `addr`; a huge one when `addr` is below the start or not aligned.
    #[inline]
    fn index(&self, addr: usize) -> usize {
        addr.wrapping_sub(self.start)
            .rotate_right(WORD.trailing_zeros())
    }

    /// Whether the word with the index `idx`, which the caller has seen to be inside, is `value`.
    #[inline(always)]
    fn holds(&self, idx: usize, value: u64) -> bool {
        let addr = self.start + idx * WORD;
        std::debug_assert!(self.contains(addr));
        // SAFETY: as in `word`. Not volatile: what was read is compared once and not kept, so one instruction can do both.
        let word = unsafe { *(addr as *const usize) };
        word as u64 == value
    }

    /// The word at `addr`, which the caller has seen to be inside.
    #[inline]
    fn word(&self, addr: usize) -> usize {
        std::debug_assert!(self.contains(addr));
        let addr = addr as *const usize;
        // SAFETY: `live_above` saw that the range lies between a borrowed local of the running thread's own stack and where
        // the system says that the stack ends; the stack is contiguous, so each aligned word between is mapped.
        // Volatile, because other frames own the word.
        unsafe { addr.read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl OwnBounds {
        fn live_from<'anchor>(&self, anchor: &'anchor Anchor) -> Option<LiveStack<'anchor>> {
            self.live_above(anchor, &raw const anchor.0 as usize)
        }
    }

    /// An anchor with a value that can be looked for.
    fn anchor(value: usize) -> Anchor {
        Anchor(MaybeUninit::new(std::hint::black_box(value)))
    }

    #[test]
    fn words_outside_the_live_part_or_between_words_are_not_read() {
        let anchor = anchor(42);
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
        let words = std::hint::black_box([7, 8, 9].map(anchor));
        let bounds = OwnBounds::query();
        let stack = bounds.live_from(&words[0]).unwrap();
        let base = &raw const words as usize;
        let check = |pairs: &[(usize, usize)]| {
            let words: Vec<_> = pairs
                .iter()
                .flat_map(|&(idx, value)| [idx as u64, value as u64].map(AtomicU64::new))
                .collect();
            stack.matches(&words)
        };
        let n_words = (bounds.range().end - base) / WORD;
        let wrong = [
            (0, 8),
            (1, 9),
            (1, 8 | 1 << 63),
            (n_words, 7),
            (n_words + 1, 7),
            (usize::MAX / WORD, 7),
            (usize::MAX, 7),
        ];
        for len in 0..13 {
            let equal: Vec<_> = (0..len)
                .map(|at| [(2, 9), (0, 7), (1, 8)][at % 3])
                .collect();
            std::assert!(check(&equal), "{len}");
            for at in 0..len {
                for pair in wrong {
                    let mut pairs = equal.clone();
                    pairs[at] = pair;
                    std::assert!(!check(&pairs), "{pair:?} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn a_stack_pointer_makes_a_live_stack_only_above_the_anchor_and_aligned() {
        let anchors = std::hint::black_box([1, 2, 3].map(anchor));
        let bounds = OwnBounds::query();
        let base = &raw const anchors as usize;
        let above = |sp| bounds.live_above(&anchors[1], sp);
        std::assert!(above(base).is_none());
        std::assert_eq!(above(base + 8).unwrap().read(base + 8), Some(2));
        std::assert_eq!(above(base + 16).unwrap().read(base + 16), Some(3));
        std::assert_eq!(above(base + 16).unwrap().read(base + 8), None);
        std::assert!(above(base + 12).is_none());
        std::assert!(above(bounds.range().end).is_none());
        let last = bounds.range().end - 8;
        std::assert!(above(last).unwrap().read(last).is_some());
        std::assert!(above(last).unwrap().read(last + 8).is_none());
        let boxed = Box::new(anchor(4));
        std::assert!(bounds.live_above(&boxed, base).is_none());
    }
}
