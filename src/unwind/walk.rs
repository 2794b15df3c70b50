//! The walk: from frame to frame until the outermost one, the depth asked for, or a reason to stop.

use super::frames::Frames;
use super::memory::OwnMemory;
use super::rule::{Base, FrameRule, PackedRule, Place, PlaceBase, SavedFp, Unpacked};
use super::rule_cache::{self, Cached};
use super::stack::LiveStack;
use super::{Registers, cfi, frame_pointer};
use crate::modules;
use std::sync::atomic::Ordering;

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

    /// The word just below `cfa`; `None` also when [`Memory::grows`] says no.
    #[inline]
    fn read_below_cfa(&mut self, sp: usize, cfa: usize, may_switch: bool) -> Option<usize> {
        if !self.grows(sp, cfa, may_switch) {
            return None;
        }
        self.read(cfa.wrapping_sub(size_of::<usize>()))
    }

    /// Notes that the walk depends on the word `value` at `addr`.
    fn depends_on_word(&mut self, addr: usize, value: usize);

    /// Notes that the walk depends on the frame pointer's present value, `fp`.
    fn depends_on_fp(&mut self, fp: usize);

    /// Notes that the frame pointer's value was read from `addr`.
    fn replaces_fp(&mut self, addr: usize);
}

/// Why a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The last frame is the outermost one.
    Outermost,
    /// The depth asked for is reached.
    Depth,
    /// No table describes the last frame, and no frame record leads on.
    NoRule,
    /// A table asks for more than a rule can say.
    UnsupportedRule,
    /// The next frame is not on a readable stack, or does not lie above the last.
    BadStack,
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
        match self.is_interrupted {
            true => self.pc,
            false => modules::call_of(self.pc),
        }
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
pub(super) fn walk_fast(
    cursor: &mut Cursor,
    memory: &mut OwnMemory<'_>,
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
        let free = room.get_mut(n_frames..).unwrap_or_default();
        n_frames += sp_frames(&mut pc, &mut sp, &mut fp, &mut reads, free);
        'other: {
            let Cached::Hit(rule) = rule_cache::get(modules::call_of(pc)) else {
                break 'other;
            };
            if !rule.is_simple() {
                break 'other;
            }
            let Some(slot) = room.get_mut(n_frames) else {
                break 'other;
            };
            let Some(caller) = simple_caller(sp, fp, rule, &mut reads) else {
                break 'other;
            };
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

/// Walks while the frames have rules "CFA = sp + n", and puts the callers' pcs into `free`; gives their number. Within the
/// loop places are word indices on the stack, so that one number is checked, read from and noted.
#[inline(always)]
fn sp_frames(
    pc: &mut usize,
    sp: &mut usize,
    fp: &mut usize,
    memory: &mut OwnMemory<'_>,
    free: &mut [usize],
) -> usize {
    let stack = memory.stack;
    let mut sp_idx = LiveStack::index_above(stack.start(), *sp) as usize;
    let mut last_fp = None;
    let mut n_frames = 0;
    let notes = memory.recording.room().chunks_exact(2);
    for (slot, note) in free.iter_mut().zip(notes) {
        let Cached::Hit(rule) = rule_cache::get(modules::call_of(*pc)) else {
            break;
        };
        if !rule.is_sp_relative() {
            break;
        }
        let cfa_idx = sp_idx.wrapping_add(rule.cfa_words());
        let pc_idx = cfa_idx.wrapping_sub(1);
        let Some(caller_pc) = stack.read_above(pc_idx) else {
            break;
        };
        if caller_pc == 0 {
            break;
        }
        if rule.fp_words_below_cfa() != 0 {
            let fp_idx = cfa_idx.wrapping_sub(rule.fp_words_below_cfa());
            let Some(saved_fp) = stack.read_above(fp_idx) else {
                break;
            };
            last_fp = Some((fp_idx, saved_fp));
        }
        // Relaxed: only this thread reads them.
        note[0].store(pc_idx as u64, Ordering::Relaxed);
        note[1].store(caller_pc as u64, Ordering::Relaxed);
        *slot = caller_pc;
        (*pc, sp_idx) = (caller_pc, cfa_idx);
        n_frames += 1;
    }
    *sp = stack.address_above(sp_idx);
    memory.recording.add(n_frames);
    if let Some((fp_idx, saved_fp)) = last_fp {
        memory.replaces_fp(stack.address_above(fp_idx));
        *fp = saved_fp;
    }
    n_frames
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
        let rule = cursor.rule();
        if frames.len >= max {
            let is_outermost = matches!(rule.unpack(), Unpacked::Outermost);
            return Err(if is_outermost {
                Stop::Outermost
            } else {
                Stop::Depth
            });
        }
        let caller = step(*cursor, rule, memory)?;
        if !frames.push(caller.pc) {
            return Err(Stop::BadStack);
        }
        *cursor = caller;
        if !caller.is_interrupted && !caller.is_guessed {
            return Ok(());
        }
    }
}

