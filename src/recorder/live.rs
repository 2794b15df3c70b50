//! The live map: from a block's address to its program point and size, wait-free.
//!
//! A radix tree over a 48-bit address space whose leaves are zero pages with one word per 16 bytes of address: the program
//! point in the low 28 bits, the size in the upper 36. Blocks at other remainders of 16 have trees of their own: the one for
//! odd multiples of 8 is always there, those for unaligned addresses are made when one is met. What does not fit is in a
//! locked side table.
//!
//! Accesses to words are Relaxed: a word belongs to whoever owns the block at its address, and the program hands that
//! ownership from thread to thread with a happens-before of its own, or has a data race on the block itself.

use std::sync::atomic::{AtomicU64, Ordering};

use super::words::{Slot, Table};
use super::{LiveBlock, PpId};
use crate::sys::lock::Lock;

/// One word per 16 bytes of 4 MiB of addresses.
type Leaf = [AtomicU64; 1 << LEAF_BITS];
type Branch = [Slot<Leaf>; 1 << BRANCH_BITS];
type Root = [Slot<Branch>; 1 << ROOT_BITS];
/// By an unaligned address modulo 16; the places of multiples of 8 stay empty.
type UnalignedTrees = [Root; 1 << GRANULE_BITS];

const GRANULE_BITS: u32 = 4;
const LEAF_BITS: u32 = 18;
const BRANCH_BITS: u32 = 13;
const ROOT_BITS: u32 = 13;
const ADDR_BITS: u32 = GRANULE_BITS + LEAF_BITS + BRANCH_BITS + ROOT_BITS;

/// Stands in a word for a size that is in the side table.
const WIDE_SIZE: u64 = u64::MAX >> PpId::BITS;

/// A live block in one word, or `None` if its size needs more than 36 bits. The journal's events have the same form.
#[inline]
pub(super) fn pack(block: LiveBlock) -> Option<u64> {
    let size = block.size as u64;
    (size < WIDE_SIZE).then(|| size << PpId::BITS | u64::from(block.pp.0))
}

/// The block that [`pack`] made `word` of.
#[inline]
pub(super) fn unpack(word: u64) -> LiveBlock {
    LiveBlock {
        pp: point_in(word),
        size: (word >> PpId::BITS) as usize,
    }
}

#[inline]
fn point_in(word: u64) -> PpId {
    PpId((word & PpId::MASK) as u32)
}

/// What came of putting a block in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inserted {
    /// A block of this session that nobody took out before its address was used again; it is out now.
    pub(super) over: Option<LiveBlock>,
    /// False if there was no memory for the entry.
    pub(super) is_tracked: bool,
}

/// The live blocks of the running session. Words of earlier sessions hold stale points and count as absent.
pub(super) struct LiveMap {
    /// For addresses at even and at odd multiples of 8.
    trees: [Root; 2],
    unaligned: Slot<UnalignedTrees>,
    side: Lock<Side>,
}

