//! From an address to its unwind rule, by the `.eh_frame` of its module. Cold: once per address.
//!
//! The bytes are taken as hostile: whatever they hold, the answer is a rule, and a wrong rule costs no more than a short
//! stack. Formats: Linux Standard Base Core 5.0, "Exception Frames"; DWARF 5 §6.4. No heap; a few KiB of stack.

use super::arch::{DWARF_FP, DWARF_RETURN_ADDRESS, DWARF_SP};
use super::rule::{Base, Cfa, FrameRule, PackedRule, Place, PlaceBase, SavedFp, UnwindRule};
use super::rule_cache;
use crate::modules::{self, Scope, UnwindTables};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EndianSlice, Expression,
    LittleEndian, Operation, ReaderOffset, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

/// Finds the rule of `address` and keeps it in the cache. Records the module as seen. Hook-safe.
#[cold]
#[inline(never)]
pub(super) fn rule_of(address: usize, is_guessed: bool) -> PackedRule {
    let scope = if is_guessed {
        Scope::Guessed
    } else {
        Scope::OnStack
    };
    let found = modules::with_unwind_tables(address, scope, |tables| rule_in(tables, address));
    let rule = found.as_ref().and_then(|found| found.tables);
    let packed = rule_cache::pack(rule.unwrap_or(UnwindRule::NoTable));
    // What lies outside all modules may become a module's; and a module that could not be recorded gets a further chance.
    if found.is_some_and(|found| found.is_recorded) {
        rule_cache::insert(address, packed);
    }
    packed
}

/// The rule that `tables` state for `address`.
pub(super) fn rule_in(tables: &UnwindTables<'_>, address: usize) -> UnwindRule {
    match parse(tables, address) {
        Ok(rule) => rule,
        Err(Failure::NoEntry) => UnwindRule::NoTable,
        Err(Failure::Unsupported) => UnwindRule::Unsupported,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    NoEntry,
    Unsupported,
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Room for the rules of 17 columns, which is all that x86-64 code saves, and for two remembered states: under 2 KiB,
/// where gimli's default takes 24.
struct Storage;

impl<T: ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(gimli::Register, RegisterRule<T>); 17];
    type Stack = [UnwindTableRow<T, Self>; 3];
}

fn parse(tables: &UnwindTables<'_>, address: usize) -> Result<UnwindRule, Failure> {
    let entry = find_entry(tables, address).ok_or(Failure::NoEntry)?;
    let eh_frame = EhFrame::new(entry.section, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(entry.section_avma as u64);
    let fde = eh_frame
        .fde_from_offset(
            &bases,
            EhFrameOffset(entry.offset),
            EhFrame::cie_from_offset,
        )
        .map_err(|_| Failure::NoEntry)?;
    let address = address as u64;
    if !fde.contains(address) {
        return Err(Failure::NoEntry);
    }
    let mut context = UnwindContext::<usize, Storage>::new_in();
    let row = fde
        .unwind_info_for_address(&eh_frame, &bases, &mut context, address)
        .map_err(|_| Failure::Unsupported)?;
    let scope = ExpressionScope {
        eh_frame: &eh_frame,
        encoding: fde.cie().encoding(),
        pc: address,
    };
    rule_of_row(row, &scope, fde.is_signal_trampoline())
}

/// Where the binary search table says that the FDE of an address is.
struct Entry<'a> {
    section: &'a [u8],
    section_avma: usize,
    offset: usize,
}

/// The encodings that every linker writes: eh_frame_ptr pcrel|sdata4, fde_count udata4, table datarel|sdata4.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const ROW_BYTES: usize = 8;