/// The caller of `frame`, whose rule is `rule`.
fn step<M: Memory>(frame: Cursor, rule: PackedRule, memory: &mut M) -> Result<Cursor, Stop> {
    let rule = match rule.unpack() {
        Unpacked::Simple => rule.spell_out(),
        Unpacked::Wide(idx) => rule_cache::wide(idx),
        Unpacked::Outermost => return Err(Stop::Outermost),
        Unpacked::NoTable => {
            let caller = frame_pointer::step(frame, memory, modules::is_pinned_code);
            return caller.ok_or(Stop::NoRule);
        }
        Unpacked::Unsupported => return Err(Stop::UnsupportedRule),
    };
    match any_caller(frame, rule, memory) {
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

/// The caller's pc, sp and fp of a frame with a simple rule; `None` when the stack is not as the rule says, or when the
/// frame has no caller. Then nothing is noted.
#[inline(always)]
fn simple_caller<M: Memory>(
    sp: usize,
    fp: usize,
    rule: PackedRule,
    memory: &mut M,
) -> Option<(usize, usize, usize)> {
    let base = if rule.uses_fp() { fp } else { sp };
    let cfa = base.wrapping_add(rule.cfa_bytes());
    let pc = memory.read_below_cfa(sp, cfa, rule.uses_fp())?;
    if pc == 0 {
        return None;
    }
    let below_cfa = rule.fp_bytes_below_cfa();
    let fp_slot = cfa.wrapping_sub(below_cfa);
    let mut caller_fp = fp;
    if below_cfa != 0 {
        caller_fp = memory.read(fp_slot)?;
    }
    if rule.uses_fp() {
        memory.depends_on_fp(fp);
    }
    memory.depends_on_word(cfa.wrapping_sub(size_of::<usize>()), pc);
    if below_cfa != 0 {
        memory.replaces_fp(fp_slot);
    }
    Some((pc, cfa, caller_fp))
}

/// The caller of a frame with any rule; its pc is 0 when there is none. `None` when the stack is not as the rule says.
#[cold]
#[inline(never)]
fn any_caller<M: Memory>(frame: Cursor, rule: FrameRule, memory: &mut M) -> Option<Cursor> {
    let uses_fp = rule.cfa.base == Base::Fp
        || rule.return_address.base == PlaceBase::Fp
        || matches!(rule.saved_fp, SavedFp::At(place) if place.base == PlaceBase::Fp);
    if uses_fp {
        memory.depends_on_fp(frame.fp);
    }
    let base = match rule.cfa.base {
        Base::Sp => frame.sp,
        Base::Fp => frame.fp,
    };
    let mut cfa = base.wrapping_add_signed(rule.cfa.offset as isize);
    if let Some(offset) = rule.cfa.deref {
        let word = memory.read(cfa)?;
        memory.depends_on_word(cfa, word);
        cfa = word.wrapping_add_signed(offset as isize);
    }
    let may_switch = rule.cfa.base == Base::Fp || rule.cfa.deref.is_some();
    if !memory.grows(frame.sp, cfa, may_switch) {
        return None;
    }
    let slot = |place: Place| {
        let base = match place.base {
            PlaceBase::Cfa => cfa,
            PlaceBase::Sp => frame.sp,
            PlaceBase::Fp => frame.fp,
        };
        base.wrapping_add_signed(place.offset as isize)
    };
    let pc_slot = slot(rule.return_address);
    let pc = memory.read(pc_slot)?;
    memory.depends_on_word(pc_slot, pc);
    let fp = match rule.saved_fp {
        SavedFp::Same => frame.fp,
        SavedFp::At(place) => {
            let fp = memory.read(slot(place))?;
            memory.replaces_fp(slot(place));
            fp
        }
        SavedFp::Lost => 0,
    };
    Some(Cursor {
        pc,
        sp: cfa,
        fp,
        is_interrupted: rule.interrupts,
        is_guessed: frame.is_guessed,
    })
}

#[cfg(test)]
mod tests {
    use super::super::memory::AnyMemory;
    use super::super::rule::{Cfa, UnwindRule};
    use super::super::walker_tests::serial;
    use super::*;

    /// Code addresses that no module has.
    const CODE: usize = 0x0123_4500_0000;

    /// Gives the return address `pc` a rule.
    fn set_rule(pc: usize, rule: UnwindRule) {
        rule_cache::insert(pc - 1, rule_cache::pack(rule));
    }

    fn frame(base: Base, offset: i32, deref: Option<i32>, saved_fp: SavedFp) -> UnwindRule {
        UnwindRule::Frame(FrameRule {
            cfa: Cfa {
                base,
                offset,
                deref,
            },
            return_address: Place {
                base: PlaceBase::Cfa,
                offset: -8,
            },
            saved_fp,
            interrupts: false,
        })
    }

    fn sp_frame(bytes: i32) -> UnwindRule {
        frame(Base::Sp, bytes, None, SavedFp::Same)
    }

    fn fp_frame() -> UnwindRule {
        let saved_fp = SavedFp::At(Place {
            base: PlaceBase::Cfa,
            offset: -16,
        });
        frame(Base::Fp, 16, None, saved_fp)
    }

    /// Walks a stack that is not the thread's own: `words` from `sp_idx` on.
    fn walk_words(words: &[usize], pc: usize, sp_idx: usize, fp: usize) -> (Stop, Vec<usize>) {
        let sp = &raw const words[sp_idx] as usize;
        let mut cursor = Cursor::new(Registers { pc, sp, fp });
        let mut frames = Frames::new(None);
        let mut memory = AnyMemory::new(0..0);
        let stop = walk(&mut cursor, &mut memory, &mut frames, 100);
        (stop, frames.as_slice().to_vec())
    }

    fn addr_of(words: &[usize], idx: usize) -> usize {
        words.as_ptr() as usize + idx * size_of::<usize>()
    }

    #[test]
    fn frames_of_both_kinds_lead_to_the_outermost() {
        let _serial = serial();
        let code = CODE + 0x1000;
        set_rule(code, sp_frame(24));
        set_rule(code + 0x10, fp_frame());
        set_rule(code + 0x20, sp_frame(8));
        set_rule(code + 0x30, UnwindRule::Outermost);
        let mut words = [0; 16];
        words[2] = code + 0x10;
        words[6] = 77;
        words[7] = code + 0x20;
        words[8] = code + 0x30;
        let fp = addr_of(&words, 6);
        let expected = vec![code + 0x10, code + 0x20, code + 0x30];
        std::assert_eq!(walk_words(&words, code, 0, fp), (Stop::Outermost, expected));
    }

    #[test]
    fn zero_return_address_means_outermost() {
        let _serial = serial();
        let code = CODE + 0x2000;
        set_rule(code, sp_frame(16));
        let words = [1, 0, 1, 1];
        std::assert_eq!(walk_words(&words, code, 0, 0), (Stop::Outermost, vec![]));
    }

    #[test]
    fn garbage_frame_pointers_end_the_walk() {
        let _serial = serial();
        let code = CODE + 0x3000;
        set_rule(code, fp_frame());
        let words = [code; 8];
        for fp in [
            0,
            1,
            8,
            usize::MAX,
            usize::MAX - 15,
            1 << 63,
            0xdead_beef_0000,
        ] {
            std::assert_eq!(
                walk_words(&words, code, 0, fp),
                (Stop::BadStack, vec![]),
                "{fp:x}"
            );
        }
        let unaligned = addr_of(&words, 2) + 4;
        std::assert_eq!(
            walk_words(&words, code, 0, unaligned),
            (Stop::BadStack, vec![])
        );
    }

    #[test]
    fn a_ring_of_stacks_is_left_after_a_bounded_number_of_rounds() {
        let _serial = serial();
        let code = CODE + 0x4000;
        set_rule(code, frame(Base::Sp, 0, Some(0), SavedFp::Same));
        let mut words = [code; 8];
        // The CFA of each frame is the word at sp, which points back here.
        words[2] = addr_of(&words, 2);
        let mut cursor = Cursor::new(Registers {
            pc: code,
            sp: addr_of(&words, 2),
            fp: 0,
        });
        let mut frames = Frames::new(None);
        let stop = walk(
            &mut cursor,
            &mut AnyMemory::new(0..0),
            &mut frames,
            usize::MAX,
        );
        std::assert_eq!(stop, Stop::BadStack);
        std::assert!(frames.len <= 2000);
    }

    #[test]
    fn unsupported_rules_and_unknown_code_end_the_walk() {
        let _serial = serial();
        let code = CODE + 0x5000;
        set_rule(code, sp_frame(8));
        set_rule(code + 0x10, UnwindRule::Unsupported);
        let unknown = code + 0x20;
        let (with_unsupported, with_unknown) = ([code + 0x10; 8], [unknown; 8]);
        let walked = walk_words(&with_unsupported, code, 0, 0);
        std::assert_eq!(walked, (Stop::UnsupportedRule, vec![code + 0x10]));
        let walked = walk_words(&with_unknown, code, 0, 0);
        std::assert_eq!(walked, (Stop::NoRule, vec![unknown]));
    }

    #[test]
    fn random_stacks_give_short_walks_and_no_fault() {
        let _serial = serial();
        let code = CODE + 0x6000;
        let rules = [
            sp_frame(8),
            sp_frame(64),
            fp_frame(),
            frame(Base::Fp, -8, Some(0), SavedFp::Lost),
            frame(Base::Sp, 16, Some(24), SavedFp::Same),
            UnwindRule::NoTable,
        ];
        for (idx, rule) in rules.iter().enumerate() {
            set_rule(code + idx, *rule);
        }
        let mut random = 88_172_645_463_325_252_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize
        };
        let mut n_frames = 0;
        for _ in 0..2_000 {
            let mut words = [0; 128];
            for idx in 0..words.len() {
                words[idx] = match next() % 4 {
                    0 | 1 => code + next() % rules.len(),
                    2 => addr_of(&words, next() % 140),
                    _ => next(),
                };
            }
            let (pc, fp) = (code + next() % rules.len(), addr_of(&words, next() % 140));
            n_frames += walk_words(&words, pc, next() % 100, fp).1.len();
        }
        std::assert!(n_frames > 1_000, "{n_frames}: the walks went somewhere");
    }
}
