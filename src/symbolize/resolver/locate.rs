//! Which files hold the names of a module: its own, a separate debug file, a supplementary one, split DWARF.
//!
//! A file counts only if it is the loaded image's. The image's build ID must be the file's. An image without one is taken
//! by its path, provided the file has no build ID either; an address outside the file's executable segments then, as
//! always, gets no name. A separate debug file must have the same build ID, or else the checksum of `.gnu_debuglink`.

use super::Missing;
use super::mapped::map;
use crate::modules::Module;
use memmap2::Mmap;
use object::{Object, ObjectSegment, SegmentFlags, elf};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maps the module's own file. The executable is read through the system's link to it, which outlives its name.
pub(super) fn map_image(module: &Module) -> Result<Mmap, Missing> {
    if module.is_executable {
        if let Ok(file) = map(Path::new("/proc/self/exe")) {
            return Ok(file);
        }
    }
    map(&module.path)
}

/// Checks that a file is the loaded image's.
pub(super) fn check_image(module: &Module, file: &object::File<'_>) -> Result<(), Missing> {
    if build_id(file) == module.build_id.as_deref() {
        Ok(())
    } else {
        Err(Missing::OtherImage)
    }
}

/// The ranges of SVMAs that the file maps for execution.
pub(super) fn code_ranges(file: &object::File<'_>) -> Vec<std::ops::Range<u64>> {
    file.segments()
        .filter(|segment| match segment.flags() {
            SegmentFlags::Elf { p_flags } => p_flags & elf::PF_X != 0,
            _ => true,
        })
        .map(|segment| segment.address()..segment.address().saturating_add(segment.size()))
        .collect()
}

/// Whether the file has DWARF of its own.
pub(super) fn has_dwarf(file: &object::File<'_>) -> bool {
    use object::ObjectSection;
    file.section_by_name(".debug_info")
        .is_some_and(|section| section.size() > 0)
}

/// Finds the separate debug file of an image, as GDB does ("Separate Debug Files"): by build ID below `debug_root`, then by
/// the name in `.gnu_debuglink`.
pub(super) fn debug_file(
    image: &object::File<'_>,
    image_path: &Path,
    debug_root: &Path,
) -> Option<(Mmap, PathBuf)> {
    let image_id = build_id(image);
    if let Some(id) = image_id {
        if let Some(found) = by_build_id(id, debug_root, has_dwarf) {
            return Some(found);
        }
    }
    let (name, crc) = image.gnu_debuglink().ok()??;
    let name = Path::new(OsStr::from_bytes(name)).file_name()?;
    let dir = image_path.parent()?;
    let below_root = debug_root.join(dir.strip_prefix("/").unwrap_or(dir));
    let candidates = [
        dir.join(name),
        dir.join(".debug").join(name),
        below_root.join(name),
    ];
    candidates.into_iter().find_map(|path| {
        let bytes = map(&path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let is_same = match (image_id, build_id(&file)) {
            (Some(wanted), Some(found)) => wanted == found,
            _ => crc32(&bytes) == crc,
        };
        let is_right = is_same && has_dwarf(&file);
        is_right.then_some((bytes, path))
    })
}

/// Finds the supplementary file (`.gnu_debugaltlink`, DWARF 5 §7.3.6) of the debug information in `file`.
pub(super) fn supplementary_file(
    file: &object::File<'_>,
    file_path: &Path,
    debug_root: &Path,
) -> Option<Mmap> {
    let (name, id) = file.gnu_debugaltlink().ok()??;
    let is_right = |file: &object::File<'_>| build_id(file) == Some(id);
    if let Some((bytes, _)) = by_build_id(id, debug_root, is_right) {
        return Some(bytes);
    }
    let name = Path::new(OsStr::from_bytes(name));
    // The name is relative to where the file is, links resolved.
    let real_path = file_path.canonicalize().ok();
    let beside = real_path
        .as_deref()
        .unwrap_or(file_path)
        .parent()?
        .join(name);
    let below_root = debug_root.join(".dwz").join(name.file_name()?);
    [beside, below_root].into_iter().find_map(|path| {
        let bytes = map(&path).ok()?;
        let matches = is_right(&object::File::parse(&*bytes).ok()?);
        matches.then_some(bytes)
    })
}

/// Maps the package of split DWARF that stands beside an image: its name with `.dwp` appended.
pub(super) fn dwarf_package(image_path: &Path) -> Option<Mmap> {
    let mut name = image_path.file_name()?.to_owned();
    name.push(".dwp");
    map(&image_path.with_file_name(name)).ok()
}

/// Maps the object with a unit's split DWARF: where the compiler put it, or beside the image.
pub(super) fn dwarf_object(comp_dir: &[u8], name: &[u8], image_path: &Path) -> Option<Mmap> {
    let name = Path::new(OsStr::from_bytes(name));
    let compiled = Path::new(OsStr::from_bytes(comp_dir)).join(name);
    map(&compiled)
        .or_else(|missing| match name.file_name() {
            Some(name) => map(&image_path.with_file_name(name)),
            None => Err(missing),
        })
        .ok()
}

fn by_build_id(
    id: &[u8],
    debug_root: &Path,
    is_right: impl Fn(&object::File<'_>) -> bool,
) -> Option<(Mmap, PathBuf)> {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let dir = hex.get(..2)?;
    let rest = hex.get(2..).filter(|rest| !rest.is_empty())?;
    let path = debug_root.join(format!(".build-id/{dir}/{rest}.debug"));
    let bytes = map(&path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let matches = build_id(&file) == Some(id) && is_right(&file);
    matches.then_some((bytes, path))
}

fn build_id<'d>(file: &object::File<'d>) -> Option<&'d [u8]> {
    file.build_id().ok().flatten()
}

/// The CRC-32 of IEEE 802.3, which `.gnu_debuglink` uses.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, &byte| {
        (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc_of_the_check_string_is_the_published_one() {
        std::assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
