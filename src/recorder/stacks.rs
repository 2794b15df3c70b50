//! Interning: from a stack's frames and tag to its program point, found without a lock.
//!
//! The index is open addressing over words of 36 hash bits and a 28-bit number; frames are always compared. It grows under
//! the writers' lock into the table's next chunk, and the old chunk is emptied: a reader that still probes the old one sees
//! a miss, takes the lock and looks again. Between sessions all tables are emptied; numbers go on, so what a late reader
//! finds of an earlier session is a number that is stale everywhere.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::PpId;
use super::words::{FIRST_CHUNK_LOG2, Table};
use crate::sys::lock::Lock;

/// The bits of an index word above a program point's number.
const HASH_BITS: u32 = 64 - PpId::BITS;
/// The largest number of a point.
const MAX_ID: u32 = PpId::MASK as u32;
/// Numbers that only a session's unattributed point may take, so that one huge session does not end the later ones.
const N_RESERVED_IDS: u32 = 1 << 16;

/// The stacks of one session.
pub(super) struct Stacks {
    /// The number of the session's unattributed point, its lowest. Relaxed: it changes between sessions, and whoever sees
    /// a session running has acquired that.
    first_id: AtomicU32,
    /// The chunk of `index` that is in use.
    index_chunk: AtomicU32,
    /// Chunk k is one hash table: 0, or hash bits and number.
    index: Table<1>,
    /// By number: where the frames start in `frames`; then their count plus one, and the tag in the low half.
    metas: Table<2>,
    frames: Table<1>,
    writer: Lock<Writer>,
}

/// What those who add stacks share.
struct Writer {
    /// The last number given out in this process.
    last_id: u32,
    n_indexed: usize,
    /// Where the next stack's frames may start.
    next_frame_idx: usize,
}

