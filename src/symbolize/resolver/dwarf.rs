//! Functions, places and inlined callers from DWARF 2 to 5, linked or split.
//!
//! One pass over the unit headers finds the units that the addresses lie in; each of those is then read once, and dropped.

use super::dies::{self, Scopes, UnitScopes};
use super::lines::{self, Files, Place};
use super::names::Names;
use super::origins::Origins;
use super::sections::{self, Bytes};
use super::{Budget, Missing, SourceFrame, locate, parse};
use gimli::{
    DwLang, Dwarf, DwarfPackage, DwoId, EndianSlice, Reader, Section, UnitHeader, UnitRef,
    UnitType, constants as dw,
};
use std::path::Path;
use std::rc::Rc;

/// Whether the physical function's name is final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Physical {
    /// Nothing names it yet.
    #[default]
    Unnamed,
    /// It has its source name, in a language in which only the linkage name tells the whole path.
    Short,
    /// It has its name.
    Named,
}

/// What is known of one address.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Innermost first.
    pub(super) frames: Vec<SourceFrame>,
    /// What the last frame's name is worth.
    pub(super) physical: Physical,
    /// Whether DWARF describes the function, not only the line.
    has_function: bool,
}

type Unit<'d> = gimli::Unit<Bytes<'d>>;

/// A unit that some addresses lie in.
struct Wanted<'d> {
    header: UnitHeader<Bytes<'d>>,
    /// Indices of the addresses, sorted.
    probe_idxs: Vec<usize>,
}

struct Finder<'a, 'd> {
    dwarf: &'a Dwarf<Bytes<'d>>,
    package: Option<&'a DwarfPackage<Bytes<'d>>>,
    image_path: &'a Path,
    probes: &'a [u64],
    names: &'a mut Names,
    budget: Budget,
    /// How many more files of split DWARF may be opened.
    n_objects_left: usize,
    found: Vec<Found>,
}

/// Finds the frames of addresses, which are sorted; the answers come in the same order.
pub(super) fn find<'d>(
    mut dwarf: Dwarf<Bytes<'d>>,
    package: Option<&DwarfPackage<Bytes<'d>>>,
    image_path: &Path,
    probes: &[u64],
    names: &mut Names,
) -> Vec<Found> {
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let mut budget = Budget::for_bytes(n_bytes(&dwarf));
    if let Some(sup) = &dwarf.sup {
        budget.extend(&Budget::for_bytes(n_bytes(sup)));
    }
    if let Some(package) = package {
        let n_bytes = package.debug_info.reader().len() + package.debug_abbrev.reader().len();
        budget.extend(&Budget::for_bytes(n_bytes as u64));
    }
    let mut finder = Finder {
        dwarf: &dwarf,
        package,
        image_path,
        probes,
        names,
        budget,
        n_objects_left: 16 + 4 * probes.len(),
        found: probes.iter().map(|_| Found::default()).collect(),
    };
    let (wanted, unit_offsets) = finder.wanted_units();
    let mut origins = Origins::new(&dwarf, unit_offsets);
    for unit in wanted {
        // A damaged unit loses its own names.
        let _ = finder.read_unit(unit, &mut origins);
    }
    finder.found
}

fn n_bytes(dwarf: &Dwarf<Bytes<'_>>) -> u64 {
    let n_bytes = dwarf.debug_info.reader().len()
        + dwarf.debug_abbrev.reader().len()
        + dwarf.debug_line.reader().len()
        + dwarf.ranges.debug_ranges().reader().len()
        + dwarf.ranges.debug_rnglists().reader().len();
    n_bytes as u64
}

