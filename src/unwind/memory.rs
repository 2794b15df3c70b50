//! The two ways to read stacks: directly, on the thread's own stack, and through the system, on any.

use super::memo::Recording;
use super::stack::LiveStack;
use super::walk::Memory;
use crate::sys;
use std::ops::Range;

const WORD: usize = size_of::<usize>();

/// The thread's own stack; a walk that leaves it fails. Notes for the memo what was read.
#[derive(Clone, Copy)]
pub(super) struct OwnMemory<'anchor> {
    /// Starts at the stack pointer that the recording is relative to.
    pub(super) stack: LiveStack<'anchor>,
    pub(super) recording: Recording,
}

impl Memory for OwnMemory<'_> {
    #[inline]
    fn read(&mut self, addr: usize) -> Option<usize> {
        self.stack.read(addr)
    }

    #[inline]
    fn depends_on_word(&mut self, addr: usize, value: usize) {
        self.recording.word(addr, value);
    }

    #[inline]
    fn depends_on_fp(&mut self, fp: usize) {
        self.recording.uses_fp(fp);
    }

    #[inline]
    fn replaces_fp(&mut self, addr: usize) {
        self.recording.fp_word(addr);
    }

    #[inline]
    fn read_below_cfa(&mut self, sp: usize, cfa: usize, _may_switch: bool) -> Option<usize> {
        // One check of the bounds: a word inside has a CFA inside.
        let slot = cfa.wrapping_sub(WORD);
        if cfa <= sp { None } else { self.read(slot) }
    }

    #[inline]
    fn grows(&mut self, sp: usize, cfa: usize, _may_switch: bool) -> bool {
        cfa > sp && self.stack.contains(cfa.wrapping_sub(WORD))
    }
}

/// Words that are fetched at a time; chunks never cross a page.
const CHUNK: usize = 64;
/// Coroutines and grown stacks nest; every change of the stack is one of these.
const MAX_SWITCHES: u32 = 1024;

/// Whatever the stack pointer points to, read through the system, so that a bad address is an answer and not a fault.
pub(super) struct AnyMemory {
    /// The thread's own stack.
    own: Range<usize>,
    /// The highest CFA on it so far.
    own_floor: usize,
    n_switches: u32,
    chunk: [usize; CHUNK],
    chunk_addr: usize,
    n_chunk_words: usize,
}

impl AnyMemory {
    /// Makes the view of a thread whose own stack is `own`.
    pub(super) fn new(own: Range<usize>) -> Self {
        Self {
            own,
            own_floor: 0,
            n_switches: 0,
            chunk: [0; CHUNK],
            chunk_addr: 0,
            n_chunk_words: 0,
        }
    }

    fn is_own(&self, sp: usize) -> bool {
        (self.own.start..=self.own.end).contains(&sp)
    }

    fn switches(&mut self, may_switch: bool) -> bool {
        self.n_switches += u32::from(may_switch);
        may_switch && self.n_switches <= MAX_SWITCHES
    }
}

impl Memory for AnyMemory {
    fn read(&mut self, addr: usize) -> Option<usize> {
        if addr % WORD != 0 {
            return None;
        }
        let chunk_addr = addr & !(CHUNK * WORD - 1);
        if chunk_addr != self.chunk_addr {
            self.n_chunk_words = sys::read_words(chunk_addr, &mut self.chunk);
            self.chunk_addr = chunk_addr;
        }
        let idx = (addr - chunk_addr) / WORD;
        self.chunk[..self.n_chunk_words].get(idx).copied()
    }

    fn depends_on_word(&mut self, _addr: usize, _value: usize) {}

    fn depends_on_fp(&mut self, _fp: usize) {}

    fn replaces_fp(&mut self, _addr: usize) {}

    fn grows(&mut self, sp: usize, cfa: usize, may_switch: bool) -> bool {
        if self.is_own(sp) {
            self.own_floor = self.own_floor.max(sp);
        }
        match (self.is_own(sp), self.is_own(cfa)) {
            (true, true) => cfa > sp,
            (true, false) => self.switches(may_switch),
            (false, true) => cfa > self.own_floor && self.switches(may_switch),
            (false, false) => cfa > sp || self.switches(may_switch),
        }
    }
}
