//! Puts a report where the user wants it, without ever leaving half of one in place of a whole older one.

use crate::sys;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The most links that are followed to a target that does not exist; Linux stops there too.
const N_LINKS: usize = 40;
/// How many names are tried for the temporary file.
const N_NAMES: u32 = 100;

/// Writes what `content` writes to the file `path`.
///
/// A new or regular target is replaced by a rename as soon as everything is written. Everything else (a device, a FIFO, a
/// file with other names or another owner, one that cannot be renamed onto, a directory without write permission) is
/// written directly.
///
/// # Errors
/// Those of the file system. A regular target then has its old content, unless it had to be written directly.
pub(super) fn save(
    path: &Path,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(target) = replaceable_target(path) {
        let replaced = replace(&target, content);
        if let Err(Failure::Content(error)) = replaced {
            return Err(error);
        }
        if replaced.is_ok() {
            return Ok(());
        }
    }
    let mut file = File::create(path)?;
    write_all(&mut file, content)?;
    Ok(())
}

/// Why a file was not replaced.
enum Failure {
    /// The place does not allow it; the file may still be written directly.
    Place,
    /// There is no room for the content, or the target is not to be written.
    Content(io::Error),
}

/// The file behind all links, if it is one that a rename may replace.
fn replaceable_target(path: &Path) -> Option<PathBuf> {
    // Names that the kernel makes, such as /dev/stdout: other writers hold the file behind them open.
    let absolute = std::path::absolute(path).ok()?;
    if absolute.starts_with("/dev") || absolute.starts_with("/proc") {
        return None;
    }
    match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path).ok(),
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::NotFound => link_end(path),
        Err(_) => None,
    }
}

/// The path that a chain of links to nowhere ends at; `path` itself when it is no link.
fn link_end(path: &Path) -> Option<PathBuf> {
    let mut end = path.to_path_buf();
    for _ in 0..N_LINKS {
        match fs::read_link(&end) {
            // Joining an absolute path replaces the directory.
            Ok(next) => end = end.parent()?.join(next),
            Err(_) => return Some(end),
        }
    }
    None
}

