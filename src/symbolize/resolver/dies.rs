//! One pass over a unit's entries: which functions, and functions inlined into them, the addresses lie in.

use super::lines::{Place, covered};
use super::names::Names;
use super::origins::{NameAttributes, Origins};
use super::sections::Bytes;
use super::{Budget, Missing};
use gimli::{
    Attribute, AttributeValue, DwLang, EntriesRaw, RangeListsOffset, UnitRef, constants as dw,
};
use std::ops::Range;
use std::rc::Rc;

/// Inlining deeper than this is left out.
const MAX_INLINE_DEPTH: usize = 256;

/// A function's names, readable.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) linkage_name: Option<Rc<str>>,
    pub(super) source_name: Option<Rc<str>>,
}

/// A function inlined at an address.
#[derive(Debug)]
pub(super) struct Inlined {
    pub(super) function: Function,
    /// Where it was called.
    pub(super) call: Place,
}

/// What an address lies in.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// The physical function.
    pub(super) function: Option<Function>,
    /// The functions inlined there, outermost first.
    pub(super) inlined: Vec<Inlined>,
}

/// What the addresses of a unit lie in.
#[derive(Debug)]
pub(super) struct UnitScopes {
    /// One for each address.
    pub(super) by_probe: Vec<Scopes>,
    pub(super) language: Option<DwLang>,
}

impl UnitScopes {
    /// Knows nothing yet of that many addresses.
    pub(super) fn new(n_probes: usize) -> Self {
        Self {
            by_probe: (0..n_probes).map(|_| Scopes::default()).collect(),
            language: None,
        }
    }
}

/// The attributes that state where the code of an entry is.
#[derive(Default)]
pub(super) struct PcRanges {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<RangeListsOffset>,
}

impl PcRanges {
    /// Takes note of an attribute if it is one of them.
    pub(super) fn add<'d>(
        &mut self,
        unit: UnitRef<'_, Bytes<'d>>,
        attr: &Attribute<Bytes<'d>>,
    ) -> Result<(), Missing> {
        match attr.name() {
            dw::DW_AT_low_pc => self.low = unit.attr_address(attr.value())?,
            dw::DW_AT_high_pc => {
                self.high = unit.attr_address(attr.value())?;
                self.size = attr.udata_value();
            }
            dw::DW_AT_ranges => self.list = unit.attr_ranges_offset(attr.value())?,
            _ => {}
        }
        Ok(())
    }

    /// Calls `each` for each range with code in it and returns whether there was one.
    pub(super) fn for_each(
        &self,
        unit: UnitRef<'_, Bytes<'_>>,
        budget: &mut Budget,
        mut each: impl FnMut(Range<u64>),
    ) -> Result<bool, Missing> {
        let mut found_any = false;
        let mut visit = |begin: u64, end: u64| {
            // Linkers leave discarded functions at address 0, or close below 2^64 (DWARF 6 calls that a tombstone).
            if begin != 0 && begin < end {
                found_any = true;
                each(begin..end);
            }
        };
        if let Some(list) = self.list {
            let mut ranges = unit.ranges(list)?;
            while let Some(range) = ranges.next()? {
                budget.spend(1)?;
                visit(range.begin, range.end);
            }
        } else if let (Some(low), Some(high)) = (self.low, self.high) {
            visit(low, high);
        } else if let (Some(low), Some(size)) = (self.low, self.size) {
            visit(low, low.wrapping_add(size));
        }
        Ok(found_any)
    }
}

/// An entry whose children are being read.
struct Open {
    depth: isize,
    /// The addresses inside, as indices, sorted.
    probe_idxs: Vec<usize>,
    /// How many inlined functions deep it is; 0 for a physical function.
    inline_depth: usize,
}

