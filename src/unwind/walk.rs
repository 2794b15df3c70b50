//! The walk: from frame to frame until the outermost one, the depth asked for, or a reason to stop.

use super::rule::{Base, FrameRule, PackedRule, Place, PlaceBase, SavedFp, Unpacked};
use super::rule_cache::{self, Cached};
use super::{Registers, cfi, frame_pointer};
use crate::modules;
use crate::sys::MappedWords;

/// The registers of one frame, and how its pc came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) pc: usize,
    pub(super) sp: usize,
    pub(super) fp: usize,
    /// Whether the pc is the next instruction itself. Otherwise it is a return address, and the call lies before it.
    pub(super) is_interrupted: bool,
    /// Whether the pc was found by a guess, or from one that was.
    pub(super) is_guessed: bool,
}

/// What a walk reads stacks through.
pub(super) trait Memory {
    /// The word at `addr`; `None` when it cannot be had.
    fn read(&mut self, addr: usize) -> Option<usize>;

    /// Whether a frame whose stack pointer is `sp` may have the CFA `cfa`. `may_switch`: the CFA does not follow from `sp`,
    /// so the caller may be on another stack.
    fn grows(&mut self, sp: usize, cfa: usize, may_switch: bool) -> bool;

    /// As [`Memory::read`], for a word that becomes the caller's frame pointer.
    fn read_fp(&mut self, addr: usize) -> Option<usize>;

    /// The word just below `cfa`; `None` also when [`Memory::grows`] says no.
    #[inline]
    fn read_below_cfa(&mut self, sp: usize, cfa: usize, may_switch: bool) -> Option<usize> {
        if !self.grows(sp, cfa, may_switch) {
            return None;
        }
        self.read(cfa.wrapping_sub(size_of::<usize>()))
    }

    /// Notes that the frame pointer's present value, `fp`, matters to the walk.
    fn uses_fp(&mut self, fp: usize);
}

/// Why a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The last frame is the outermost one.
    Outermost,
    /// The depth asked for is reached.
    Depth,
    NoRule,
    UnsupportedRule,
    BadStack,
}

/// Return addresses, innermost first. Short stacks stay in place; longer ones go to a mapping.
pub(super) struct Frames {
    inline: [usize; Self::N_INLINE],
    spill: Option<MappedWords>,
    len: usize,
}

impl Frames {
    const N_INLINE: usize = 64;

    /// Makes an empty list that will use `spill` before it maps anything itself.
    pub(super) fn new(spill: Option<MappedWords>) -> Self {
        Self {
            inline: [0; Self::N_INLINE],
            spill,
            len: 0,
        }
    }

    pub(super) fn as_slice(&self) -> &[usize] {
        match &self.spill {
            Some(spill) if self.len > Self::N_INLINE => &spill[..self.len],
            _ => &self.inline[..self.len],
        }
    }

    /// The mapping, for the next walk.
    pub(super) fn into_spill(self) -> Option<MappedWords> {
        self.spill
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the first `max` frames go, as far as there is room now: the frames so far and what follows them.
    fn room(&mut self, max: usize) -> &mut [usize] {
        let room = match &mut self.spill {
            Some(spill) if self.len > Self::N_INLINE => &mut spill[..],
            _ => &mut self.inline[..],
        };
        let n_frames = room.len().min(max);
        &mut room[..n_frames]
    }

    /// Adds a frame; false when there is no memory for it.
    #[inline]
    pub(super) fn push(&mut self, pc: usize) -> bool {
        if let Some(slot) = self.inline.get_mut(self.len) {
            *slot = pc;
            self.len += 1;
            return true;
        }
        self.push_slow(pc)
    }

    #[cold]
    #[inline(never)]
    fn push_slow(&mut self, pc: usize) -> bool {
        let capacity = self.spill.as_ref().map_or(0, |spill| spill.len());
        if self.len == capacity || capacity == 0 {
            let Some(mut larger) = MappedWords::new((capacity * 2).max(1024)) else {
                return false;
            };
            if let Some(spill) = &self.spill {
                larger[..capacity].copy_from_slice(spill);
            }
            self.spill = Some(larger);
        }
        let Some(spill) = &mut self.spill else {
            return false;
        };
        if self.len == Self::N_INLINE {
            spill[..Self::N_INLINE].copy_from_slice(&self.inline);
        }
        spill[self.len] = pc;
        self.len += 1;
        true
    }
}

impl Cursor {
    /// The frame that `registers` were read in. Its pc is taken for a return address.
    pub(super) fn new(registers: Registers) -> Self {
        Self {
            pc: registers.pc,
            sp: registers.sp,
            fp: registers.fp,
            is_interrupted: false,
            is_guessed: false,
        }
    }

