//! The DWARF sections of a file, decompressed where needed and dropped with their module.

use super::Missing;
use gimli::{DwarfPackageSections, DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use object::{CompressionFormat, Object, ObjectSection};
use std::borrow::Cow;
use std::io::Read;

/// What gimli reads from.
pub(super) type Bytes<'d> = EndianSlice<'d, RunTimeEndian>;

/// Zlib reaches 1,032 to one; more is not honest compression of debug information.
const MAX_EXPANSION: u64 = 1_032;

/// The byte order of a file.
pub(super) fn endian(file: &object::File<'_>) -> RunTimeEndian {
    if file.is_little_endian() {
        RunTimeEndian::Little
    } else {
        RunTimeEndian::Big
    }
}

/// Loads the sections of a linked file, or of a supplementary one.
pub(super) fn load<'d>(file: &object::File<'d>) -> Result<DwarfSections<Cow<'d, [u8]>>, Missing> {
    DwarfSections::load(|id| section(file, Some(id.name()).filter(|_| is_read(id))))
}

/// Loads the sections of a `.dwo` file.
pub(super) fn load_object<'d>(
    file: &object::File<'d>,
) -> Result<DwarfSections<Cow<'d, [u8]>>, Missing> {
    DwarfSections::load(|id| section(file, id.dwo_name().filter(|_| is_read(id))))
}

/// Loads the sections of a `.dwp` file: all, as its index refers to them.
pub(super) fn load_package<'d>(
    file: &object::File<'d>,
) -> Result<DwarfPackageSections<Cow<'d, [u8]>>, Missing> {
    DwarfPackageSections::load(|id| section(file, id.dwo_name()))
}

/// Whether names and places are made of what a section holds.
fn is_read(id: SectionId) -> bool {
    matches!(
        id,
        SectionId::DebugAbbrev
            | SectionId::DebugAddr
            | SectionId::DebugInfo
            | SectionId::DebugLine
            | SectionId::DebugLineStr
            | SectionId::DebugRanges
            | SectionId::DebugRngLists
            | SectionId::DebugStr
            | SectionId::DebugStrOffsets
    )
}

/// Loads a section; an absent one is empty.
fn section<'d>(file: &object::File<'d>, name: Option<&str>) -> Result<Cow<'d, [u8]>, Missing> {
    match name.and_then(|name| file.section_by_name(name)) {
        Some(section) => decompressed(&section),
        None => Ok(Cow::Borrowed(&[])),
    }
}

fn decompressed<'d>(section: &impl ObjectSection<'d>) -> Result<Cow<'d, [u8]>, Missing> {
    let data = section.compressed_data().map_err(|_| Missing::Damaged)?;
    let limit = (data.data.len() as u64).saturating_mul(MAX_EXPANSION);
    match data.format {
        CompressionFormat::None => Ok(Cow::Borrowed(data.data)),
        _ if data.uncompressed_size > limit => Err(Missing::Damaged),
        CompressionFormat::Zstandard => {
            // Stops at the size that the section's header states, which `object` checks only when all is written.
            let mut out = Vec::new();
            out.try_reserve_exact(data.uncompressed_size as usize)
                .map_err(|_| Missing::Damaged)?;
            let mut input = data.data;
            while !input.is_empty() && (out.len() as u64) < data.uncompressed_size {
                let room = data.uncompressed_size - out.len() as u64;
                let n_before = input.len();
                ruzstd::decoding::StreamingDecoder::new(&mut input)
                    .map_err(|_| Missing::Damaged)?
                    .take(room)
                    .read_to_end(&mut out)
                    .map_err(|_| Missing::Damaged)?;
                if input.len() == n_before {
                    break;
                }
            }
            if out.len() as u64 == data.uncompressed_size {
                Ok(Cow::Owned(out))
            } else {
                Err(Missing::Damaged)
            }
        }
        _ => data.decompress().map_err(|_| Missing::Damaged),
    }
}
