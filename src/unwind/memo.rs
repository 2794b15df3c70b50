//! Whole-stack memos: the same call site at the same stack pointer, with every word that a walk read unchanged, is the same
//! stack.
//!
//! A thread's memo is a piece of a process-wide pool. It begins with sets of entries, found by stack pointer and first
//! return address; behind them lies an arena with the words that the entries' walks read. The first return address is one
//! of these words: where it is looked for only decides which set is searched, so that a stale place costs a walk at most.

use super::stack::LiveStack;
use super::{Registers, walk};
use crate::sys;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const N_WAYS: usize = 4;
const N_SETS: usize = 128;
const N_ENTRIES: usize = N_WAYS * N_SETS;
/// Words of an entry: one cache line.
const ENTRY: usize = 8;
/// Where the end of the arena's used part is kept, as words after [`ARENA_START`].
const ARENA_LEN: usize = N_ENTRIES * ENTRY;
/// Which way of a full set goes next.
const NEXT_WAY: usize = ARENA_LEN + 1;
/// For some pcs, where the first return address lies: the pc, and in the low [`HINT_BITS`] its index above the stack pointer.
const HINTS: usize = ARENA_LEN + ENTRY;
const N_HINTS: usize = 128;
const HINT_BITS: u32 = 16;
const ARENA_START: usize = HINTS + N_HINTS;
const MEMO_WORDS: usize = 32 << 10;
/// Threads that can have a memo at the same time.
const N_MEMOS: usize = 512;
/// Arena pieces are multiples of this, so that an entry's successor often fits in its place.
const PIECE: usize = 8;

// What the words of an entry mean.
const PC: usize = 0;
/// The stack pointer, with [`USES_FP`] when the walk used the initial frame pointer.
const SP: usize = 1;
const FP: usize = 2;
/// The stack's number, and above it the module generation.
const ID: usize = 3;
/// Where the words begin, and above it where they end.
const WORDS: usize = 4;
/// How many words there is room for.
const CAPACITY: usize = 5;
/// Whether the walk went through code that may be unloaded.
const MAY_GO: usize = 6;
/// A bit that no stack pointer has: [`OwnBounds::live_above`](super::stack::OwnBounds::live_above) refuses it.
const USES_FP: u64 = 1;

/// The memory of all memos.
static POOL: OnceLock<Option<&'static [AtomicU64]>> = OnceLock::new();
/// A bit for each memo in use.
static IN_USE: [AtomicU64; N_MEMOS / 64] = [const { AtomicU64::new(0) }; N_MEMOS / 64];

/// Makes the pool. Not hook-safe.
pub(super) fn prepare() {
    POOL.get_or_init(|| sys::map_words(N_MEMOS * MEMO_WORDS));
}

