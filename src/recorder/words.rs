//! Tables of zero pages that are filled by any thread, read without a lock and never unmapped.
//!
//! The room's raw memory is here: [`Slot`] publishes one table, [`Table`] is an array that grows without moving. A table is
//! only ever emptied, so a reader that holds on to one from an earlier session reads old values or zeros, never bad memory.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::sys;

/// Types for which zero pages are a valid shared value.
///
/// # Safety
/// - All-zero bytes are a valid value.
/// - The value may be shared between threads, needs no drop, and is aligned to at most a page.
pub(super) unsafe trait Zeroed: Sync + 'static {}

// SAFETY: an atomic integer of zero.
unsafe impl Zeroed for AtomicU64 {}
// SAFETY: an array has no bytes but those of its elements.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}
// SAFETY: a slot is an atomic pointer, and null means empty.
unsafe impl<T: Zeroed> Zeroed for Slot<T> {}

/// A place for one `T` of zero pages, filled at most once. Empty if it is itself made of zero bytes.
pub(super) struct Slot<T: Zeroed> {
    /// Null, or a `T` that lives for ever.
    place: AtomicPtr<T>,
    holds: PhantomData<&'static T>,
}

impl<T: Zeroed> Slot<T> {
    /// Makes an empty slot.
    pub(super) const fn new() -> Self {
        Self {
            place: AtomicPtr::new(std::ptr::null_mut()),
            holds: PhantomData,
        }
    }

    /// What the slot holds, if it was filled. Wait-free.
    #[inline]
    pub(super) fn get(&self) -> Option<&'static T> {
        // Acquire pairs with the Release in `fill`; the pages come from the kernel zeroed.
        let place = NonNull::new(self.place.load(Ordering::Acquire))?;
        // SAFETY: only `fill` stores here, and what it stores lives for ever.
        Some(unsafe { place.as_ref() })
    }

    /// What the slot holds, mapped now if it was empty; `None` when memory is exhausted. Lock-free.
    #[cold]
    #[inline(never)]
    pub(super) fn fill(&self) -> Option<&'static T> {
        if let Some(held) = self.get() {
            return Some(held);
        }
        let place = sys::map_zeroed(size_of::<T>())?;
        let won = self.place.compare_exchange(
            std::ptr::null_mut(),
            place.as_ptr().cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if won.is_err() {
            // SAFETY: the mapping was made above with this size and nobody else has seen it.
            unsafe { sys::unmap(place, size_of::<T>()) };
        }
        self.get()
    }
}

/// The binary logarithm of the number of entries in a table's first chunk. An interpreter takes long to empty large ones.
pub(super) const FIRST_CHUNK_LOG2: u32 = if cfg!(miri) { 6 } else { 12 };
const FIRST_CHUNK: usize = 1 << FIRST_CHUNK_LOG2;
const N_CHUNKS: usize = 24;

/// A growable array of entries of `W` words that never move: chunk k has `FIRST_CHUNK << k` entries.
pub(super) struct Table<const W: usize> {
    /// Null, or the first entry of a chunk that lives for ever.
    chunks: [AtomicPtr<[AtomicU64; W]>; N_CHUNKS],
}

/// An index as a chunk number and a place in that chunk.
#[inline]
fn locate(entry_idx: usize) -> (usize, usize) {
    let shifted = entry_idx + FIRST_CHUNK;
    let log2 = shifted.ilog2();
    (
        (log2 - FIRST_CHUNK_LOG2) as usize,
        shifted - (1_usize << log2),
    )
}

