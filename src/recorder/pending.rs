//! Events of signal handlers that interrupt the hook: a fixed list that takes no lock.
//!
//! A slot's first word is its state: free, claimed, or the first word of an event. Whoever claims a slot writes the rest and
//! then publishes the first word; the ledger's holder collects what is published.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::event::WIDE_WORDS;
use super::shard::{BUFFER_WORDS, Buffer};
use super::words::Slot;

const N_SLOTS: usize = 256;
const FREE: u64 = 0;
/// Differs from every event's first word, whose kind bits say "wide".
const CLAIMED: u64 = 1;

/// Events that wait for the next cut.
pub(super) struct Pending {
    slots: [[AtomicU64; WIDE_WORDS]; N_SLOTS],
    /// Only tells whether looking at the slots is worth it: their own first words order everything.
    n_published: AtomicU32,
    /// Relaxed: a counter on its own.
    n_lost: AtomicU64,
    /// Where the collected events are sorted.
    sorted: Slot<Buffer>,
}

const _: () = std::assert!(N_SLOTS * WIDE_WORDS <= BUFFER_WORDS);

impl Pending {
    /// Makes an empty list. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            slots: [const { [const { AtomicU64::new(FREE) }; WIDE_WORDS] }; N_SLOTS],
            n_published: AtomicU32::new(0),
            n_lost: AtomicU64::new(0),
            sorted: Slot::new(),
        }
    }

    /// Makes room for collecting; the count of lost events starts from zero. False without memory.
    pub(super) fn restart(&self) -> bool {
        self.n_lost.store(0, Ordering::Relaxed);
        self.sorted.fill().is_some()
    }

    /// Adds an event; false if the list is full, which is counted. Async-signal-safe.
    pub(super) fn push(&self, event: [u64; WIDE_WORDS]) -> bool {
        for slot in &self.slots {
            // Acquire pairs with the Release in `collect`: the slot's words were read before it became free.
            let claimed =
                slot[0].compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            for (word, value) in slot.iter().zip(event).skip(1) {
                word.store(value, Ordering::Relaxed);
            }
            // Release pairs with the Acquire in `collect`.
            slot[0].store(event[0], Ordering::Release);
            self.n_published.fetch_add(1, Ordering::Release);
            return true;
        }
        self.n_lost.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Takes all published events out and returns them in the order of their first words, none of which is below `floor`,
    /// with the number of words. The caller holds the ledger.
    pub(super) fn collect(&self, floor: u64) -> Option<(&'static Buffer, usize)> {
        if self.n_published.load(Ordering::Acquire) == 0 {
            return None;
        }
        let sorted = self.sorted.get()?;
        let mut n_words = 0;
        for slot in &self.slots {
            // Acquire pairs with the Release in `push`.
            let first = slot[0].load(Ordering::Acquire);
            if first == FREE || first == CLAIMED {
                continue;
            }
            let rest: [u64; WIDE_WORDS - 1] =
                std::array::from_fn(|word_idx| slot[word_idx + 1].load(Ordering::Relaxed));
            // Release pairs with the Acquire in `push`.
            slot[0].store(FREE, Ordering::Release);
            self.n_published.fetch_sub(1, Ordering::Relaxed);
            let [second, third, fourth] = rest;
            insert_sorted(sorted, n_words, [first.max(floor), second, third, fourth]);
            n_words += WIDE_WORDS;
        }
        Some((sorted, n_words))
    }

    /// Events lost since the last restart, because the list was full.
    pub(super) fn n_lost(&self) -> u64 {
        self.n_lost.load(Ordering::Relaxed)
    }
}

/// Inserts an event after all those of `buffer[..n_words]` whose first word is not larger.
fn insert_sorted(buffer: &Buffer, n_words: usize, event: [u64; WIDE_WORDS]) {
    let mut at_idx = n_words;
    while at_idx > 0 && buffer[at_idx - WIDE_WORDS].load(Ordering::Relaxed) > event[0] {
        for word_idx in at_idx - WIDE_WORDS..at_idx {
            let value = buffer[word_idx].load(Ordering::Relaxed);
            buffer[word_idx + WIDE_WORDS].store(value, Ordering::Relaxed);
        }
        at_idx -= WIDE_WORDS;
    }
    for (word, value) in buffer[at_idx..].iter().zip(event) {
        word.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(pending: &Pending, floor: u64) -> Vec<u64> {
        let Some((buffer, n_words)) = pending.collect(floor) else {
            return Vec::new();
        };
        let words = buffer[..n_words].iter();
        words.map(|word| word.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn events_are_collected_once_sorted_and_not_before_the_floor() {
        let pending = Box::new(Pending::new());
        std::assert!(pending.restart());
        for first in [42, 18, 30, 6] {
            std::assert!(pending.push([first, first + 1, 8, 9]));
        }
        let expected = [20, 19, 8, 9, 20, 7, 8, 9, 30, 31, 8, 9, 42, 43, 8, 9];
        std::assert_eq!(collected(&pending, 20), expected);
        std::assert!(collected(&pending, 20).is_empty());
    }

    #[test]
    fn a_full_list_loses_and_counts() {
        let pending = Box::new(Pending::new());
        std::assert!(pending.restart());
        let n_kept = (0..N_SLOTS + 3).filter(|_| pending.push([2; 4])).count();
        std::assert_eq!((n_kept, pending.n_lost()), (N_SLOTS, 3));
        std::assert_eq!(collected(&pending, 0).len(), N_SLOTS * WIDE_WORDS);
        std::assert!(pending.push([2; 4]));
        std::assert!(pending.restart());
        std::assert_eq!(pending.n_lost(), 0);
    }
}