/// The memo of one thread. Only that thread reads and writes it, so that Relaxed accesses suffice.
#[derive(Clone, Copy)]
pub(super) struct Memo(&'static Words);

type Words = [AtomicU64; MEMO_WORDS];

/// A stack that the memo knows.
#[derive(Clone, Copy)]
pub(super) struct Entry(&'static [AtomicU64]);

impl Entry {
    /// The stack's number.
    #[inline]
    pub(super) fn id(self) -> u32 {
        self.0[ID].load(Ordering::Relaxed) as u32
    }

    /// Whether the walk went through code that may be unloaded, and other code loaded in its place.
    #[inline]
    pub(super) fn may_go(self) -> bool {
        self.0[MAY_GO].load(Ordering::Relaxed) != 0
    }

    /// Forgets the stack.
    #[cold]
    pub(super) fn forget(self) {
        self.0[PC].store(0, Ordering::Relaxed);
    }
}

impl Memo {
    /// Takes an empty memo from the pool; `None` when all are in use or [`prepare`] made none. Hook-safe.
    pub(super) fn claim() -> Option<Self> {
        let pool = (*POOL.get()?)?;
        for (word_idx, word) in IN_USE.iter().enumerate() {
            // Relaxed: a first look; `fetch_or` decides.
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones() as usize;
                // Acquire pairs with the Release of the thread that gave the memo back empty.
                bits = word.fetch_or(1 << bit, Ordering::Acquire);
                if bits >> bit & 1 == 0 {
                    let memo_idx = word_idx * 64 + bit;
                    let words = pool.get(memo_idx * MEMO_WORDS..)?.get(..MEMO_WORDS)?;
                    return words.try_into().ok().map(Self);
                }
            }
        }
        None
    }

    /// Gives the memo back. Hook-safe.
    pub(super) fn release(self) {
        let Some(Some(pool)) = POOL.get() else {
            return;
        };
        sys::zero_words(self.0);
        let distance = self.0.as_ptr().addr() - pool.as_ptr().addr();
        let memo_idx = distance / size_of::<Words>();
        let word = &IN_USE[memo_idx / 64];
        // Release pairs with the Acquire in `claim`: whoever takes the memo next finds it empty.
        word.fetch_and(!(1 << (memo_idx % 64)), Ordering::Release);
    }

    /// The entry of the stack that starts at `registers`; `stack` is live from their stack pointer up. Hook-safe.
    #[inline(always)]
    pub(super) fn find(
        &self,
        registers: Registers,
        generation: u32,
        stack: &LiveStack<'_>,
    ) -> Option<Entry> {
        let Registers { pc, sp, fp } = registers;
        let return_address = stack.read_above(self.return_slot(registers))?;
        for entry in self.set(sp, return_address).chunks_exact(ENTRY) {
            let word = |idx: usize| entry[idx].load(Ordering::Relaxed);
            if word(PC) != pc as u64 || word(ID) >> 32 != u64::from(generation) {
                continue;
            }
            let is_same_frame = match word(SP) ^ sp as u64 {
                0 => true,
                USES_FP => word(FP) == fp as u64,
                _ => false,
            };
            if !is_same_frame {
                continue;
            }
            let (start, end) = unpair(word(WORDS));
            if stack.matches(self.0.get(start..end)?) {
                return Some(Entry(entry));
            }
        }
        None
    }

    /// The index above the stack pointer at which the first return address is to be looked for; a huge one when the tables
    /// do not tell simply.
    #[inline(always)]
    fn return_slot(&self, registers: Registers) -> usize {
        let pc = registers.pc;
        let word = self.0[HINTS + pc / 4 % N_HINTS].load(Ordering::Relaxed);
        let idx = word ^ (pc as u64) << HINT_BITS;
        if idx >> HINT_BITS == 0 {
            return idx as usize;
        }
        self.return_slot_slow(registers)
    }

    /// As the tables have it. Kept for the next time.
    #[cold]
    #[inline(never)]
    fn return_slot_slow(&self, registers: Registers) -> usize {
        let Some(slot) = walk::simple_return_slot(registers) else {
            return usize::MAX;
        };
        let idx = LiveStack::index_above(registers.sp, slot);
        if idx >> HINT_BITS == 0 {
            let word = (registers.pc as u64) << HINT_BITS | idx;
            self.0[HINTS + registers.pc / 4 % N_HINTS].store(word, Ordering::Relaxed);
        }
        idx as usize
    }

    /// Begins to note the words that a walk from `sp` reads. Hook-safe.
    pub(super) fn record(&self, sp: usize) -> Recording {
        Recording {
            words: self.0,
            start: self.arena_end(),
            at: self.arena_end(),
            ..Recording::nowhere(sp)
        }
    }

    /// Keeps the stack that starts at `registers` and was walked while `recording`, in place of another one. `stack` is live
    /// from their stack pointer up. Hook-safe.
    pub(super) fn insert(
        &self,
        registers: Registers,
        generation: u32,
        stack: &LiveStack<'_>,
        recording: &Recording,
        id: u32,
        may_go: bool,
    ) {
        if !recording.is_whole() {
            // Make room for the next time, unless an empty arena would not have been enough.
            if self.arena_end() > (ARENA_START + MEMO_WORDS) / 2 {
                self.clear();
            }
            return;
        }
        let Some(return_address) = stack.read_above(self.return_slot(registers)) else {
            return;
        };
        let set = self.set(registers.sp, return_address);
        let Some((entry, start, capacity)) = self.place(set, generation, recording) else {
            return;
        };
        let values = [
            registers.pc as u64,
            registers.sp as u64
                | if recording.uses_initial_fp {
                    USES_FP
                } else {
                    0
                },
            registers.fp as u64,
            pair(id as usize, generation as usize),
            pair(start, start + recording.len()),
            capacity as u64,
            u64::from(may_go),
        ];
        for (word, value) in entry.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The entry to overwrite, and where its words are and how many fit: in the piece of the entry's predecessor when they
    /// fit there, else where they were recorded.
    fn place(
        &self,
        set: &'static [AtomicU64],
        generation: u32,
        recording: &Recording,
    ) -> Option<(&'static [AtomicU64], usize, usize)> {
        let is_free = |entry: &&[AtomicU64]| {
            let entry_generation = entry[ID].load(Ordering::Relaxed) >> 32;
            entry[PC].load(Ordering::Relaxed) == 0 || entry_generation != u64::from(generation)
        };
        let entry = set.chunks_exact(ENTRY).find(is_free).or_else(|| {
            let way = self.0[NEXT_WAY].load(Ordering::Relaxed);
            self.0[NEXT_WAY].store(way.wrapping_add(1), Ordering::Relaxed);
            set.chunks_exact(ENTRY).nth(way as usize % N_WAYS)
        })?;
        let (old_start, _) = unpair(entry[WORDS].load(Ordering::Relaxed));
        let old_capacity = entry[CAPACITY].load(Ordering::Relaxed) as usize;
        let recorded = self.0.get(recording.start..)?.get(..recording.len())?;
        if recording.len() <= old_capacity {
            let piece = self.0.get(old_start..)?;
            for (to, from) in piece.iter().zip(recorded) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            return Some((entry, old_start, old_capacity));
        }
        let capacity = recording
            .len()
            .next_multiple_of(PIECE)
            .min(MEMO_WORDS - recording.start);
        let arena_len = recording.start + capacity - ARENA_START;
        self.0[ARENA_LEN].store(arena_len as u64, Ordering::Relaxed);
        Some((entry, recording.start, capacity))
    }

    #[inline(always)]
    fn set(&self, sp: usize, return_address: usize) -> &'static [AtomicU64] {
        let mixed = return_address ^ sp.rotate_left(32);
        let hash = (mixed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let set_idx = (hash >> (64 - N_SETS.trailing_zeros())) as usize;
        &self.0[set_idx * N_WAYS * ENTRY..][..N_WAYS * ENTRY]
    }

    fn arena_end(&self) -> usize {
        ARENA_START + self.0[ARENA_LEN].load(Ordering::Relaxed) as usize
    }

    /// Forgets all stacks.
    #[cold]
    fn clear(&self) {
        for entry in self.0[..ARENA_LEN].chunks_exact(ENTRY) {
            entry[PC].store(0, Ordering::Relaxed);
            entry[CAPACITY].store(0, Ordering::Relaxed);
        }
        self.0[ARENA_LEN].store(0, Ordering::Relaxed);
    }
}

/// The words that one walk has read, in the arena but not yet any entry's.
#[derive(Clone, Copy)]
pub(super) struct Recording {
    words: &'static [AtomicU64],
    start: usize,
    /// Where the next word goes; [`Recording::BROKEN`] once a word could not be kept.
    at: usize,
    /// What the words' places are relative to.
    sp: usize,
    /// Where the frame pointer's present value was read, or one of the two numbers below.
    fp_source: usize,
    uses_initial_fp: bool,
}

impl Recording {
    const BROKEN: usize = usize::MAX / 2;
    /// The frame pointer has its initial value.
    const INITIAL: usize = 0;
    /// The word that the frame pointer was read from is recorded.
    const RECORDED: usize = 1;

    /// A recording for a thread without memo; it keeps nothing.
    pub(super) fn nowhere(sp: usize) -> Self {
        Self {
            words: &[],
            start: 0,
            at: Self::BROKEN,
            sp,
            fp_source: Self::INITIAL,
            uses_initial_fp: false,
        }
    }

    fn is_whole(&self) -> bool {
        self.at < Self::BROKEN
    }

    fn len(&self) -> usize {
        self.at - self.start
    }

    /// Where the words go that [`Recording::add`] will add: pairs of a word's index above the stack pointer and its value.
    #[inline]
    pub(super) fn room(&self) -> &'static [AtomicU64] {
        self.words.get(self.at..).unwrap_or_default()
    }

    /// Notes the words that were put at the start of [`Recording::room`].
    #[inline]
    pub(super) fn add(&mut self, n_pairs: usize) {
        self.at += 2 * n_pairs;
    }

    /// Notes a word that the walk depends on.
    #[inline]
    pub(super) fn word(&mut self, addr: usize, value: usize) {
        match self.words.get(self.at..self.at + 2) {
            Some([idx_word, value_word]) => {
                idx_word.store(LiveStack::index_above(self.sp, addr), Ordering::Relaxed);
                value_word.store(value as u64, Ordering::Relaxed);
                self.at += 2;
            }
            _ => self.at = Self::BROKEN,
        }
    }

    /// Notes that the frame pointer was read from `addr`: the walk depends on that word only once it is used.
    #[inline]
    pub(super) fn fp_word(&mut self, addr: usize) {
        self.fp_source = addr;
    }

    /// Notes that the walk depends on the frame pointer, which is `fp` now.
    #[inline]
    pub(super) fn uses_fp(&mut self, fp: usize) {
        match self.fp_source {
            Self::INITIAL => self.uses_initial_fp = true,
            Self::RECORDED => {}
            addr => {
                self.word(addr, fp);
                self.fp_source = Self::RECORDED;
            }
        }
    }
}

fn pair(low: usize, high: usize) -> u64 {
    (low as u64 & 0xffff_ffff) | (high as u64) << 32
}

fn unpair(word: u64) -> (usize, usize) {
    ((word & 0xffff_ffff) as usize, (word >> 32) as usize)
}