impl<'a, 'd> Finder<'a, 'd> {
    /// Finds the units of the addresses, and the offsets of all units, ascending.
    fn wanted_units(&mut self) -> (Vec<Wanted<'d>>, Vec<usize>) {
        let mut wanted = Vec::new();
        let mut unit_offsets = Vec::new();
        let mut headers = self.dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if let Some(offset) = header.offset().as_debug_info_offset() {
                unit_offsets.push(offset.0);
            }
            let holds_code = matches!(
                header.type_(),
                UnitType::Compilation | UnitType::Skeleton(_) | UnitType::SplitCompilation(_)
            );
            if !holds_code {
                continue;
            }
            match self.probes_of(header) {
                Ok(probe_idxs) if !probe_idxs.is_empty() => {
                    wanted.push(Wanted { header, probe_idxs })
                }
                Err(Missing::TooMuchWork) => break,
                _ => {}
            }
        }
        (wanted, unit_offsets)
    }

    /// Finds the addresses that a unit's ranges contain.
    fn probes_of(&mut self, header: UnitHeader<Bytes<'d>>) -> Result<Vec<usize>, Missing> {
        let unit = parse_unit(self.dwarf, header, &mut self.budget)?;
        let unit = UnitRef::new(self.dwarf, &unit);
        let probes = self.probes;
        let mut probe_idxs = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        let Some(abbrev) = entries.read_abbreviation()? else {
            return Ok(probe_idxs);
        };
        let mut pcs = dies::PcRanges::default();
        for &spec in abbrev.attributes() {
            pcs.add(unit, &entries.read_attribute(spec)?)?;
        }
        let states_ranges = pcs.for_each(unit, &mut self.budget, |range| {
            probe_idxs.extend(lines::covered(probes, range));
        })?;
        if !states_ranges {
            lines::for_each_sequence(unit, &mut self.budget, |range| {
                probe_idxs.extend(lines::covered(probes, range));
            })?;
        }
        probe_idxs.sort_unstable();
        probe_idxs.dedup();
        Ok(probe_idxs)
    }

    fn read_unit(
        &mut self,
        wanted: Wanted<'d>,
        origins: &mut Origins<'a, 'd>,
    ) -> Result<(), Missing> {
        let mut probe_idxs = wanted.probe_idxs;
        probe_idxs.retain(|&probe_idx| !self.found[probe_idx].has_function);
        if probe_idxs.is_empty() {
            return Ok(());
        }
        let probes: Vec<u64> = probe_idxs.iter().map(|&idx| self.probes[idx]).collect();
        let unit = parse_unit(self.dwarf, wanted.header, &mut self.budget)?;
        let main = UnitRef::new(self.dwarf, &unit);

        // Line tables are in the linked file even when the rest is split off.
        let mut places = vec![None; probes.len()];
        let _ = lines::find_places(main, &probes, &mut places, &mut self.budget);
        let mut scopes = UnitScopes::new(probes.len());
        let _ = match unit.dwo_id {
            None => dies::read_scopes(
                main,
                &probes,
                &mut scopes,
                origins,
                self.names,
                &mut self.budget,
            ),
            Some(dwo_id) => self.read_split_scopes(main, dwo_id, &probes, &mut scopes),
        };

        let is_mangling = is_mangling(scopes.language);
        let mut files = Files::default();
        for ((probe_idx, scopes), place) in probe_idxs.into_iter().zip(scopes.by_probe).zip(places)
        {
            if scopes.function.is_some()
                || (place.is_some() && self.found[probe_idx].frames.is_empty())
            {
                self.found[probe_idx] =
                    found(main, &mut files, scopes, place, is_mangling, self.names);
            }
        }
        Ok(())
    }

    /// Reads the functions of a skeleton unit from its package or object.
    fn read_split_scopes(
        &mut self,
        skeleton: UnitRef<'_, Bytes<'d>>,
        dwo_id: DwoId,
        probes: &[u64],
        scopes: &mut UnitScopes,
    ) -> Result<(), Missing> {
        if let Some(package) = self.package {
            if let Ok(Some(dwarf)) = package.find_cu(dwo_id, self.dwarf) {
                return self.read_split_unit(&dwarf, skeleton.unit, dwo_id, probes, scopes);
            }
        }
        self.n_objects_left = self
            .n_objects_left
            .checked_sub(1)
            .ok_or(Missing::TooMuchWork)?;
        let name = skeleton.dwo_name()?.ok_or(Missing::Damaged)?;
        let name = skeleton.attr_string(name)?;
        let comp_dir = skeleton.comp_dir.map_or(&[][..], |dir| dir.slice());
        let bytes = locate::dwarf_object(comp_dir, name.slice(), self.image_path)
            .ok_or(Missing::Unreadable)?;
        let file = parse(&bytes)?;
        let sections = sections::load_object(&file)?;
        let endian = skeleton.dwarf.debug_info.reader().endian();
        let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
        self.budget.extend(&Budget::for_bytes(n_bytes(&dwarf)));
        dwarf.make_dwo(self.dwarf);
        self.read_split_unit(&dwarf, skeleton.unit, dwo_id, probes, scopes)
    }

    fn read_split_unit<'s>(
        &mut self,
        dwarf: &Dwarf<Bytes<'s>>,
        skeleton: &Unit<'s>,
        dwo_id: DwoId,
        probes: &[u64],
        scopes: &mut UnitScopes,
    ) -> Result<(), Missing> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let mut unit = parse_unit(dwarf, header, &mut self.budget)?;
            if unit.dwo_id != Some(dwo_id) {
                continue;
            }
            unit.copy_relocated_attributes(skeleton);
            let mut origins = Origins::new(dwarf, Vec::new());
            let unit = UnitRef::new(dwarf, &unit);
            return dies::read_scopes(
                unit,
                probes,
                scopes,
                &mut origins,
                self.names,
                &mut self.budget,
            );
        }
        Err(Missing::OtherImage)
    }
}

