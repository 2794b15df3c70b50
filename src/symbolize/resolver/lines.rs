//! Line tables: the file, line and column of addresses, and the paths of files.

use super::names::Names;
use super::sections::Bytes;
use super::{Budget, Missing};
use gimli::{ColumnType, UnitRef};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

/// A place in a source file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Index into the unit's file table; `None` when unknown.
    pub(super) file_idx: Option<u64>,
    /// 1-based; `None` when unknown.
    pub(super) line: Option<u32>,
    /// 1-based; `None` when unknown.
    pub(super) column: Option<u32>,
}

impl Place {
    /// Makes a place of figures as DWARF states them, where 0 means unknown.
    pub(super) fn new(file_idx: Option<u64>, line: u64, column: u64) -> Self {
        let known = |figure: u64| u32::try_from(figure).ok().filter(|&figure| figure != 0);
        let line = known(line);
        Self {
            file_idx,
            line,
            column: line.and(known(column)),
        }
    }
}

/// A row of a line table, in force from its address to the next row's.
struct Row {
    address: u64,
    place: Place,
}

/// Finds the places of a unit's addresses, which are sorted, in one pass over its line table. Those found before an error
/// stay.
pub(super) fn find_places(
    unit: UnitRef<'_, Bytes<'_>>,
    probes: &[u64],
    places: &mut [Option<Place>],
    budget: &mut Budget,
) -> Result<(), Missing> {
    let Some(program) = unit.line_program.clone() else {
        return Ok(());
    };
    let mut rows = program.rows();
    let mut last: Option<Row> = None;
    let mut is_discarded = false;
    while let Some((_, row)) = rows.next_row()? {
        budget.spend(1)?;
        let address = row.address();
        match last.take() {
            // Linkers leave sequences of discarded functions at address 0.
            None => is_discarded = address == 0,
            Some(last) if last.address < address && !is_discarded => {
                let covered = covered(probes, last.address..address);
                budget.spend(covered.len())?;
                for place in &mut places[covered] {
                    place.get_or_insert(last.place);
                }
            }
            Some(_) => {}
        }
        if !row.end_sequence() {
            let column = match row.column() {
                ColumnType::LeftEdge => 0,
                ColumnType::Column(column) => column.get(),
            };
            let line = row.line().map_or(0, |line| line.get());
            last = Some(Row {
                address,
                place: Place::new(Some(row.file_index()), line, column),
            });
        }
    }
    Ok(())
}

/// Calls `each` for the ranges of addresses that a unit's line table describes, for units that do not state theirs.
pub(super) fn for_each_sequence(
    unit: UnitRef<'_, Bytes<'_>>,
    budget: &mut Budget,
    mut each: impl FnMut(Range<u64>),
) -> Result<(), Missing> {
    let Some(program) = unit.line_program.clone() else {
        return Ok(());
    };
    let mut rows = program.rows();
    let mut start = None;
    while let Some((_, row)) = rows.next_row()? {
        budget.spend(1)?;
        let begin = *start.get_or_insert(row.address());
        if row.end_sequence() {
            each(begin..row.address());
            start = None;
        }
    }
    Ok(())
}

/// The indices of the probes, which are sorted, inside a range of addresses.
pub(super) fn covered(probes: &[u64], range: Range<u64>) -> Range<usize> {
    let first_idx = probes.partition_point(|&probe| probe < range.start);
    let n_covered = probes[first_idx..].partition_point(|&probe| probe < range.end);
    first_idx..first_idx + n_covered
}

/// The paths of a unit's files, rendered when first asked for.
#[derive(Default)]
pub(super) struct Files {
    by_idx: HashMap<u64, Option<Rc<PathBuf>>>,
}

impl Files {
    /// Returns a file's path, joined with its directory and the unit's compilation directory.
    pub(super) fn path(
        &mut self,
        unit: UnitRef<'_, Bytes<'_>>,
        file_idx: u64,
        names: &mut Names,
    ) -> Option<Rc<PathBuf>> {
        let path = self
            .by_idx
            .entry(file_idx)
            .or_insert_with(|| names.file(&render(unit, file_idx)?));
        path.clone()
    }
}

fn render(unit: UnitRef<'_, Bytes<'_>>, file_idx: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(file_idx)?;
    let mut path = match unit.comp_dir {
        Some(dir) => dir.to_string_lossy().into_owned(),
        None => String::new(),
    };
    // Directory 0 is the compilation directory (DWARF 5 §6.2.4).
    if file.directory_index() != 0 {
        if let Some(dir) = file.directory(header) {
            push(&mut path, &unit.attr_string(dir).ok()?.to_string_lossy());
        }
    }
    push(
        &mut path,
        &unit.attr_string(file.path_name()).ok()?.to_string_lossy(),
    );
    Some(path)
}

/// Appends a path that a compiler on any system may have written; an absolute one replaces what is before it.
fn push(path: &mut String, part: &str) {
    let is_absolute =
        |path: &str| path.starts_with(['/', '\\']) || matches!(path.get(1..3), Some(":/" | ":\\"));
    if is_absolute(part) {
        path.clear();
    } else if !path.is_empty() && !path.ends_with(['/', '\\']) {
        let is_windows = path.starts_with('\\') || path.get(1..3) == Some(":\\");
        path.push(if is_windows { '\\' } else { '/' });
    }
    path.push_str(part);
}
