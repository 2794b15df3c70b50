//! The call frame instructions of an FDE, carried out for the columns that a walk needs (DWARF 5 §6.4.2).
//!
//! gimli's own table keeps a rule for every register in every remembered state, several KiB of stack; three columns take a
//! few hundred bytes.

use super::arch::{DWARF_FP, DWARF_RETURN_ADDRESS};
use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Register, RegisterRule,
};

/// What unwind tables are read from.
pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// The rules that hold at one address. A register that no instruction names is undefined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) cfa: CfaRule<usize>,
    pub(super) return_address: RegisterRule<usize>,
    pub(super) fp: RegisterRule<usize>,
}

/// How deep states are remembered; compilers nest them once.
const MAX_REMEMBERED: usize = 4;

/// The row of `fde` that covers `address`, which lies in its range. `None` for a program that is not well-formed or
/// remembers too many states.
pub(super) fn row_at(
    fde: &FrameDescriptionEntry<Reader<'_>>,
    eh_frame: &EhFrame<Reader<'_>>,
    bases: &BaseAddresses,
    address: u64,
) -> Option<Row> {
    let cie = fde.cie();
    let mut program = Program {
        row: Row {
            cfa: CfaRule::RegisterAndOffset {
                register: Register(0),
                offset: 0,
            },
            return_address: RegisterRule::Undefined,
            fp: RegisterRule::Undefined,
        },
        initial: None,
        remembered: [const { None }; MAX_REMEMBERED],
        n_remembered: 0,
        data_alignment: cie.data_alignment_factor(),
    };
    let mut instructions = cie.instructions(eh_frame, bases);
    while let Some(instruction) = instructions.next().ok()? {
        program.apply(instruction)?;
    }
    program.initial = Some(program.row.clone());
    let mut location = fde.initial_address();
    let mut instructions = fde.instructions(eh_frame, bases);
    while let Some(instruction) = instructions.next().ok()? {
        let next = match instruction {
            CallFrameInstruction::AdvanceLoc { delta } => {
                let bytes = u64::from(delta).wrapping_mul(cie.code_alignment_factor());
                location.checked_add(bytes)?
            }
            CallFrameInstruction::SetLoc { address } => address,
            other => {
                program.apply(other)?;
                continue;
            }
        };
        if next < location {
            return None;
        }
        if address < next {
            break;
        }
        location = next;
    }
    Some(program.row)
}

/// The state between two instructions.
struct Program {
    row: Row,
    /// What the CIE's instructions led to; `None` while they are carried out.
    initial: Option<Row>,
    remembered: [Option<Row>; MAX_REMEMBERED],
    n_remembered: usize,
    data_alignment: i64,
}

impl Program {
    /// Carries out an instruction that does not move the location. `None` when it makes no sense here.
    fn apply(&mut self, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as Instruction;
        let factored = |offset: i64| offset.wrapping_mul(self.data_alignment);
        match instruction {
            Instruction::DefCfa { register, offset } => {
                self.row.cfa = CfaRule::RegisterAndOffset {
                    register,
                    offset: offset as i64,
                };
            }
            Instruction::DefCfaSf {
                register,
                factored_offset,
            } => {
                self.row.cfa = CfaRule::RegisterAndOffset {
                    register,
                    offset: factored(factored_offset),
                };
            }
            Instruction::DefCfaRegister { register: new } => match &mut self.row.cfa {
                CfaRule::RegisterAndOffset { register, .. } => *register = new,
                CfaRule::Expression(_) => return None,
            },
            Instruction::DefCfaOffset { offset } => self.set_cfa_offset(offset as i64)?,
            Instruction::DefCfaOffsetSf { factored_offset } => {
                self.set_cfa_offset(factored(factored_offset))?;
            }
            Instruction::DefCfaExpression { expression } => {
                self.row.cfa = CfaRule::Expression(expression);
            }
            Instruction::Undefined { register } => self.set(register, RegisterRule::Undefined),
            Instruction::SameValue { register } => self.set(register, RegisterRule::SameValue),
            Instruction::Offset {
                register,
                factored_offset,
            } => self.set(
                register,
                RegisterRule::Offset(factored(factored_offset as i64)),
            ),
            Instruction::OffsetExtendedSf {
                register,
                factored_offset,
            } => self.set(register, RegisterRule::Offset(factored(factored_offset))),
            Instruction::ValOffset {
                register,
                factored_offset,
            } => self.set(
                register,
                RegisterRule::ValOffset(factored(factored_offset as i64)),
            ),
            Instruction::ValOffsetSf {
                register,
                factored_offset,
            } => self.set(register, RegisterRule::ValOffset(factored(factored_offset))),
            Instruction::Register {
                dest_register,
                src_register,
            } => self.set(dest_register, RegisterRule::Register(src_register)),
            Instruction::Expression {
                register,
                expression,
            } => self.set(register, RegisterRule::Expression(expression)),
            Instruction::ValExpression {
                register,
                expression,
            } => self.set(register, RegisterRule::ValExpression(expression)),
            Instruction::Restore { register } => {
                let initial = self.initial.clone()?;
                match register {
                    DWARF_RETURN_ADDRESS => self.row.return_address = initial.return_address,
                    DWARF_FP => self.row.fp = initial.fp,
                    _ => {}
                }
            }
            Instruction::RememberState => {
                let slot = self.remembered.get_mut(self.n_remembered)?;
                *slot = Some(self.row.clone());
                self.n_remembered += 1;
            }
            Instruction::RestoreState => {
                self.n_remembered = self.n_remembered.checked_sub(1)?;
                self.row = self.remembered.get_mut(self.n_remembered)?.take()?;
            }
            Instruction::ArgsSize { .. } | Instruction::Nop => {}
            // A location in a CIE, or something of another processor's.
            _ => return None,
        }
        Some(())
    }