/// Reads a unit's header and root; abbreviations are paid for first, as many units may share a long one.
pub(super) fn parse_unit<'d>(
    dwarf: &Dwarf<Bytes<'d>>,
    header: UnitHeader<Bytes<'d>>,
    budget: &mut Budget,
) -> Result<Unit<'d>, Missing> {
    let abbreviations = dwarf.abbreviations(&header)?;
    let n_attributes = header
        .entries_raw(&abbreviations, None)?
        .read_abbreviation()?
        .map_or(0, |abbrev| abbrev.attributes().len());
    budget.spend(1 + n_attributes)?;
    Ok(Unit::new_with_abbreviations(dwarf, header, abbreviations)?)
}

/// Puts together the frames of one address.
fn found(
    unit: UnitRef<'_, Bytes<'_>>,
    files: &mut Files,
    scopes: Scopes,
    place: Option<Place>,
    is_mangling: bool,
    names: &mut Names,
) -> Found {
    let mut frame = |function: Option<Rc<str>>, place: Place| SourceFrame {
        function,
        file: place.file_idx.and_then(|idx| files.path(unit, idx, names)),
        line: place.line,
        column: place.column,
    };
    // In C a linkage name is an assembler alias of the name that the source has.
    let name = |function: dies::Function| match (function.linkage_name, function.source_name) {
        (_, Some(source)) if !is_mangling => (Some(source), Physical::Named),
        (Some(linkage), _) => (Some(linkage), Physical::Named),
        (None, Some(source)) => (Some(source), Physical::Short),
        (None, None) => (None, Physical::Unnamed),
    };
    let mut place = place.unwrap_or_default();
    let mut frames = Vec::with_capacity(scopes.inlined.len() + 1);
    // Scopes are outermost first; each one's call site is where its caller stands.
    for inlined in scopes.inlined.into_iter().rev() {
        let (name, _) = name(inlined.function);
        frames.push(frame(name, place));
        place = inlined.call;
    }
    let has_function = scopes.function.is_some();
    let (name, physical) = scopes.function.map_or((None, Physical::Unnamed), name);
    frames.push(frame(name, place));
    Found {
        frames,
        physical,
        has_function,
    }
}

/// Whether a language has linkage names that tell more than the source names.
fn is_mangling(language: Option<DwLang>) -> bool {
    !matches!(
        language,
        Some(
            dw::DW_LANG_C
                | dw::DW_LANG_C89
                | dw::DW_LANG_C99
                | dw::DW_LANG_C11
                | dw::DW_LANG_C17
                | dw::DW_LANG_Mips_Assembler
        )
    )
}