/// Finds what the addresses, which are sorted, lie in. What was found before an error stays.
pub(super) fn read_scopes<'d>(
    unit: UnitRef<'_, Bytes<'d>>,
    probes: &[u64],
    scopes: &mut UnitScopes,
    origins: &mut Origins<'_, 'd>,
    names: &mut Names,
    budget: &mut Budget,
) -> Result<(), Missing> {
    scopes.language = scopes.language.or(language(unit)?);
    let scopes = &mut scopes.by_probe;
    let mut open: Vec<Open> = Vec::new();
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let depth = entries.next_depth();
        while open.last().is_some_and(|scope| scope.depth >= depth) {
            open.pop();
        }
        let Some(abbrev) = entries.read_abbreviation()? else {
            budget.spend(1)?;
            continue;
        };
        budget.spend(1 + abbrev.attributes().len())?;
        let tag = abbrev.tag();
        let outer = open.last();
        let is_read = match tag {
            dw::DW_TAG_subprogram => true,
            dw::DW_TAG_inlined_subroutine => {
                outer.is_some_and(|outer| !outer.probe_idxs.is_empty())
            }
            _ => false,
        };
        if !is_read {
            entries.skip_attributes(abbrev.attributes())?;
            continue;
        }
        let entry = Entry::read(unit, &mut entries, abbrev.attributes())?;
        let mut probe_idxs = Vec::new();
        let inline_depth = if tag == dw::DW_TAG_subprogram {
            entry.pcs.for_each(unit, budget, |range| {
                probe_idxs.extend(covered(probes, range));
            })?;
            // Identical functions may share their code: the first one named it.
            probe_idxs.retain(|&idx| scopes[idx].function.is_none());
            0
        } else {
            let (outer_idxs, outer_depth) = outer.map_or((&[][..], 0), |outer| {
                (&outer.probe_idxs[..], outer.inline_depth)
            });
            let outer_probes: Vec<u64> = outer_idxs.iter().map(|&idx| probes[idx]).collect();
            budget.spend(outer_probes.len())?;
            if outer_depth < MAX_INLINE_DEPTH {
                entry.pcs.for_each(unit, budget, |range| {
                    probe_idxs.extend_from_slice(&outer_idxs[covered(&outer_probes, range)]);
                })?;
            }
            // Likewise of siblings that overlap.
            probe_idxs.retain(|&idx| scopes[idx].inlined.len() == outer_depth);
            outer_depth + 1
        };
        probe_idxs.sort_unstable();
        probe_idxs.dedup();
        budget.spend(probe_idxs.len())?;
        if !probe_idxs.is_empty() {
            let function = origins.function(unit, &entry.names, names, budget);
            for &idx in &probe_idxs {
                if inline_depth == 0 {
                    scopes[idx].function = Some(function.clone());
                } else {
                    scopes[idx].inlined.push(Inlined {
                        function: function.clone(),
                        call: Place::new(entry.call_file, entry.call_line, entry.call_column),
                    });
                }
            }
        }
        open.push(Open {
            depth,
            probe_idxs,
            inline_depth,
        });
    }
    Ok(())
}

/// Reads the language of a unit. Skeleton units do not state it, their split units do.
fn language(unit: UnitRef<'_, Bytes<'_>>) -> Result<Option<DwLang>, Missing> {
    let mut entries = unit.entries_raw(None)?;
    let abbrev = entries.read_abbreviation()?.ok_or(Missing::Damaged)?;
    for &spec in abbrev.attributes() {
        if let AttributeValue::Language(language) = entries.read_attribute(spec)?.value() {
            return Ok(Some(language));
        }
    }
    Ok(None)
}

/// The attributes of a function, or of an inlined one, that matter here.
#[derive(Default)]
struct Entry<'d> {
    pcs: PcRanges,
    names: NameAttributes<'d>,
    call_file: Option<u64>,
    call_line: u64,
    call_column: u64,
}

impl<'d> Entry<'d> {
    fn read(
        unit: UnitRef<'_, Bytes<'d>>,
        entries: &mut EntriesRaw<'_, '_, Bytes<'d>>,
        specs: &[gimli::AttributeSpecification],
    ) -> Result<Self, Missing> {
        let mut entry = Self::default();
        for &spec in specs {
            let attr = entries.read_attribute(spec)?;
            entry.pcs.add(unit, &attr)?;
            entry.names.add(&attr);
            match attr.name() {
                dw::DW_AT_call_file => {
                    entry.call_file = match attr.value() {
                        AttributeValue::FileIndex(idx) => Some(idx),
                        value => value.udata_value(),
                    }
                    // Index 0 means no file before DWARF 5 (§2.14 there, DWARF 4 §2.14).
                    .filter(|&idx| idx != 0 || unit.header.version() >= 5);
                }
                dw::DW_AT_call_line => entry.call_line = attr.udata_value().unwrap_or(0),
                dw::DW_AT_call_column => entry.call_column = attr.udata_value().unwrap_or(0),
                _ => {}
            }
        }
        Ok(entry)
    }
}