    fn set_cfa_offset(&mut self, new: i64) -> Option<()> {
        match &mut self.row.cfa {
            CfaRule::RegisterAndOffset { offset, .. } => *offset = new,
            CfaRule::Expression(_) => return None,
        }
        Some(())
    }

    fn set(&mut self, register: Register, rule: RegisterRule<usize>) {
        match register {
            DWARF_RETURN_ADDRESS => self.row.return_address = rule,
            DWARF_FP => self.row.fp = rule,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{self, Scope};
    use gimli::{CieOrFde, UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow};

    /// Room for what gimli keeps, enough for all real tables.
    struct Storage;

    impl UnwindContextStorage<usize> for Storage {
        type Rules = [(Register, RegisterRule<usize>); 40];
        type Stack = [UnwindTableRow<usize, Self>; 8];
    }

    /// Compares all rows of all FDEs in the module of `code`; tells how many there were.
    fn compare_module(code: usize) -> usize {
        let compared = modules::with_unwind_tables(code, Scope::OnStack, |tables| {
            // The header's second word is the distance to .eh_frame from itself.
            let distance = i32::from_le_bytes(tables.header[4..8].try_into().unwrap());
            let avma = tables.header_avma + 4;
            let avma = avma.wrapping_add_signed(distance as isize);
            let section = &tables.segment[avma - tables.segment_avma..];
            let eh_frame = EhFrame::new(section, LittleEndian);
            let bases = BaseAddresses::default().set_eh_frame(avma as u64);
            let mut context = Box::new(UnwindContext::<usize, Storage>::new_in());
            let mut n_rows = 0;
            let mut entries = eh_frame.entries(&bases);
            while let Ok(Some(entry)) = entries.next() {
                let CieOrFde::Fde(partial) = entry else {
                    continue;
                };
                let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
                let mut table = fde.rows(&eh_frame, &bases, &mut context).unwrap();
                while let Some(row) = table.next_row().unwrap() {
                    let expected = Row {
                        cfa: row.cfa().clone(),
                        return_address: row.register(DWARF_RETURN_ADDRESS),
                        fp: row.register(DWARF_FP),
                    };
                    for address in [row.start_address(), row.end_address() - 1] {
                        if row.start_address() < row.end_address() {
                            let ours = row_at(&fde, &eh_frame, &bases, address);
                            std::assert_eq!(ours.as_ref(), Some(&expected), "{address:x}");
                            n_rows += 1;
                        }
                    }
                }
            }
            n_rows
        });
        compared.unwrap().tables.unwrap()
    }

    #[test]
    fn rows_of_this_program_and_of_the_c_library_equal_those_of_gimli() {
        modules::prepare();
        std::assert!(compare_module(row_at as *const () as usize) > 10_000);
        std::assert!(compare_module(libc::qsort as *const () as usize) > 1_000);
    }
}
