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

    /// Notes that the frame pointer's value matters to the walk.
    fn uses_fp(&mut self);
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
#[inline]
pub(super) fn walk<M: Memory>(
    cursor: &mut Cursor,
    memory: &mut M,
    frames: &mut Frames,
    max: usize,
) -> Stop {
    loop {
        let caller = match step(*cursor, memory) {
            Ok(caller) => caller,
            Err(stop) => return stop,
        };
        if frames.len() >= max {
            return Stop::Depth;
        }
        if !frames.push(caller.pc) {
            return Stop::BadStack;
        }
        *cursor = caller;
    }
}

/// The caller of `frame`.
#[inline]
pub(super) fn step<M: Memory>(frame: Cursor, memory: &mut M) -> Result<Cursor, Stop> {
    let rule = frame.rule();
    match rule.unpack() {
        Unpacked::Simple => step_simple(frame, rule, memory),
        Unpacked::Wide(idx) => step_wide(frame, rule_cache::wide(idx), memory),
        Unpacked::Outermost => Err(Stop::Outermost),
        Unpacked::NoTable => {
            frame_pointer::step(frame, memory, modules::is_pinned_code).ok_or(Stop::NoRule)
        }
        Unpacked::Unsupported => Err(Stop::UnsupportedRule),
    }
}

/// The address of a simple frame's return address; `None` for other rules. The CFA is not checked.
#[inline]
pub(super) fn simple_return_slot(registers: Registers) -> Option<usize> {
    let cursor = Cursor::new(registers);
    let Cached::Hit(rule) = rule_cache::get(cursor.lookup_address()) else {
        return None;
    };
    let Unpacked::Simple = rule.unpack() else {
        return None;
    };
    let base = if rule.uses_fp() { cursor.fp } else { cursor.sp };
    Some(
        base.wrapping_add(rule.cfa_bytes())
            .wrapping_sub(size_of::<usize>()),
    )
}

#[inline]
fn step_simple<M: Memory>(frame: Cursor, rule: PackedRule, memory: &mut M) -> Result<Cursor, Stop> {
    let base = if rule.uses_fp() {
        memory.uses_fp();
        frame.fp
    } else {
        frame.sp
    };
    let cfa = base.wrapping_add(rule.cfa_bytes());
    if !memory.grows(frame.sp, cfa, rule.uses_fp()) {
        return Err(Stop::BadStack);
    }
    let slot = cfa.wrapping_sub(size_of::<usize>());
    let pc = memory.read(slot).ok_or(Stop::BadStack)?;
    if pc == 0 {
        return Err(Stop::Outermost);
    }
    let mut fp = frame.fp;
    let below_cfa = rule.fp_bytes_below_cfa();
    if below_cfa != 0 {
        let slot = cfa.wrapping_sub(below_cfa);
        fp = memory.read_fp(slot).ok_or(Stop::BadStack)?;
    }
    Ok(Cursor {
        pc,
        sp: cfa,
        fp,
        is_interrupted: false,
        is_guessed: frame.is_guessed,
    })
}

#[cold]
#[inline(never)]
fn step_wide<M: Memory>(frame: Cursor, rule: FrameRule, memory: &mut M) -> Result<Cursor, Stop> {
    let mut base = |base, offset: i32| {
        let base = match base {
            Base::Sp => frame.sp,
            Base::Fp => {
                memory.uses_fp();
                frame.fp
            }
        };
        base.wrapping_add_signed(offset as isize)
    };
    let mut cfa = base(rule.cfa.base, rule.cfa.offset);
    if let Some(offset) = rule.cfa.deref {
        let word = memory.read(cfa).ok_or(Stop::BadStack)?;
        cfa = word.wrapping_add_signed(offset as isize);
    }
    let may_switch = rule.cfa.base == Base::Fp || rule.cfa.deref.is_some();
    if !memory.grows(frame.sp, cfa, may_switch) {
        return Err(Stop::BadStack);
    }
    let mut slot = |place: Place| {
        let base = match place.base {
            PlaceBase::Cfa => cfa,
            PlaceBase::Sp => frame.sp,
            PlaceBase::Fp => {
                memory.uses_fp();
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
    let pc = memory.read(pc_slot).ok_or(Stop::BadStack)?;
    if pc == 0 {
        return Err(Stop::Outermost);
    }
    let fp = match (fp_slot, rule.saved_fp) {
        (Some(slot), _) => memory.read_fp(slot).ok_or(Stop::BadStack)?,
        (None, SavedFp::Lost) => 0,
        (None, _) => frame.fp,
    };
    Ok(Cursor {
        pc,
        sp: cfa,
        fp,
        is_interrupted: rule.interrupts,
        is_guessed: frame.is_guessed,
    })
}