/// Searches `.eh_frame_hdr`: header, eh_frame_ptr, fde_count, then rows of function address and FDE address, sorted.
fn find_entry<'a>(tables: &UnwindTables<'a>, address: usize) -> Option<Entry<'a>> {
    let (header, rest) = tables.header.split_first_chunk::<4>()?;
    let (eh_frame_ptr, rest) = rest.split_first_chunk::<4>()?;
    let (count, rows) = rest.split_first_chunk::<4>()?;
    if *header != HEADER {
        return None;
    }
    let header_avma = tables.header_avma;
    let relative = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes) as isize;
    let section_avma = header_avma
        .wrapping_add(header.len())
        .wrapping_add_signed(relative(eh_frame_ptr));
    let start = section_avma.checked_sub(tables.segment_avma)?;
    let section = tables.segment.get(start..)?;

    let n_rows = (u32::from_le_bytes(*count) as usize).min(rows.len() / ROW_BYTES);
    let row = |idx: usize| {
        let bytes = rows.get(idx * ROW_BYTES..)?.first_chunk::<ROW_BYTES>()?;
        let (function, fde) = bytes.split_first_chunk::<4>()?;
        Some((relative(function), relative(fde.first_chunk::<4>()?)))
    };
    let wanted = address.wrapping_sub(header_avma) as isize;
    // The first row above the address is in low..=high.
    let (mut low, mut high) = (0, n_rows);
    while low < high {
        let middle = low + (high - low) / 2;
        if row(middle)?.0 <= wanted {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let (_, fde) = row(low.checked_sub(1)?)?;
    let offset = header_avma
        .wrapping_add_signed(fde)
        .checked_sub(section_avma)?;
    (offset < section.len()).then_some(Entry {
        section,
        section_avma,
        offset,
    })
}

fn rule_of_row(
    row: &UnwindTableRow<usize, Storage>,
    scope: &ExpressionScope<'_, '_>,
    interrupts: bool,
) -> Result<UnwindRule, Failure> {
    // A register that no instruction names reads as undefined too. For the return address that means the outermost frame;
    // the frame pointer is callee-saved, so there it means unchanged.
    let return_address = match row.register(DWARF_RETURN_ADDRESS) {
        RegisterRule::Undefined => return Ok(UnwindRule::Outermost),
        RegisterRule::Offset(offset) => below_cfa(offset)?,
        RegisterRule::Expression(expression) => scope.place(expression)?,
        _ => return Err(Failure::Unsupported),
    };
    let saved_fp = match row.register(DWARF_FP) {
        RegisterRule::Undefined | RegisterRule::SameValue => SavedFp::Same,
        RegisterRule::Offset(offset) => below_cfa(offset).map_or(SavedFp::Lost, SavedFp::At),
        RegisterRule::Expression(expression) => {
            scope.place(expression).map_or(SavedFp::Lost, SavedFp::At)
        }
        _ => SavedFp::Lost,
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Cfa {
            base: base_of(*register)?,
            offset: narrow(*offset)?,
            deref: None,
        },
        CfaRule::Expression(expression) => scope.cfa(*expression)?,
    };
    Ok(UnwindRule::Frame(FrameRule {
        cfa,
        return_address,
        saved_fp,
        interrupts,
    }))
}

fn below_cfa(offset: i64) -> Result<Place, Failure> {
    Ok(Place {
        base: PlaceBase::Cfa,
        offset: narrow(offset)?,
    })
}

fn narrow(offset: i64) -> Result<i32, Failure> {
    i32::try_from(offset).map_err(|_| Failure::Unsupported)
}

fn base_of(register: gimli::Register) -> Result<Base, Failure> {
    match register {
        DWARF_SP => Ok(Base::Sp),
        DWARF_FP => Ok(Base::Fp),
        _ => Err(Failure::Unsupported),
    }
}

/// What a DWARF expression is evaluated in.
struct ExpressionScope<'a, 'b> {
    eh_frame: &'b EhFrame<Reader<'a>>,
    encoding: Encoding,
    /// The value of the pc. Rules are kept per address, so that it is a constant here: the usual expression of procedure
    /// linkage tables comes out as sp+8 or sp+16.
    pc: u64,
}

/// A value as far as it is known before any register is.
#[derive(Clone, Copy)]
enum Value {
    Constant(u64),
    /// A register plus a number of bytes.
    Register(Base, i64),
    /// The CFA plus a number of bytes.
    Cfa(i64),
    /// The word at a register plus a number of bytes, plus a number of bytes.
    Word {
        base: Base,
        offset: i64,
        plus: i64,
    },
}

/// The deepest expression stack that tables are known to need is 4.
const MAX_VALUES: usize = 8;
/// The longest known expression, that of procedure linkage tables, has 8 operations.
const MAX_OPERATIONS: usize = 32;

impl ExpressionScope<'_, '_> {
    /// The CFA that an expression computes.
    fn cfa(&self, expression: UnwindExpression<usize>) -> Result<Cfa, Failure> {
        match self.evaluate(expression, None)? {
            Value::Register(base, offset) => Ok(Cfa {
                base,
                offset: narrow(offset)?,
                deref: None,
            }),
            Value::Word { base, offset, plus } => Ok(Cfa {
                base,
                offset: narrow(offset)?,
                deref: Some(narrow(plus)?),
            }),
            Value::Constant(_) | Value::Cfa(_) => Err(Failure::Unsupported),
        }
    }

    /// The address that an expression computes for a saved register. The CFA is on its stack at first (DWARF 5 §6.4.2.3).
    fn place(&self, expression: UnwindExpression<usize>) -> Result<Place, Failure> {
        let (base, offset) = match self.evaluate(expression, Some(Value::Cfa(0)))? {
            Value::Register(Base::Sp, offset) => (PlaceBase::Sp, offset),
            Value::Register(Base::Fp, offset) => (PlaceBase::Fp, offset),
            Value::Cfa(offset) => (PlaceBase::Cfa, offset),
            Value::Constant(_) | Value::Word { .. } => return Err(Failure::Unsupported),
        };
        Ok(Place {
            base,
            offset: narrow(offset)?,
        })
    }

    fn evaluate(
        &self,
        expression: UnwindExpression<usize>,
        initial: Option<Value>,
    ) -> Result<Value, Failure> {
        let bytes = expression
            .get(self.eh_frame)
            .map_err(|_| Failure::Unsupported)?;
        let mut operations = Expression(bytes.0).operations(self.encoding);
        let mut values = Values::default();
        if let Some(initial) = initial {
            values.push(initial)?;
        }
        for _ in 0..MAX_OPERATIONS {
            match operations.next() {
                Ok(Some(operation)) => self.apply(operation, &mut values)?,
                Ok(None) => return values.pop(),
                Err(_) => break,
            }
        }
        Err(Failure::Unsupported)
    }

    fn apply(&self, operation: Operation<Reader<'_>>, values: &mut Values) -> Result<(), Failure> {
        let value = match operation {
            Operation::RegisterOffset {
                register: DWARF_RETURN_ADDRESS,
                offset,
                ..
            } => Value::Constant(self.pc.wrapping_add_signed(offset)),
            Operation::RegisterOffset {
                register, offset, ..
            } => Value::Register(base_of(register)?, offset),
            Operation::UnsignedConstant { value } => Value::Constant(value),
            Operation::SignedConstant { value } => Value::Constant(value as u64),
            Operation::PlusConstant { value } => values.pop()?.plus(value as i64),
            Operation::Plus => match (values.pop()?, values.pop()?) {
                (Value::Constant(constant), other) | (other, Value::Constant(constant)) => {
                    other.plus(constant as i64)
                }
                _ => return Err(Failure::Unsupported),
            },
            Operation::And => values.binary(|left, right| left & right)?,
            Operation::Shl => values.binary(|left, right| {
                let shift = u32::try_from(right).ok();
                shift.and_then(|shift| left.checked_shl(shift)).unwrap_or(0)
            })?,
            Operation::Ge => values.binary(|left, right| u64::from(left as i64 >= right as i64))?,
            Operation::Deref {
                size: 8,
                space: false,
                ..
            } => match values.pop()? {
                Value::Register(base, offset) => Value::Word {
                    base,
                    offset,
                    plus: 0,
                },
                _ => return Err(Failure::Unsupported),
            },
            Operation::Nop => return Ok(()),
            _ => return Err(Failure::Unsupported),
        };
        values.push(value)
    }
}

impl Value {
    fn plus(self, addend: i64) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value.wrapping_add_signed(addend)),
            Self::Register(base, offset) => Self::Register(base, offset.wrapping_add(addend)),
            Self::Cfa(offset) => Self::Cfa(offset.wrapping_add(addend)),
            Self::Word { base, offset, plus } => Self::Word {
                base,
                offset,
                plus: plus.wrapping_add(addend),
            },
        }
    }
}

/// The stack of an expression.
#[derive(Default)]
struct Values {
    items: [Option<Value>; MAX_VALUES],
    len: usize,
}

impl Values {
    fn push(&mut self, value: Value) -> Result<(), Failure> {
        let slot = self.items.get_mut(self.len).ok_or(Failure::Unsupported)?;
        *slot = Some(value);
        self.len += 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Failure> {
        self.len = self.len.checked_sub(1).ok_or(Failure::Unsupported)?;
        self.items
            .get(self.len)
            .copied()
            .flatten()
            .ok_or(Failure::Unsupported)
    }

    /// Takes two constants off, the right one first, and combines them.
    fn binary(&mut self, combine: impl FnOnce(u64, u64) -> u64) -> Result<Value, Failure> {
        let right = self.pop()?;
        match (self.pop()?, right) {
            (Value::Constant(left), Value::Constant(right)) => {
                Ok(Value::Constant(combine(left, right)))
            }
            _ => Err(Failure::Unsupported),
        }
    }
}

#[cfg(test)]
#[path = "cfi_tests.rs"]
mod tests;
