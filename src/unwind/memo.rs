//! Whole-stack memos: the same call site at the same stack pointer, with every word that a walk read unchanged, is the same
//! stack.
//!
//! A thread's memo is a piece of a process-wide pool. It begins with sets of entries, found by stack pointer and first
//! return address; behind them lies an arena with the words that the entries' walks read.

use super::Registers;
use super::stack::{LiveStack, StackWord};
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
const ARENA_START: usize = ARENA_LEN + ENTRY;
const MEMO_WORDS: usize = 16 << 10;
/// Threads that can have a memo at the same time.
const N_MEMOS: usize = 512;
/// Arena pieces are multiples of this, so that an entry's successor often fits in its place.
const PIECE: usize = 8;

// What the words of an entry mean.
const PC: usize = 0;
const SP: usize = 1;
const RETURN_ADDRESS: usize = 2;
const FP: usize = 3;
/// All bits when the walk used the initial frame pointer, none when not.
const FP_MASK: usize = 4;
/// The stack's number, and above it the module generation.
const ID: usize = 5;
/// Where the words begin, and above it how many there are.
const WORDS: usize = 6;
/// How many words there is room for.
const CAPACITY: usize = 7;

/// The memory of all memos.
static POOL: OnceLock<Option<&'static [AtomicU64]>> = OnceLock::new();
/// A bit for each memo in use.
static IN_USE: [AtomicU64; N_MEMOS / 64] = [const { AtomicU64::new(0) }; N_MEMOS / 64];

/// Makes the pool. Not hook-safe.
pub(super) fn prepare() {
    POOL.get_or_init(|| sys::map_words(N_MEMOS * MEMO_WORDS));
}

/// The memo of one thread.
#[derive(Clone, Copy)]
pub(super) struct Memo {
    words: &'static [AtomicU64],
    memo_idx: usize,
}

/// A stack that the memo knows.
#[derive(Clone, Copy)]
pub(super) struct Entry(&'static [AtomicU64]);

impl Entry {
    /// The stack's number.
    #[inline]
    pub(super) fn id(self) -> u32 {
        self.0[ID].load(Ordering::Relaxed) as u32
    }

    /// Forgets the stack.
    #[cold]
    pub(super) fn forget(self) {
        self.0[PC].store(0, Ordering::Relaxed);
    }
}

/// What identifies a stack before its words are compared.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) registers: Registers,
    pub(super) return_address: usize,
    pub(super) generation: u32,
}