impl LiveMap {
    /// Makes a map without memory. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            trees: [const { [const { Slot::new() }; 1 << ROOT_BITS] }; 2],
            unaligned: Slot::new(),
            side: Lock::new(Side {
                chunk: 0,
                n_entries: 0,
                table: Table::new(),
            }),
        }
    }

    /// Puts a packed block where there is memory for it and no block of this session. False if that is not so; then
    /// [`LiveMap::insert`] does it. Points below `first` are stale. Hook-safe.
    #[inline(always)]
    pub(super) fn insert_packed(&self, addr: usize, packed: u64, first: PpId) -> bool {
        match self.word(addr) {
            Some(word) if point_in(word.load(Ordering::Relaxed)) < first => {
                word.store(packed, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Puts a block in. Points below `first` are stale. Hook-safe.
    #[inline(never)]
    pub(super) fn insert(&self, addr: usize, block: LiveBlock, first: PpId) -> Inserted {
        let Some(place) = Place::of(addr) else {
            let over = self.take_from_side(addr, first);
            let is_tracked = self.side.lock().insert(addr, block);
            return Inserted { over, is_tracked };
        };
        let Some(word) = self.reserve_word(place) else {
            return Inserted {
                over: None,
                is_tracked: false,
            };
        };
        let over = self.take_word(word, addr, first);
        let packed = match pack(block) {
            Some(packed) => packed,
            None if self.side.lock().insert(addr, block) => {
                WIDE_SIZE << PpId::BITS | u64::from(block.pp.0)
            }
            None => 0,
        };
        word.store(packed, Ordering::Relaxed);
        Inserted {
            over,
            is_tracked: packed != 0,
        }
    }

    /// Takes the block at `addr` out; `None` if there is none of this session. Hook-safe; async-signal-safe but for blocks
    /// in the side table.
    #[inline(always)]
    pub(super) fn take(&self, addr: usize, first: PpId) -> Option<LiveBlock> {
        if let Some(word) = self.word(addr) {
            let held = word.load(Ordering::Relaxed);
            if point_in(held) < first {
                return None;
            }
            if held >> PpId::BITS != WIDE_SIZE {
                word.store(0, Ordering::Relaxed);
                return Some(unpack(held));
            }
        }
        self.take_slow(addr, first)
    }

    #[cold]
    #[inline(never)]
    fn take_slow(&self, addr: usize, first: PpId) -> Option<LiveBlock> {
        match Place::of(addr) {
            Some(place) => self.take_word(self.word_at(place)?, addr, first),
            None => self.take_from_side(addr, first),
        }
    }

    fn take_word(&self, word: &AtomicU64, addr: usize, first: PpId) -> Option<LiveBlock> {
        let held = word.load(Ordering::Relaxed);
        if point_in(held) < first {
            return None;
        }
        word.store(0, Ordering::Relaxed);
        if held >> PpId::BITS == WIDE_SIZE {
            return self.take_from_side(addr, first);
        }
        Some(unpack(held))
    }

    #[cold]
    #[inline(never)]
    fn take_from_side(&self, addr: usize, first: PpId) -> Option<LiveBlock> {
        let block = self.side.lock().take(addr)?;
        (block.pp >= first).then_some(block)
    }

    /// The word for an aligned address, if the trees cover it and there is a leaf.
    #[inline(always)]
    fn word(&self, addr: usize) -> Option<&'static AtomicU64> {
        let place = Place::of(addr)?;
        if !place.is_aligned() {
            return None;
        }
        let branch = self.trees[place.residue / 8 % 2][place.root_idx].get()?;
        let leaf = branch[place.branch_idx].get()?;
        Some(&leaf[place.leaf_idx])
    }

    /// The word for a place, if there is a leaf.
    fn word_at(&self, place: Place) -> Option<&'static AtomicU64> {
        let tree = match place.is_aligned() {
            true => &self.trees[place.residue / 8],
            false => &self.unaligned.get()?[place.residue],
        };
        let leaf = tree[place.root_idx].get()?[place.branch_idx].get()?;
        Some(&leaf[place.leaf_idx])
    }

    fn reserve_word(&self, place: Place) -> Option<&'static AtomicU64> {
        let tree = match place.is_aligned() {
            true => &self.trees[place.residue / 8],
            false => &self.unaligned.fill()?[place.residue],
        };
        let leaf = tree[place.root_idx].fill()?[place.branch_idx].fill()?;
        Some(&leaf[place.leaf_idx])
    }

    /// Takes all blocks out and gives the memory back to the system. Words that other threads write meanwhile may stay.
    pub(super) fn clear(&self) {
        let unaligned = self.unaligned.get().map(|trees| trees.as_flattened());
        let slots = self.trees.as_flattened().iter();
        let slots = slots.chain(unaligned.unwrap_or_default());
        let branches = slots.filter_map(Slot::get);
        let leaves = branches.flat_map(|branch| branch.iter().filter_map(Slot::get));
        leaves.for_each(|leaf| crate::sys::zero_words(leaf));
        self.side.lock().clear();
    }
}

/// Where an address is in the trees.
#[derive(Clone, Copy)]
struct Place {
    /// The address modulo 16.
    residue: usize,
    root_idx: usize,
    branch_idx: usize,
    leaf_idx: usize,
}

impl Place {
    /// `None` for addresses that the trees do not cover.
    #[inline]
    fn of(addr: usize) -> Option<Self> {
        let addr = addr as u64;
        if addr >> ADDR_BITS != 0 {
            return None;
        }
        let bits = |low: u32, n: u32| (addr >> low) as usize & ((1 << n) - 1);
        Some(Self {
            residue: bits(0, GRANULE_BITS),
            root_idx: bits(ADDR_BITS - ROOT_BITS, ROOT_BITS),
            branch_idx: bits(GRANULE_BITS + LEAF_BITS, BRANCH_BITS),
            leaf_idx: bits(GRANULE_BITS, LEAF_BITS),
        })
    }