fn replace(
    target: &Path,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let old = match OpenOptions::new().write(true).open(target) {
        // A target that may not be written must not be replaced either.
        Ok(file) => Some(file.metadata().map_err(|_| Failure::Place)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::Content(error)),
    };
    let (mut file, temporary) = create_beside(target).ok_or(Failure::Place)?;
    let result = fill(&mut file, old, content);
    drop(file);
    let result = result.and_then(|()| fs::rename(&temporary, target).map_err(|_| Failure::Place));
    if result.is_err() {
        // What cannot be removed stays; the user learns of the error itself.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn fill(
    file: &mut File,
    old: Option<fs::Metadata>,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    if let Some(old) = old {
        let new = file.metadata().map_err(|_| Failure::Place)?;
        if !sys::may_stand_for(&new, &old) {
            return Err(Failure::Place);
        }
        file.set_permissions(old.permissions())
            .map_err(|_| Failure::Place)?;
    }
    let n_written = write_all(file, content).map_err(Failure::Content)?;
    let n_present = file.metadata().map_err(Failure::Content)?.len();
    if n_present == n_written {
        Ok(())
    } else {
        Err(Failure::Content(ErrorKind::WriteZero.into()))
    }
}

/// A new file in the directory of `target`; `None` if none can be made there.
fn create_beside(target: &Path) -> Option<(File, PathBuf)> {
    let name = target.file_name()?;
    for attempt in 0..N_NAMES {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let path = target.with_file_name(hidden);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Some((file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
}

/// Counts what goes through.
struct Counting<W> {
    inner: W,
    n_bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_bytes = self.inner.write(bytes)?;
        self.n_bytes += n_bytes as u64;
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes the content to `file`, buffered, and returns its length in bytes.
fn write_all(
    file: &mut File,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let mut counting = Counting {
        inner: file,
        n_bytes: 0,
    };
    let mut buffered = BufWriter::with_capacity(1 << 16, &mut counting);
    content(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    Ok(counting.n_bytes)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

    /// A directory that is removed with its content.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("report-save-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn save_text(path: &Path, text: &str) -> io::Result<()> {
        save(path, &|out| out.write_all(text.as_bytes()))
    }

    #[test]
    fn new_file_has_the_content_and_nothing_else_is_left() {
        let scratch = Scratch::new("new");
        save_text(&scratch.path("out.json"), "whole").unwrap();
        std::assert_eq!(fs::read(scratch.path("out.json")).unwrap(), b"whole");
        std::assert_eq!(scratch.names(), ["out.json"]);
    }

    #[test]
    fn regular_file_is_replaced_by_a_rename_and_keeps_its_permissions() {
        let scratch = Scratch::new("regular");
        let path = scratch.path("out.json");
        fs::write(&path, "a longer old content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let old = fs::metadata(&path).unwrap();
        save_text(&path, "new").unwrap();
        let new = fs::metadata(&path).unwrap();
        std::assert_eq!(fs::read(&path).unwrap(), b"new");
        std::assert_eq!(new.permissions().mode() & 0o777, 0o640);
        std::assert_ne!(new.ino(), old.ino());
    }

    #[test]
    fn file_with_two_names_keeps_both() {
        let scratch = Scratch::new("two-names");
        fs::write(scratch.path("one.json"), "a longer old content").unwrap();
        fs::hard_link(scratch.path("one.json"), scratch.path("other.json")).unwrap();
        save_text(&scratch.path("one.json"), "new").unwrap();
        std::assert_eq!(fs::read(scratch.path("other.json")).unwrap(), b"new");
        std::assert_eq!(scratch.names(), ["one.json", "other.json"]);
    }

    #[test]
    fn file_of_another_owner_keeps_it() {
        let scratch = Scratch::new("owner");
        let path = scratch.path("out.json");
        fs::write(&path, "old").unwrap();
        // Only root can give files away, and so replace those of others.
        let is_anothers = std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).is_ok();
        save_text(&path, "new").unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        std::assert_eq!(owner == 12_345, is_anothers);
        std::assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn failed_write_leaves_the_old_content() {
        let scratch = Scratch::new("failed");
        let path = scratch.path("out.json");
        fs::write(&path, "old").unwrap();
        let error = save(&path, &|out| {
            out.write_all(b"half")?;
            Err(io::Error::from_raw_os_error(28))
        });
        std::assert_eq!(error.unwrap_err().raw_os_error(), Some(28));
        std::assert_eq!(fs::read(&path).unwrap(), b"old");
        std::assert_eq!(scratch.names(), ["out.json"]);
    }

    #[test]
    fn links_stay_links_and_their_targets_are_written() {
        let scratch = Scratch::new("links");
        fs::create_dir(scratch.path("real")).unwrap();
        fs::write(scratch.path("real/old.json"), "old").unwrap();
        symlink("real/old.json", scratch.path("to-old")).unwrap();
        symlink("to-new", scratch.path("to-to-new")).unwrap();
        symlink("real/new.json", scratch.path("to-new")).unwrap();
        save_text(&scratch.path("to-old"), "first").unwrap();
        save_text(&scratch.path("to-to-new"), "second").unwrap();
        std::assert_eq!(fs::read(scratch.path("real/old.json")).unwrap(), b"first");
        std::assert_eq!(fs::read(scratch.path("real/new.json")).unwrap(), b"second");
        std::assert!(scratch.path("to-old").is_symlink());
        std::assert!(scratch.path("to-to-new").is_symlink());
        std::assert_eq!(scratch.names(), ["real", "to-new", "to-old", "to-to-new"]);
    }

    #[test]
    fn full_device_fails_and_stays_a_device() {
        let scratch = Scratch::new("full");
        symlink("/dev/full", scratch.path("link")).unwrap();
        for path in [Path::new("/dev/full"), &scratch.path("link")] {
            let error = save_text(path, "x").unwrap_err();
            std::assert_eq!(error.to_string(), "No space left on device (os error 28)");
        }
        let device = fs::symlink_metadata("/dev/full").unwrap();
        std::assert!(device.file_type().is_char_device());
    }

    #[test]
    fn null_device_takes_everything_and_stays_a_device() {
        save_text(Path::new("/dev/null"), "x").unwrap();
        let device = fs::symlink_metadata("/dev/null").unwrap();
        std::assert!(device.file_type().is_char_device());
    }

    #[test]
    fn fifo_is_written_directly_and_stays_a_fifo() {
        let scratch = Scratch::new("fifo");
        let path = scratch.path("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        std::assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut text = String::new();
                File::open(path).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        save_text(&path, "through").unwrap();
        std::assert_eq!(reader.join().unwrap(), "through");
        std::assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
        std::assert_eq!(scratch.names(), ["fifo"]);
    }

    #[test]
    fn standard_output_redirected_to_a_file_is_not_replaced() {
        let scratch = Scratch::new("fd");
        let path = scratch.path("out.json");
        let held = File::create(&path).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        save_text(Path::new(&format!("/dev/fd/{number}")), "x").unwrap();
        std::assert_eq!(
            fs::metadata(&path).unwrap().ino(),
            held.metadata().unwrap().ino()
        );
        std::assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn missing_directory_and_directory_as_target_give_the_systems_error() {
        let scratch = Scratch::new("missing");
        let missing = save_text(&scratch.path("no/out.json"), "x").unwrap_err();
        std::assert_eq!(
            missing.to_string(),
            "No such file or directory (os error 2)"
        );
        let directory = save_text(&scratch.0, "x").unwrap_err();
        std::assert_eq!(directory.to_string(), "Is a directory (os error 21)");
    }

    /// Whether permission bits bind this process; they do not bind root.
    fn is_bound_by_permissions(scratch: &Scratch) -> bool {
        let probe = scratch.path("probe");
        fs::write(&probe, "").unwrap();
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o444)).unwrap();
        let bound = OpenOptions::new().write(true).open(&probe).is_err();
        fs::remove_file(&probe).unwrap();
        bound
    }

    #[test]
    fn read_only_file_is_never_replaced() {
        let scratch = Scratch::new("read-only");
        let path = scratch.path("out.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let result = save_text(&path, "new");
        if is_bound_by_permissions(&scratch) {
            std::assert_eq!(
                result.unwrap_err().to_string(),
                "Permission denied (os error 13)"
            );
            std::assert_eq!(fs::read(&path).unwrap(), b"old");
        } else {
            result.unwrap();
            std::assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        std::assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o444
        );
    }

    #[test]
    fn file_in_an_unwritable_directory_is_written_directly() {
        let scratch = Scratch::new("unwritable");
        let is_bound = is_bound_by_permissions(&scratch);
        let path = scratch.path("out.json");
        fs::write(&path, "a longer old content").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o555)).unwrap();
        let result = save_text(&path, "new");
        let refused = save_text(&scratch.path("other.json"), "x");
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
        result.unwrap();
        std::assert_eq!(fs::read(&path).unwrap(), b"new");
        std::assert_eq!(inode == fs::metadata(&path).unwrap().ino(), is_bound);
        std::assert_eq!(refused.is_err(), is_bound);
    }
}