impl Stacks {
    /// Makes an empty set without tables. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            first_id: AtomicU32::new(0),
            index_chunk: AtomicU32::new(0),
            index: Table::new(),
            metas: Table::new(),
            frames: Table::new(),
            writer: Lock::new(Writer {
                last_id: 0,
                n_indexed: 0,
                next_frame_idx: 0,
            }),
        }
    }

    /// Forgets all stacks and makes all numbers given out so far stale.
    pub(super) fn clear(&self) {
        self.clear_locked(&mut self.writer.lock());
    }

    /// Forgets all stacks and makes the unattributed point of a new session, then calls `open` with its number; false from
    /// there or without memory. Until `open` returns no stack gets a number: a thread that is late from the last session
    /// would put a block into the new one whose event nobody takes yet.
    pub(super) fn restart(&self, open: impl FnOnce(PpId) -> bool) -> bool {
        self.restart_locked(open).unwrap_or(false)
    }

    fn restart_locked(&self, open: impl FnOnce(PpId) -> bool) -> Option<bool> {
        let mut writer = self.writer.lock();
        self.clear_locked(&mut writer);
        self.index.reserve_chunk(0)?;
        let id = writer.last_id + 1;
        if id > MAX_ID {
            return None;
        }
        store_meta(self.metas.reserve(id as usize)?, 0, meta_key(0, 0)?);
        writer.last_id = id;
        Some(open(PpId(id)))
    }

    fn clear_locked(&self, writer: &mut Writer) {
        self.first_id.store(writer.last_id + 1, Ordering::Relaxed);
        self.index_chunk.store(0, Ordering::Relaxed);
        self.index.clear();
        self.metas.clear();
        self.frames.clear();
        writer.n_indexed = 0;
        writer.next_frame_idx = 0;
    }

    /// The lowest number of the session: its unattributed point.
    #[inline]
    pub(super) fn first(&self) -> PpId {
        PpId(self.first_id.load(Ordering::Relaxed))
    }

    /// The program point of a stack. For a new one `make_room` is called with its number before anybody else can see it;
    /// false from there, no memory or no numbers left give the unattributed point. Hook-safe.
    pub(super) fn intern(
        &self,
        frames: &[usize],
        tag: u32,
        make_room: impl FnOnce(PpId) -> bool,
    ) -> PpId {
        let Some(key) = meta_key(frames.len(), tag) else {
            return self.first();
        };
        let hash = hash_of(frames, key);
        // Acquire pairs with the Release in `grow_index`.
        let index_chunk = self.index_chunk.load(Ordering::Acquire);
        if let Some(pp) = self.find(index_chunk, hash, frames, key) {
            return pp;
        }
        self.intern_slow(frames, key, hash, make_room)
    }

    #[cold]
    #[inline(never)]
    fn intern_slow(
        &self,
        frames: &[usize],
        key: u64,
        hash: u64,
        make_room: impl FnOnce(PpId) -> bool,
    ) -> PpId {
        let mut writer = self.writer.lock();
        // Relaxed: the lock orders it.
        let index_chunk = self.index_chunk.load(Ordering::Relaxed);
        if let Some(pp) = self.find(index_chunk, hash, frames, key) {
            return pp;
        }
        self.add(&mut writer, frames, key, hash, make_room)
            .unwrap_or(self.first())
    }

    /// The point with these frames in one chunk of the index. Ordering: an index word is published with Release after the
    /// point's meta and frames, so Relaxed suffices for those.
    #[inline]
    fn find(&self, index_chunk: u32, hash: u64, frames: &[usize], key: u64) -> Option<PpId> {
        let table = self.index.chunk(index_chunk as usize)?.as_flattened();
        let mask = table.len() - 1;
        let home_slot = home_slot(hash, index_chunk);
        for slot_idx in home_slot..home_slot + table.len() {
            let word = table[slot_idx & mask].load(Ordering::Acquire);
            if word == 0 {
                return None;
            }
            if word >> PpId::BITS == hash {
                let pp = PpId((word & PpId::MASK) as u32);
                if self.has_frames(pp, frames, key) {
                    return Some(pp);
                }
            }
        }
        None
    }

    fn has_frames(&self, pp: PpId, frames: &[usize], key: u64) -> bool {
        let Some([start, meta]) = self.metas.get(pp.0 as usize) else {
            return false;
        };
        if meta.load(Ordering::Relaxed) != key {
            return false;
        }
        let start_idx = start.load(Ordering::Relaxed) as usize;
        self.frames.run(start_idx, frames.len()).is_some_and(|run| {
            let known = run.as_flattened().iter().zip(frames);
            known.into_iter().all(|(word, frame)| {
                let known_frame = word.load(Ordering::Relaxed);
                known_frame == *frame as u64
            })
        })
    }

    fn add(
        &self,
        writer: &mut Writer,
        frames: &[usize],
        key: u64,
        hash: u64,
        make_room: impl FnOnce(PpId) -> bool,
    ) -> Option<PpId> {
        let id = writer.last_id + 1;
        if id > MAX_ID - N_RESERVED_IDS {
            return None;
        }
        let table = self.room_in_index(writer.n_indexed)?;
        let meta = self.metas.reserve(id as usize)?;
        let (start_idx, run) = self
            .frames
            .reserve_run(writer.next_frame_idx, frames.len())?;
        if !make_room(PpId(id)) {
            return None;
        }
        for (word, frame) in run.as_flattened().iter().zip(frames) {
            word.store(*frame as u64, Ordering::Relaxed);
        }
        store_meta(meta, start_idx as u64, key);
        writer.last_id = id;
        writer.n_indexed += 1;
        writer.next_frame_idx = start_idx + frames.len();
        let index_chunk = self.index_chunk.load(Ordering::Relaxed);
        insert(table, home_slot(hash, index_chunk), hash, id);
        Some(PpId(id))
    }

    /// The index with at least one free slot: twice as large if it is half full and there is memory. `None` when it is
    /// nearly full and cannot grow.
    fn room_in_index(&self, n_indexed: usize) -> Option<&'static [AtomicU64]> {
        let index_chunk = self.index_chunk.load(Ordering::Relaxed);
        let table = self.index.chunk(index_chunk as usize)?.as_flattened();
        if n_indexed < table.len() / 2 {
            return Some(table);
        }
        self.grow_index(index_chunk, table)
            .or_else(|| (n_indexed < table.len() / 8 * 7).then_some(table))
    }

    #[cold]
    #[inline(never)]
    fn grow_index(&self, index_chunk: u32, old: &[AtomicU64]) -> Option<&'static [AtomicU64]> {
        let new_chunk = index_chunk + 1;
        let table = self.index.reserve_chunk(new_chunk as usize)?.as_flattened();
        for slot in old {
            let word = slot.load(Ordering::Relaxed);
            if word != 0 {
                let hash = word >> PpId::BITS;
                insert(
                    table,
                    home_slot(hash, new_chunk),
                    hash,
                    (word & PpId::MASK) as u32,
                );
            }
        }
        // Release pairs with the Acquire in `intern`.
        self.index_chunk.store(new_chunk, Ordering::Release);
        self.index.clear_chunk(index_chunk as usize);
        Some(table)
    }

    /// The frames and the tag of a point of the running session. Report path only: allocates.
    pub(super) fn frames_of(&self, pp: PpId) -> (Box<[usize]>, u32) {
        let Some([start, meta]) = self.metas.get(pp.0 as usize) else {
            return (Box::default(), 0);
        };
        // Acquire is not needed: the caller learnt of the point through the ledger's lock.
        let key = meta.load(Ordering::Relaxed);
        let start_idx = start.load(Ordering::Relaxed) as usize;
        let n_frames = ((key >> 32) as usize).saturating_sub(1);
        let run = self.frames.run(start_idx, n_frames).unwrap_or_default();
        let words = run.as_flattened().iter();
        let frames = words.map(|word| word.load(Ordering::Relaxed) as usize);
        (frames.collect(), key as u32)
    }
}