    #[inline(always)]
    fn is_aligned(self) -> bool {
        self.residue % 8 == 0
    }
}

/// Blocks of 64 GiB and more, and blocks at addresses that the trees do not cover: open addressing, entries of address,
/// size and point, where point 0 is free. Chunk k of the table is one hash table.
struct Side {
    chunk: usize,
    n_entries: usize,
    table: Table<3>,
}

type SideEntry = [AtomicU64; 3];

impl Side {
    /// Puts a block in, in place of what the table has at that address. False without memory.
    fn insert(&mut self, addr: usize, block: LiveBlock) -> bool {
        let Some(entries) = self.entries_with_room() else {
            return false;
        };
        let entry = &entries[find_slot(entries, addr)];
        if load_entry(entry).is_none() {
            self.n_entries += 1;
        }
        let [addr_word, size_word, pp_word] = entry;
        addr_word.store(addr as u64, Ordering::Relaxed);
        size_word.store(block.size as u64, Ordering::Relaxed);
        pp_word.store(block.pp.0.into(), Ordering::Relaxed);
        true
    }

    fn take(&mut self, addr: usize) -> Option<LiveBlock> {
        let entries = self.table.chunk(self.chunk)?;
        let slot_idx = find_slot(entries, addr);
        let (_, block) = load_entry(&entries[slot_idx])?;
        self.n_entries -= 1;
        close_gap(entries, slot_idx);
        Some(block)
    }

    /// The current hash table, moved to one of twice the size if it is half full.
    fn entries_with_room(&mut self) -> Option<&'static [SideEntry]> {
        let entries = self.table.reserve_chunk(self.chunk)?;
        if self.n_entries < entries.len() / 2 {
            return Some(entries);
        }
        let larger = self.table.reserve_chunk(self.chunk + 1)?;
        for entry in entries {
            if let Some((addr, _)) = load_entry(entry) {
                copy_entry(entry, &larger[find_slot(larger, addr)]);
            }
        }
        self.table.clear_chunk(self.chunk);
        self.chunk += 1;
        Some(larger)
    }

    fn clear(&mut self) {
        self.table.clear();
        self.chunk = 0;
        self.n_entries = 0;
    }
}

fn load_entry([addr, size, pp]: &SideEntry) -> Option<(usize, LiveBlock)> {
    let block = LiveBlock {
        pp: PpId(pp.load(Ordering::Relaxed) as u32),
        size: size.load(Ordering::Relaxed) as usize,
    };
    (block.pp.0 != 0).then(|| (addr.load(Ordering::Relaxed) as usize, block))
}

