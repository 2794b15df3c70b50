//! The step along a frame record, for code that no table describes.

use super::arch::{RECORD_BYTES, RECORD_RETURN_ADDRESS};
use super::walk::{Cursor, Memory};

/// The lowest address that code is mapped at (Linux vm.mmap_min_addr is at least a page).
const MIN_CODE: usize = 4096;
/// One past the highest address of user space.
const MAX_CODE: usize = 1 << 47;

/// The caller of `frame`, if its frame pointer points to what can be a frame record: above the stack pointer, with a
/// return address that is one of code or a further record above it. Nothing is noted: guessed stacks are not kept.
pub(super) fn step<M: Memory>(
    frame: Cursor,
    memory: &mut M,
    is_code: impl Fn(usize) -> bool,
) -> Option<Cursor> {
    if frame.fp < frame.sp {
        return None;
    }
    let cfa = frame.fp.checked_add(RECORD_BYTES)?;
    if !memory.grows(frame.sp, cfa, true) {
        return None;
    }
    let saved_fp = memory.read(frame.fp)?;
    let pc = memory.read(frame.fp + RECORD_RETURN_ADDRESS)?;
    if !(MIN_CODE..MAX_CODE).contains(&pc) {
        return None;
    }
    let has_record_above = saved_fp >= cfa && saved_fp % size_of::<usize>() == 0;
    (is_code(pc) || has_record_above && memory.read(saved_fp).is_some()).then_some(Cursor {
        pc,
        sp: cfa,
        fp: saved_fp,
        is_interrupted: false,
        is_guessed: true,
    })
}