    /// The address whose rule and source line are this frame's.
    #[inline]
    fn lookup_address(&self) -> usize {
        self.pc.wrapping_sub(usize::from(!self.is_interrupted))
    }

    /// The rule of the frame, from the cache or else from the tables.
    #[inline]
    fn rule(&self) -> PackedRule {
        let address = self.lookup_address();
        match rule_cache::get(address) {
            Cached::Hit(rule) => rule,
            Cached::Miss => cfi::rule_of(address, self.is_guessed),
        }
    }
}

/// Walks from `cursor`, whose pc is the last of `frames`, and adds frames until there are `max`. On return `cursor` is the
/// last frame added.
pub(super) fn walk<M: Memory>(
    cursor: &mut Cursor,
    memory: &mut M,
    frames: &mut Frames,
    max: usize,
) -> Stop {
    loop {
        if let Err(stop) = steps(cursor, memory, frames, max) {
            return stop;
        }
    }
}

/// As [`walk`], for frames that mostly have simple rules. Between them everything lives in registers; the other steps get
/// copies.
pub(super) fn walk_fast<M: Memory + Copy>(
    cursor: &mut Cursor,
    memory: &mut M,
    frames: &mut Frames,
    max: usize,
) -> Stop {
    let Cursor {
        mut pc,
        mut sp,
        mut fp,
        ..
    } = *cursor;
    let mut reads = *memory;
    let mut n_frames = frames.len;
    let mut room = frames.room(max);
    'frames: loop {
        'other: {
            let Cached::Hit(rule) = rule_cache::get(pc.wrapping_sub(1)) else {
                break 'other;
            };
            if !rule.is_simple() {
                break 'other;
            }
            let Some(slot) = room.get_mut(n_frames) else {
                break 'other;
            };
            // A failed attempt must leave no trace: the other path begins anew.
            let mut attempt = reads;
            let Some(caller) = simple_caller(sp, fp, rule, &mut attempt) else {
                break 'other;
            };
            if caller.0 == 0 {
                break 'other;
            }
            reads = attempt;
            (pc, sp, fp) = caller;
            *slot = pc;
            n_frames += 1;
            continue 'frames;
        }
        let mut copy = reads;
        frames.len = n_frames;
        *cursor = Cursor {
            pc,
            sp,
            fp,
            is_interrupted: false,
            is_guessed: false,
        };
        let outcome = steps(cursor, &mut copy, frames, max);
        reads = copy;
        if let Err(stop) = outcome {
            *memory = reads;
            return stop;
        }
        Cursor { pc, sp, fp, .. } = *cursor;
        n_frames = frames.len;
        room = frames.room(max);
    }
}

/// Takes one step of any kind, and more until `cursor` is an ordinary frame again.
#[cold]
#[inline(never)]
fn steps<M: Memory>(
    cursor: &mut Cursor,
    memory: &mut M,
    frames: &mut Frames,
    max: usize,
) -> Result<(), Stop> {
    loop {
        let caller = step(*cursor, memory)?;
        if frames.len >= max {
            return Err(Stop::Depth);
        }
        if !frames.push(caller.pc) {
            return Err(Stop::BadStack);
        }
        *cursor = caller;
        if !caller.is_interrupted && !caller.is_guessed {
            return Ok(());
        }
    }
}