fn copy_entry(from: &SideEntry, to: &SideEntry) {
    for (source, target) in from.iter().zip(to) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn home_slot(entries: &[SideEntry], addr: usize) -> usize {
    let mixed = (addr as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as usize & (entries.len() - 1)
}

/// The slot that holds `addr`, or the free one where it belongs; a table is never full.
fn find_slot(entries: &[SideEntry], addr: usize) -> usize {
    let mask = entries.len() - 1;
    let mut slot_idx = home_slot(entries, addr);
    while load_entry(&entries[slot_idx]).is_some_and(|(held, _)| held != addr) {
        slot_idx = (slot_idx + 1) & mask;
    }
    slot_idx
}

/// Frees a slot and moves later entries of its run down, so that each is still found from its home (D. Knuth, The Art of
/// Computer Programming vol. 3, §6.4, Algorithm R).
fn close_gap(entries: &[SideEntry], slot_idx: usize) {
    let mask = entries.len() - 1;
    let mut gap_idx = slot_idx;
    let mut next_idx = slot_idx;
    loop {
        next_idx = (next_idx + 1) & mask;
        let Some((addr, _)) = load_entry(&entries[next_idx]) else {
            break;
        };
        let from_home = next_idx.wrapping_sub(home_slot(entries, addr)) & mask;
        if from_home >= next_idx.wrapping_sub(gap_idx) & mask {
            copy_entry(&entries[next_idx], &entries[gap_idx]);
            gap_idx = next_idx;
        }
    }
    entries[gap_idx]
        .iter()
        .for_each(|word| word.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: PpId = PpId(10);

    fn block(pp: u32, size: usize) -> LiveBlock {
        LiveBlock { pp: PpId(pp), size }
    }

    fn map() -> Box<LiveMap> {
        Box::new(LiveMap::new())
    }

    fn tracked(over: Option<LiveBlock>) -> Inserted {
        Inserted {
            over,
            is_tracked: true,
        }
    }

    const LARGEST_NARROW: usize = (1 << 36) - 2;
    /// Addresses of each kind: even and odd multiples of 8, unaligned, the lowest, the highest, beyond 48 bits.
    const ADDRS: [usize; 8] = [
        0x7fff_1234_5670,
        0x7fff_1234_5678,
        0x7fff_1234_5671,
        1,
        16,
        (1 << 48) - 8,
        1 << 48,
        usize::MAX,
    ];

    #[test]
    fn a_block_is_taken_once_with_what_was_put() {
        for addr in ADDRS {
            let map = map();
            for size in [0, 1, LARGEST_NARROW, LARGEST_NARROW + 1, usize::MAX] {
                let put = block(10, size);
                std::assert_eq!(map.take(addr, FIRST), None);
                std::assert_eq!(map.insert(addr, put, FIRST), tracked(None));
                std::assert_eq!(map.take(addr, FIRST), Some(put));
                std::assert_eq!(map.take(addr, FIRST), None);
            }
        }
    }

    #[test]
    fn a_signal_handler_can_take_any_block_below_64_gib_while_the_side_table_is_held() {
        let map = map();
        let _interrupted = map.side.lock();
        for addr in (0x7fff_1234_5670..).take(33) {
            let put = block(10, LARGEST_NARROW);
            std::assert_eq!(map.insert(addr, put, FIRST), tracked(None));
            std::assert_eq!(map.take(addr, FIRST), Some(put));
        }
    }

    #[test]
    fn neighbors_do_not_disturb_each_other() {
        let map = map();
        for (nth, addr) in ADDRS.into_iter().enumerate() {
            map.insert(addr, block(10 + nth as u32, nth), FIRST);
        }
        for (nth, addr) in ADDRS.into_iter().enumerate() {
            std::assert_eq!(map.take(addr, FIRST), Some(block(10 + nth as u32, nth)));
        }
    }

    #[test]
    fn a_block_put_over_another_returns_it_whatever_their_sizes() {
        let map = map();
        let sizes = [5, LARGEST_NARROW + 1, usize::MAX, 0];
        for addr in ADDRS {
            map.insert(addr, block(11, 7), FIRST);
            let mut held = block(11, 7);
            for size in sizes {
                let put = block(12, size);
                std::assert_eq!(map.insert(addr, put, FIRST), tracked(Some(held)));
                held = put;
            }
            std::assert_eq!(map.take(addr, FIRST), Some(held));
        }
        std::assert_eq!(map.side.lock().n_entries, 0);
    }

    #[test]
    fn blocks_of_an_earlier_session_are_absent() {
        for addr in ADDRS {
            for size in [3, usize::MAX] {
                let map = map();
                map.insert(addr, block(11, size), FIRST);
                std::assert_eq!(map.take(addr, PpId(12)), None);
                map.insert(addr, block(11, size), FIRST);
                let put = map.insert(addr, block(12, size), PpId(12));
                std::assert_eq!(put, tracked(None));
            }
        }
    }

    #[test]
    fn cleared_map_holds_nothing() {
        let map = map();
        for addr in ADDRS {
            map.insert(addr, block(11, usize::MAX), FIRST);
        }
        map.clear();
        std::assert!(ADDRS.iter().all(|addr| map.take(*addr, FIRST).is_none()));
    }

    #[test]
    fn side_table_equals_a_hash_map_over_random_operations() {
        let mut side = Side {
            chunk: 0,
            n_entries: 0,
            table: Table::new(),
        };
        let mut model = std::collections::HashMap::new();
        let mut seed = 7_u64;
        let n_steps = if cfg!(miri) { 2_000 } else { 60_000 };
        for step in 0..n_steps {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let addr = (seed >> 40) as usize % 5_000;
            if seed >> 32 & 3 == 0 {
                std::assert_eq!(side.take(addr), model.remove(&addr));
            } else {
                let put = block(1 + step, step as usize);
                model.insert(addr, put);
                std::assert!(side.insert(addr, put));
            }
            std::assert_eq!(side.n_entries, model.len());
        }
        std::assert!(model.len() > 2_048 || cfg!(miri));
    }
}
