//! A file mapped for reading.

#![allow(unsafe_code)]

use super::Missing;
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// Maps a regular file. Its pages are the page cache's, not anonymous memory.
///
/// # Errors
/// `Unreadable` when there is no such regular file or it cannot be opened and mapped.
pub(super) fn map(path: &Path) -> Result<Mmap, Missing> {
    // A path found in a file may name a device or a FIFO, whose opening has effects.
    let metadata = path.metadata().map_err(|_| Missing::Unreadable)?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Err(Missing::Unreadable);
    }
    let file = File::open(path).map_err(|_| Missing::Unreadable)?;
    // SAFETY: the mapping is private and read-only, and its readers take the bytes as hostile. Files of loaded images and
    // their debug information are replaced, not rewritten in place; one that shrinks meanwhile cannot be guarded against.
    unsafe { Mmap::map(&file) }.map_err(|_| Missing::Unreadable)
}
