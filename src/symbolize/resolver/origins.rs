//! Names of functions, followed to the entries that bear them: abstract origins and specifications, in any unit.

use super::dies::Function;
use super::dwarf::parse_unit;
use super::names::Names;
use super::sections::Bytes;
use super::{Budget, Missing};
use gimli::{
    Attribute, AttributeValue, DebugInfoOffset, Dwarf, UnitOffset, UnitRef, constants as dw,
};
use std::collections::HashMap;
use std::rc::Rc;

/// Chains of references longer than this are taken for cycles.
const MAX_CHAIN: usize = 16;
/// Units kept parsed because others refer to them; beyond that they are parsed again.
const MAX_UNITS: usize = 256;

/// The attributes that tell an entry's name.
#[derive(Default)]
pub(super) struct NameAttributes<'d> {
    linkage_name: Option<AttributeValue<Bytes<'d>>>,
    name: Option<AttributeValue<Bytes<'d>>>,
    origin: Option<AttributeValue<Bytes<'d>>>,
}

impl<'d> NameAttributes<'d> {
    /// Takes note of an attribute if it is one of them.
    pub(super) fn add(&mut self, attr: &Attribute<Bytes<'d>>) {
        match attr.name() {
            dw::DW_AT_linkage_name | dw::DW_AT_MIPS_linkage_name => {
                self.linkage_name = Some(attr.value());
            }
            dw::DW_AT_name => self.name = Some(attr.value()),
            dw::DW_AT_abstract_origin | dw::DW_AT_specification => self.origin = Some(attr.value()),
            _ => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Home {
    /// The file whose units are read.
    Main,
    /// Its supplementary file.
    Supplementary,
}

type Unit<'d> = gimli::Unit<Bytes<'d>>;

/// The units of a file that entries of other units refer to.
pub(super) struct Origins<'a, 'd> {
    dwarf: &'a Dwarf<Bytes<'d>>,
    /// Ascending.
    unit_offsets: Vec<usize>,
    /// The same of the supplementary file, once needed.
    sup_unit_offsets: Option<Vec<usize>>,
    units: HashMap<(Home, usize), Rc<Unit<'d>>>,
}

impl<'a, 'd> Origins<'a, 'd> {
    /// Creates it with the offsets of the file's units, ascending; without them, references stay within a unit.
    pub(super) fn new(dwarf: &'a Dwarf<Bytes<'d>>, unit_offsets: Vec<usize>) -> Self {
        Self {
            dwarf,
            unit_offsets,
            sup_unit_offsets: None,
            units: HashMap::new(),
        }
    }

    /// Names a function: by the first linkage name along the chain of its origins, and by the first source name
    /// up to there.
    pub(super) fn function(
        &mut self,
        unit: UnitRef<'_, Bytes<'d>>,
        attrs: &NameAttributes<'d>,
        names: &mut Names,
        budget: &mut Budget,
    ) -> Function {
        let mut source_name = None;
        let linkage_name = self.linkage_name(unit, attrs, &mut source_name, budget);
        let mut readable = |raw: Option<Bytes<'d>>| names.function(raw?.slice());
        Function {
            linkage_name: readable(linkage_name),
            source_name: readable(source_name),
        }
    }

    fn linkage_name(
        &mut self,
        unit: UnitRef<'_, Bytes<'d>>,
        attrs: &NameAttributes<'d>,
        source_name: &mut Option<Bytes<'d>>,
        budget: &mut Budget,
    ) -> Option<Bytes<'d>> {
        let string =
            |unit: UnitRef<'_, Bytes<'d>>, attrs: &NameAttributes<'d>, of_linkage: bool| {
                let value = if of_linkage {
                    attrs.linkage_name
                } else {
                    attrs.name
                };
                unit.attr_string(value?)
                    .ok()
                    .filter(|name| !name.is_empty())
            };
        *source_name = string(unit, attrs, false);
        if let Some(name) = string(unit, attrs, true) {
            return Some(name);
        }
        let (mut home, mut held, mut offset) =
            self.refer(Home::Main, unit, attrs.origin?, budget)?;
        for _ in 0..MAX_CHAIN {
            let holder = match &held {
                Some(held) => UnitRef::new(self.dwarf_of(home)?, held),
                None => unit,
            };
            let attrs = read_names(holder, offset, budget).ok()?;
            *source_name = source_name.or_else(|| string(holder, &attrs, false));
            if let Some(name) = string(holder, &attrs, true) {
                return Some(name);
            }
            let (next_home, next_held, next_offset) =
                self.refer(home, holder, attrs.origin?, budget)?;
            (home, offset) = (next_home, next_offset);
            held = next_held.or(held);
        }
        None
    }

    /// Finds what a reference points to; no unit means the one that it is in.
    fn refer(
        &mut self,
        home: Home,
        unit: UnitRef<'_, Bytes<'d>>,
        reference: AttributeValue<Bytes<'d>>,
        budget: &mut Budget,
    ) -> Option<(Home, Option<Rc<Unit<'d>>>, UnitOffset)> {
        let (home, offset) = match reference {
            AttributeValue::UnitRef(offset) => return Some((home, None, offset)),
            AttributeValue::DebugInfoRef(offset) => match offset.to_unit_offset(&unit.header) {
                Some(offset) => return Some((home, None, offset)),
                None => (home, offset),
            },
            AttributeValue::DebugInfoRefSup(offset) => (Home::Supplementary, offset),
            _ => return None,
        };
        let holder = self.unit_at(home, offset, budget)?;
        let offset = offset.to_unit_offset(&holder.header)?;
        Some((home, Some(holder), offset))
    }

    fn unit_at(
        &mut self,
        home: Home,
        offset: DebugInfoOffset,
        budget: &mut Budget,
    ) -> Option<Rc<Unit<'d>>> {
        let dwarf = self.dwarf_of(home)?;
        let offsets = match home {
            Home::Main => &self.unit_offsets,
            Home::Supplementary => self.sup_unit_offsets.get_or_insert_with(|| {
                let mut offsets = Vec::new();
                let mut headers = dwarf.units();
                while let Ok(Some(header)) = headers.next() {
                    offsets.extend(header.offset().as_debug_info_offset().map(|at| at.0));
                }
                offsets
            }),
        };
        let n_before = offsets.partition_point(|&unit_offset| unit_offset <= offset.0);
        let unit_offset = *offsets.get(n_before.checked_sub(1)?)?;
        if let Some(unit) = self.units.get(&(home, unit_offset)) {
            return Some(Rc::clone(unit));
        }
        let header = dwarf
            .debug_info
            .header_from_offset(DebugInfoOffset(unit_offset))
            .ok()?;
        let unit = Rc::new(parse_unit(dwarf, header, budget).ok()?);
        if self.units.len() >= MAX_UNITS {
            self.units.clear();
        }
        self.units.insert((home, unit_offset), Rc::clone(&unit));
        Some(unit)
    }

    fn dwarf_of(&self, home: Home) -> Option<&'a Dwarf<Bytes<'d>>> {
        match home {
            Home::Main => Some(self.dwarf),
            Home::Supplementary => self.dwarf.sup.as_deref(),
        }
    }
}

fn read_names<'d>(
    unit: UnitRef<'_, Bytes<'d>>,
    offset: UnitOffset,
    budget: &mut Budget,
) -> Result<NameAttributes<'d>, Missing> {
    let mut entries = unit.entries_raw(Some(offset))?;
    let abbrev = entries.read_abbreviation()?.ok_or(Missing::Damaged)?;
    budget.spend(1 + abbrev.attributes().len())?;
    let mut names = NameAttributes::default();
    for &spec in abbrev.attributes() {
        names.add(&entries.read_attribute(spec)?);
    }
    Ok(names)
}