/// The caller of `frame`.
fn step<M: Memory>(frame: Cursor, memory: &mut M) -> Result<Cursor, Stop> {
    let rule = frame.rule();
    let caller = match rule.unpack() {
        Unpacked::Simple => {
            simple_caller(frame.sp, frame.fp, rule, memory).map(|(pc, sp, fp)| Cursor {
                pc,
                sp,
                fp,
                is_interrupted: false,
                is_guessed: frame.is_guessed,
            })
        }
        Unpacked::Wide(idx) => wide_caller(frame, rule_cache::wide(idx), memory),
        Unpacked::Outermost => return Err(Stop::Outermost),
        Unpacked::NoTable => {
            let caller = frame_pointer::step(frame, memory, modules::is_pinned_code);
            return caller.ok_or(Stop::NoRule);
        }
        Unpacked::Unsupported => return Err(Stop::UnsupportedRule),
    };
    match caller {
        Some(caller) if caller.pc == 0 => Err(Stop::Outermost),
        caller => caller.ok_or(Stop::BadStack),
    }
}

/// The address of a simple frame's return address; `None` for other rules. The CFA is not checked.
#[inline]
pub(super) fn simple_return_slot(registers: Registers) -> Option<usize> {
    let cursor = Cursor::new(registers);
    let Cached::Hit(rule) = rule_cache::get(cursor.lookup_address()) else {
        return None;
    };
    if !rule.is_simple() {
        return None;
    }
    let base = if rule.uses_fp() { cursor.fp } else { cursor.sp };
    Some(
        base.wrapping_add(rule.cfa_bytes())
            .wrapping_sub(size_of::<usize>()),
    )
}

/// The caller's pc, sp and fp of a frame with a simple rule; `None` when the stack is not as the rule says. A pc of 0 means
/// that there is no caller.
#[inline(always)]
fn simple_caller<M: Memory>(
    sp: usize,
    fp: usize,
    rule: PackedRule,
    memory: &mut M,
) -> Option<(usize, usize, usize)> {
    let base = if rule.uses_fp() {
        memory.uses_fp(fp);
        fp
    } else {
        sp
    };
    let cfa = base.wrapping_add(rule.cfa_bytes());
    let pc = memory.read_below_cfa(sp, cfa, rule.uses_fp())?;
    let below_cfa = rule.fp_bytes_below_cfa();
    let fp = if below_cfa == 0 {
        fp
    } else {
        memory.read_fp(cfa.wrapping_sub(below_cfa))?
    };
    Some((pc, cfa, fp))
}

/// As [`simple_caller`], for any rule.
fn wide_caller<M: Memory>(frame: Cursor, rule: FrameRule, memory: &mut M) -> Option<Cursor> {
    let mut base = |base, offset: i32| {
        let base = match base {
            Base::Sp => frame.sp,
            Base::Fp => {
                memory.uses_fp(frame.fp);
                frame.fp
            }
        };
        base.wrapping_add_signed(offset as isize)
    };
    let mut cfa = base(rule.cfa.base, rule.cfa.offset);
    if let Some(offset) = rule.cfa.deref {
        let word = memory.read(cfa)?;
        cfa = word.wrapping_add_signed(offset as isize);
    }
    let may_switch = rule.cfa.base == Base::Fp || rule.cfa.deref.is_some();
    if !memory.grows(frame.sp, cfa, may_switch) {
        return None;
    }
    let mut slot = |place: Place| {
        let base = match place.base {
            PlaceBase::Cfa => cfa,
            PlaceBase::Sp => frame.sp,
            PlaceBase::Fp => {
                memory.uses_fp(frame.fp);
                frame.fp
            }
        };
        base.wrapping_add_signed(place.offset as isize)
    };
    let pc_slot = slot(rule.return_address);
    let fp_slot = match rule.saved_fp {
        SavedFp::At(place) => Some(slot(place)),
        SavedFp::Same | SavedFp::Lost => None,
    };
    let pc = memory.read(pc_slot)?;
    let fp = match (fp_slot, rule.saved_fp) {
        (Some(slot), _) => memory.read_fp(slot)?,
        (None, SavedFp::Lost) => 0,
        (None, _) => frame.fp,
    };
    Some(Cursor {
        pc,
        sp: cfa,
        fp,
        is_interrupted: rule.interrupts,
        is_guessed: frame.is_guessed,
    })
}