/// The meta word of a stack: frame count plus one above the tag, so that it is never 0. `None` for 2^32 - 1 frames and more.
fn meta_key(n_frames: usize, tag: u32) -> Option<u64> {
    let count = u32::try_from(n_frames).ok()?.checked_add(1)?;
    Some(u64::from(count) << 32 | u64::from(tag))
}

fn store_meta(entry: &[AtomicU64; 2], start_idx: u64, key: u64) {
    entry[0].store(start_idx, Ordering::Relaxed);
    entry[1].store(key, Ordering::Relaxed);
}

/// Where the probing for a hash starts: its upper bits, so that a table of any size can be filled from index words alone.
#[inline]
fn home_slot(hash: u64, index_chunk: u32) -> usize {
    (hash >> (HASH_BITS - FIRST_CHUNK_LOG2 - index_chunk)) as usize
}

/// Puts a word into the first free slot from its home on; there is one.
fn insert(table: &[AtomicU64], home_slot: usize, hash: u64, id: u32) {
    let mask = table.len() - 1;
    let mut slot_idx = home_slot;
    while table[slot_idx & mask].load(Ordering::Relaxed) != 0 {
        slot_idx += 1;
    }
    // Release pairs with the Acquire in `find`.
    table[slot_idx & mask].store(hash << PpId::BITS | u64::from(id), Ordering::Release);
}