impl<const W: usize> Table<W> {
    /// Makes a table without memory.
    pub(super) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; N_CHUNKS],
        }
    }

    /// The number of entries in a chunk.
    pub(super) const fn chunk_len(chunk_idx: usize) -> usize {
        FIRST_CHUNK << chunk_idx
    }

    /// The entries of a chunk, if it has memory. Wait-free.
    #[inline]
    pub(super) fn chunk(&self, chunk_idx: usize) -> Option<&'static [[AtomicU64; W]]> {
        // Acquire pairs with the Release in `reserve_chunk`.
        let first = NonNull::new(self.chunks.get(chunk_idx)?.load(Ordering::Acquire))?;
        // SAFETY: only `reserve_chunk` stores here: a mapping of this many zeroed entries that lives for ever.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), Self::chunk_len(chunk_idx)) })
    }

    /// The entries of a chunk, mapped now if it had no memory; `None` when memory is exhausted. Lock-free.
    pub(super) fn reserve_chunk(&self, chunk_idx: usize) -> Option<&'static [[AtomicU64; W]]> {
        if let Some(chunk) = self.chunk(chunk_idx) {
            return Some(chunk);
        }
        let n_bytes = Self::chunk_len(chunk_idx).checked_mul(size_of::<[AtomicU64; W]>())?;
        let chunk = self.chunks.get(chunk_idx)?;
        let place = sys::map_zeroed(n_bytes)?;
        let won = chunk.compare_exchange(
            std::ptr::null_mut(),
            place.as_ptr().cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if won.is_err() {
            // SAFETY: the mapping was made above with this size and nobody else has seen it.
            unsafe { sys::unmap(place, n_bytes) };
        }
        self.chunk(chunk_idx)
    }

    /// An entry, if its chunk has memory. Wait-free.
    #[inline]
    pub(super) fn get(&self, entry_idx: usize) -> Option<&'static [AtomicU64; W]> {
        let (chunk_idx, offset) = locate(entry_idx);
        // Acquire pairs with the Release in `reserve_chunk`.
        let first = NonNull::new(self.chunks.get(chunk_idx)?.load(Ordering::Acquire))?;
        // SAFETY: `locate` gives an offset below the length of the chunk, so the entry is inside the mapping.
        let entry = unsafe { first.add(offset) };
        // SAFETY: the entry is zeroed or written atomics, and the chunk lives for ever.
        Some(unsafe { entry.as_ref() })
    }

    /// An entry, with memory for its chunk; `None` when that is exhausted. Lock-free.
    pub(super) fn reserve(&self, entry_idx: usize) -> Option<&'static [AtomicU64; W]> {
        let (chunk_idx, offset) = locate(entry_idx);
        self.reserve_chunk(chunk_idx)?.get(offset)
    }

    /// `len` entries from `entry_idx` on, if they lie in one chunk that has memory. Wait-free.
    #[inline]
    pub(super) fn run(&self, entry_idx: usize, len: usize) -> Option<&'static [[AtomicU64; W]]> {
        let (chunk_idx, offset) = locate(entry_idx);
        self.chunk(chunk_idx)?.get(offset..)?.get(..len)
    }

    /// The first index at or after `entry_idx` from which `len` entries lie in one chunk, and those entries; `None` when
    /// memory is exhausted. Lock-free.
    pub(super) fn reserve_run(
        &self,
        entry_idx: usize,
        len: usize,
    ) -> Option<(usize, &'static [[AtomicU64; W]])> {
        let (mut chunk_idx, offset) = locate(entry_idx);
        let mut start_idx = entry_idx;
        if offset + len > Self::chunk_len(chunk_idx) {
            while Self::chunk_len(chunk_idx) < len || start_idx == entry_idx {
                chunk_idx += 1;
                start_idx = Self::chunk_len(chunk_idx) - FIRST_CHUNK;
                if chunk_idx >= N_CHUNKS {
                    return None;
                }
            }
        }
        self.reserve_chunk(chunk_idx)?;
        Some((start_idx, self.run(start_idx, len)?))
    }

    /// Makes a chunk zero and gives its memory back to the system.
    pub(super) fn clear_chunk(&self, chunk_idx: usize) {
        if let Some(chunk) = self.chunk(chunk_idx) {
            sys::zero_words(chunk.as_flattened());
        }
    }

    /// Makes all entries zero and gives their memory back to the system.
    pub(super) fn clear(&self) {
        (0..N_CHUNKS).for_each(|chunk_idx| self.clear_chunk(chunk_idx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_map_to_chunks_of_doubled_size_without_gaps() {
        std::assert_eq!(locate(0), (0, 0));
        std::assert_eq!(locate(FIRST_CHUNK - 1), (0, FIRST_CHUNK - 1));
        std::assert_eq!(locate(FIRST_CHUNK), (1, 0));
        std::assert_eq!(locate(3 * FIRST_CHUNK - 1), (1, 2 * FIRST_CHUNK - 1));
        std::assert_eq!(locate(3 * FIRST_CHUNK), (2, 0));
    }

    #[test]
    fn runs_never_straddle_a_chunk() {
        let table = Table::<1>::new();
        let (start_idx, run) = table.reserve_run(FIRST_CHUNK - 2, 3).unwrap();
        std::assert_eq!((start_idx, run.len()), (FIRST_CHUNK, 3));
        let (start_idx, run) = table.reserve_run(FIRST_CHUNK - 2, 2).unwrap();
        std::assert_eq!((start_idx, run.len()), (FIRST_CHUNK - 2, 2));
        let (start_idx, run) = table.reserve_run(5, 4 * FIRST_CHUNK).unwrap();
        std::assert_eq!((start_idx, run.len()), (3 * FIRST_CHUNK, 4 * FIRST_CHUNK));
    }

    #[test]
    fn cleared_entries_read_zero_and_stay_mapped() {
        let table = Table::<2>::new();
        std::assert!(table.get(9).is_none());
        let entry = table.reserve(9).unwrap();
        entry[1].store(7, Ordering::Relaxed);
        table.clear();
        std::assert_eq!(entry[1].load(Ordering::Relaxed), 0);
        std::assert!(table.get(9).is_some());
    }

    #[test]
    fn a_slot_is_filled_once() {
        let slot = Slot::<[AtomicU64; 512]>::new();
        std::assert!(slot.get().is_none());
        let first = slot.fill().unwrap();
        std::assert!(std::ptr::eq(first, slot.fill().unwrap()));
        std::assert!(std::ptr::eq(first, slot.get().unwrap()));
    }
}