impl Memo {
    /// Takes an empty memo from the pool; `None` when all are in use or [`prepare`] made none. Hook-safe.
    pub(super) fn claim() -> Option<Self> {
        let pool = (*POOL.get()?)?;
        for (word_idx, word) in IN_USE.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones() as usize;
                // Acquire pairs with the Release of the thread that gave the memo back empty.
                bits = word.fetch_or(1 << bit, Ordering::Acquire);
                if bits >> bit & 1 == 0 {
                    let memo_idx = word_idx * 64 + bit;
                    let words = pool.get(memo_idx * MEMO_WORDS..)?.get(..MEMO_WORDS)?;
                    return Some(Self { words, memo_idx });
                }
            }
        }
        None
    }

    /// Gives the memo back. Hook-safe.
    pub(super) fn release(self) {
        sys::zero_words(self.words);
        let word = &IN_USE[self.memo_idx / 64];
        word.fetch_and(!(1 << (self.memo_idx % 64)), Ordering::Release);
    }

    /// The entry of the stack that `key` and the words on `stack` identify. Hook-safe.
    #[inline(never)]
    pub(super) fn find(&self, key: &Key, stack: &LiveStack<'_>) -> Option<Entry> {
        let Registers { pc, sp, fp } = key.registers;
        for entry in self.set(key)?.chunks_exact(ENTRY) {
            // Relaxed: only this thread writes its memo.
            let word = |idx: usize| entry[idx].load(Ordering::Relaxed);
            let differences = word(PC) ^ pc as u64
                | word(SP) ^ sp as u64
                | word(RETURN_ADDRESS) ^ key.return_address as u64
                | (word(FP) ^ fp as u64) & word(FP_MASK)
                | word(ID) >> 32 ^ u64::from(key.generation);
            if differences != 0 {
                continue;
            }
            let (start, n_words) = unpair(word(WORDS));
            let words = self.words.get(start..)?.get(..n_words)?;
            if stack.matches(sp, words) {
                return Some(Entry(entry));
            }
        }
        None
    }

    /// Begins to note the words that a walk from `sp` reads.
    pub(super) fn record(&self, sp: usize) -> Recording {
        Recording {
            words: self.words,
            start: self.arena_end(),
            at: self.arena_end(),
            ..Recording::nowhere(sp)
        }
    }

    /// Keeps the stack that was walked while `recording`, in place of another one.
    pub(super) fn insert(&self, key: &Key, recording: &Recording, id: u32) {
        if !recording.is_whole() {
            // Make room for the next time, unless an empty arena would not have been enough.
            if self.arena_end() > (ARENA_START + MEMO_WORDS) / 2 {
                self.clear();
            }
            return;
        }
        let Some((entry, start, capacity)) = self.place(key, recording) else {
            return;
        };
        let (registers, len) = (key.registers, recording.len());
        let values = [
            registers.pc as u64,
            registers.sp as u64,
            key.return_address as u64,
            registers.fp as u64,
            if recording.uses_initial_fp {
                u64::MAX
            } else {
                0
            },
            pair(id as usize, key.generation as usize),
            pair(start, len),
            capacity as u64,
        ];
        for (word, value) in entry.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The entry to overwrite, and where its words are and how many fit: in the piece of the entry's predecessor when they
    /// fit there, else where they were recorded.
    fn place(
        &self,
        key: &Key,
        recording: &Recording,
    ) -> Option<(&'static [AtomicU64], usize, usize)> {
        let set = self.set(key)?;
        let is_free = |entry: &&[AtomicU64]| {
            let generation = entry[ID].load(Ordering::Relaxed) >> 32;
            entry[PC].load(Ordering::Relaxed) == 0 || generation != u64::from(key.generation)
        };
        let entry = set.chunks_exact(ENTRY).find(is_free).or_else(|| {
            let way = self.words[NEXT_WAY].load(Ordering::Relaxed);
            self.words[NEXT_WAY].store(way.wrapping_add(1), Ordering::Relaxed);
            set.chunks_exact(ENTRY).nth(way as usize % N_WAYS)
        })?;
        let (old_start, _) = unpair(entry[WORDS].load(Ordering::Relaxed));
        let old_capacity = entry[CAPACITY].load(Ordering::Relaxed) as usize;
        let recorded = self.words.get(recording.start..)?.get(..recording.len())?;
        if recording.len() <= old_capacity {
            let piece = self.words.get(old_start..)?;
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
        self.words[ARENA_LEN].store(arena_len as u64, Ordering::Relaxed);
        Some((entry, recording.start, capacity))
    }

    #[inline]
    fn set(&self, key: &Key) -> Option<&'static [AtomicU64]> {
        let mixed = key.return_address ^ key.registers.sp.rotate_left(32);
        let hash = (mixed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let set_idx = (hash >> (64 - N_SETS.trailing_zeros())) as usize;
        self.words
            .get(set_idx * N_WAYS * ENTRY..)?
            .get(..N_WAYS * ENTRY)
    }

    fn arena_end(&self) -> usize {
        ARENA_START + self.words[ARENA_LEN].load(Ordering::Relaxed) as usize
    }

    /// Forgets all stacks.
    #[cold]
    fn clear(&self) {
        for entry in self.words[..ARENA_LEN].chunks_exact(ENTRY) {
            entry[PC].store(0, Ordering::Relaxed);
            entry[CAPACITY].store(0, Ordering::Relaxed);
        }
        self.words[ARENA_LEN].store(0, Ordering::Relaxed);
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

    /// Notes a word that the walk depends on.
    #[inline]
    pub(super) fn word(&mut self, addr: usize, value: usize) {
        let packed = StackWord::new(self.sp, addr, value);
        match (packed, self.words.get(self.at)) {
            (Some(packed), Some(slot)) => {
                slot.store(packed.0, Ordering::Relaxed);
                self.at += 1;
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