/// Odd, without pattern: the fractional bits of the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The 36-bit hash of a stack. Two chains of multiplications, so that their latencies overlap.
#[inline]
fn hash_of(frames: &[usize], key: u64) -> u64 {
    let step =
        |lane: u64, frame: usize| (lane.rotate_left(26) ^ frame as u64).wrapping_mul(MULTIPLIER);
    let (mut even, mut odd) = (key, !key);
    let pairs = frames.chunks_exact(2);
    let rest = pairs.remainder();
    for pair in pairs {
        even = step(even, pair[0]);
        odd = step(odd, pair[1]);
    }
    for &frame in rest {
        even = step(even, frame);
    }
    let mixed = (even ^ odd.rotate_left(32)).wrapping_mul(MULTIPLIER);
    (mixed ^ mixed >> 32).wrapping_mul(MULTIPLIER) >> PpId::BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Box<Stacks> {
        let stacks = Box::new(Stacks::new());
        std::assert!(stacks.restart(|_| true));
        stacks
    }

    fn intern(stacks: &Stacks, frames: &[usize], tag: u32) -> PpId {
        stacks.intern(frames, tag, |_| true)
    }

    #[test]
    fn no_stack_gets_a_number_before_the_session_is_open() {
        let stacks = started();
        intern(&stacks, &[1], 0);
        std::assert!(stacks.restart(|first| {
            let slow_path_waits = stacks.writer.try_lock().is_none();
            let key = meta_key(1, 0).unwrap();
            let is_forgotten = stacks.find(0, hash_of(&[1], key), &[1], key).is_none();
            slow_path_waits && is_forgotten && first == stacks.first()
        }));
    }

    #[test]
    fn equal_stacks_share_a_point_and_different_ones_do_not() {
        let stacks = started();
        let point = intern(&stacks, &[1, 2, 3], 0);
        std::assert_eq!(intern(&stacks, &[1, 2, 3], 0), point);
        let others: [(&[usize], u32); 6] = [
            (&[1, 2, 3], 1),
            (&[1, 2], 0),
            (&[3, 2, 1], 0),
            (&[1, 2, 3, 0], 0),
            (&[0, 1, 2, 3], 0),
            (&[], 0),
        ];
        let mut seen = vec![point, stacks.first()];
        for (frames, tag) in others {
            let other = intern(&stacks, frames, tag);
            std::assert!(!seen.contains(&other));
            std::assert_eq!(stacks.frames_of(other), (frames.into(), tag));
            seen.push(other);
        }
    }

    #[test]
    fn equal_hashes_with_different_frames_stay_apart() {
        let stacks = started();
        let key = meta_key(1, 0).unwrap();
        let first = stacks.intern_slow(&[10], key, 77, |_| true);
        let second = stacks.intern_slow(&[20], key, 77, |_| true);
        std::assert!(first != second);
        std::assert_eq!(stacks.find(0, 77, &[10], key), Some(first));
        std::assert_eq!(stacks.find(0, 77, &[20], key), Some(second));
        std::assert_eq!(stacks.find(0, 77, &[30], key), None);
    }

    /// Stacks that growth tests intern; enough for several growths, few enough for an interpreter.
    const N_STACKS: usize = if cfg!(miri) {
        250
    } else if cfg!(debug_assertions) {
        100_000
    } else {
        1_500_000
    };

    fn nth_stack(nth: usize) -> [usize; 7] {
        std::array::from_fn(|depth| 0x5555_0000_0000 + (nth >> depth) * 16)
    }

    #[test]
    fn points_survive_growth() {
        let stacks = started();
        let points: Vec<PpId> = (0..N_STACKS)
            .map(|nth| intern(&stacks, &nth_stack(nth), 3))
            .collect();
        std::assert!(points.windows(2).all(|pair| pair[0] < pair[1]));
        for (nth, point) in points.iter().enumerate() {
            std::assert_eq!(intern(&stacks, &nth_stack(nth), 3), *point);
        }
        let sample = points[N_STACKS / 2];
        std::assert_eq!(
            stacks.frames_of(sample),
            (nth_stack(N_STACKS / 2).into(), 3)
        );
    }

    #[test]
    fn threads_that_intern_the_same_stacks_agree() {
        let stacks = started();
        let n_stacks = if cfg!(miri) { 30 } else { 60_000 };
        let intern_all = || -> Vec<PpId> {
            let all = 0..n_stacks;
            all.map(|nth| intern(&stacks, &nth_stack(nth), 0)).collect()
        };
        let of_threads: Vec<Vec<PpId>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(intern_all)).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        std::assert!(of_threads.iter().all(|points| *points == of_threads[0]));
        let mut distinct = of_threads[0].clone();
        distinct.dedup();
        std::assert_eq!(distinct.len(), n_stacks);
    }

    #[test]
    fn a_stack_larger_than_a_chunk_is_kept_whole() {
        let stacks = started();
        let n_frames = if cfg!(miri) { 500 } else { 50_000 };
        let deep: Vec<usize> = (0..n_frames).collect();
        intern(&stacks, &[1], 0);
        let point = intern(&stacks, &deep, 0);
        std::assert_eq!(intern(&stacks, &deep, 0), point);
        std::assert_eq!(stacks.frames_of(point).0.as_ref(), deep);
    }

    #[test]
    fn numbers_go_on_after_a_restart_and_the_old_ones_are_stale() {
        let stacks = started();
        let old = intern(&stacks, &[1, 2], 0);
        std::assert!(stacks.restart(|_| true));
        let unattributed = stacks.first();
        std::assert!(old < unattributed);
        std::assert_eq!(stacks.first(), unattributed);
        let new = intern(&stacks, &[1, 2], 0);
        std::assert!(new > unattributed);
        stacks.clear();
        std::assert!(stacks.first() > new);
    }

    // The table for the last numbers is larger than an interpreter can bear.
    #[cfg(not(miri))]
    #[test]
    fn stacks_without_a_number_or_without_room_are_unattributed() {
        let stacks = started();
        let known = intern(&stacks, &[1], 0);
        let refused = stacks.intern(&[2], 0, |_| false);
        std::assert_eq!(refused, stacks.first());
        stacks.writer.lock().last_id = MAX_ID - N_RESERVED_IDS - 1;
        std::assert!(intern(&stacks, &[3], 0) > known);
        std::assert_eq!(intern(&stacks, &[4], 0), stacks.first());
        std::assert_eq!(intern(&stacks, &[1], 0), known);
        std::assert!(stacks.restart(|_| true));
        stacks.writer.lock().last_id = MAX_ID;
        std::assert!(!stacks.restart(|_| true));
    }
}
