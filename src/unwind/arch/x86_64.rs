//! The registers and the frame records of x86-64.

use gimli::{Register, X86_64};
use std::arch::asm;

/// The stack pointer as unwind tables number it (System V ABI, AMD64 supplement, figure 3.36).
pub(crate) const DWARF_SP: Register = X86_64::RSP;
/// The frame pointer as unwind tables number it.
pub(crate) const DWARF_FP: Register = X86_64::RBP;
/// The column that unwind tables keep the return address in.
pub(crate) const DWARF_RETURN_ADDRESS: Register = X86_64::RA;

/// From the frame pointer to the return address in a frame record, in bytes; the saved frame pointer lies at 0.
pub(crate) const RECORD_RETURN_ADDRESS: usize = 8;
/// The size of a frame record in bytes.
pub(crate) const RECORD_BYTES: usize = 16;

/// The registers that a walk starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// An address inside the function where the registers were read; the byte before it lies there too.
    pub(crate) pc: usize,
    /// The stack pointer there.
    pub(crate) sp: usize,
    /// The frame pointer there, or whatever its register holds in code without one.
    pub(crate) fp: usize,
}

impl Registers {
    /// Reads the registers where this call stands: it is always inlined. Hook-safe.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        let (pc, sp, fp);
        // SAFETY: reads three registers and changes nothing.
        unsafe {
            asm!(
                "lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp",
                pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
                options(nomem, nostack, preserves_flags),
            );
        }
        Self { pc, sp, fp }
    }
}
