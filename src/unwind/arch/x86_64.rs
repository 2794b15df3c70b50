//! x86-64.

use std::arch::asm;

/// The registers that a walk starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// An address inside the function where the registers were read; the byte before it lies there too.
    pub(crate) pc: usize,
    pub(crate) sp: usize,
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
