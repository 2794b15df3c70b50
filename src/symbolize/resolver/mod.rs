//! Names the addresses of one module at a time: opens its files, reads what concerns the addresses, closes them.
//!
//! Files are hostile: every loop over their contents is paid for from a [`Budget`] in proportion to their size, nothing
//! recurses over their structure, and what is damaged costs its own names only.

#[cfg(test)]
mod damage_tests;
mod dies;
mod dwarf;
mod lines;
mod locate;
mod mapped;
mod names;
mod origins;
mod sections;
mod symtab;
#[cfg(test)]
mod tests;

use super::{ModuleNames, SourceFrame};
use crate::modules::Module;
use dwarf::{Found, Physical};
use names::Names;
use sections::Bytes;
use std::path::{Path, PathBuf};

/// Why names are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// There is no such regular file, or it cannot be read.
    Unreadable,
    /// It is no object file that we read.
    NotAnObject,
    /// It is another image than the loaded one.
    OtherImage,
    /// It contradicts its format.
    Damaged,
    /// Reading on would take more time than its size can justify.
    TooMuchWork,
}

impl From<gimli::Error> for Missing {
    fn from(_: gimli::Error) -> Self {
        Self::Damaged
    }
}

/// The steps of work that are left for a module: bytes of honest debug information are read a few times each.
struct Budget {
    n_steps: u64,
}

impl Budget {
    const STEPS_PER_BYTE: u64 = 4;
    const MIN_STEPS: u64 = 1 << 16;

    fn for_bytes(n_bytes: u64) -> Self {
        let n_steps = n_bytes.saturating_mul(Self::STEPS_PER_BYTE);
        Self {
            n_steps: n_steps.saturating_add(Self::MIN_STEPS),
        }
    }

    fn extend(&mut self, more: &Self) {
        self.n_steps = self.n_steps.saturating_add(more.n_steps);
    }

    fn spend(&mut self, n_steps: usize) -> Result<(), Missing> {
        match self.n_steps.checked_sub(n_steps as u64) {
            Some(left) => {
                self.n_steps = left;
                Ok(())
            }
            None => {
                self.n_steps = 0;
                Err(Missing::TooMuchWork)
            }
        }
    }
}

/// Names addresses from ELF files and DWARF.
pub(super) struct Resolver {
    names: Names,
    debug_root: PathBuf,
}

impl Resolver {
    /// Creates a resolver that looks for separate debug files where distributions put them.
    pub(super) fn new() -> Self {
        Self::with_debug_root("/usr/lib/debug".into())
    }

    fn with_debug_root(debug_root: PathBuf) -> Self {
        Self {
            names: Names::default(),
            debug_root,
        }
    }

    /// Names code addresses of a module. `probes` are SVMAs, sorted, each once, and lie inside the instruction meant: a
    /// return address has been moved to its call already.
    pub(super) fn resolve(&mut self, module: &Module, probes: &[u64]) -> ModuleNames {
        self.try_resolve(module, probes).unwrap_or_default()
    }

    fn try_resolve(&mut self, module: &Module, probes: &[u64]) -> Result<ModuleNames, Missing> {
        let image_bytes = locate::map_image(module)?;
        let image = parse(&image_bytes)?;
        locate::check_image(module, &image)?;

        let separate = match locate::has_dwarf(&image) {
            true => None,
            false => locate::debug_file(&image, &module.path, &self.debug_root),
        };
        let separate = match &separate {
            Some((bytes, path)) => Some((parse(bytes)?, path.as_path())),
            None => None,
        };
        let (debug, debug_path) = match &separate {
            Some((file, path)) => (file, *path),
            None => (&image, module.path.as_path()),
        };

        let code = locate::code_ranges(&image);
        let is_code = |probe: u64| code.iter().any(|range| range.contains(&probe));
        let code_probes: Vec<u64> = probes
            .iter()
            .copied()
            .filter(|&probe| is_code(probe))
            .collect();

        // Without usable DWARF there are still symbols.
        let mut found = self
            .find_in_dwarf(debug, debug_path, &module.path, &code_probes)
            .unwrap_or_default();
        found.resize_with(code_probes.len(), Found::default);
        for file in [Some(&image), separate.as_ref().map(|(file, _)| file)] {
            let Some(file) = file else { continue };
            let symbols = symtab::find(file, &code_probes);
            for (found, symbol) in found.iter_mut().zip(symbols) {
                if let Some(symbol) = symbol.and_then(|raw| self.names.function(raw)) {
                    found.add_symbol(symbol);
                }
            }
        }

        let mut by_probe = code_probes.iter().zip(found).peekable();
        let frames = probes
            .iter()
            .map(
                |probe| match by_probe.next_if(|(code_probe, _)| *code_probe == probe) {
                    Some((_, found)) => found.frames,
                    None => Vec::new(),
                },
            )
            .collect();
        Ok(ModuleNames {
            frames,
            has_debug_info: locate::has_dwarf(debug),
        })
    }

    fn find_in_dwarf(
        &mut self,
        file: &object::File<'_>,
        file_path: &Path,
        image_path: &Path,
        probes: &[u64],
    ) -> Result<Vec<Found>, Missing> {
        if probes.is_empty() || !locate::has_dwarf(file) {
            return Ok(Vec::new());
        }
        let endian = sections::endian(file);
        let sections = sections::load(file)?;
        let mut dwarf = sections.borrow(|bytes| Bytes::new(bytes, endian));

        let sup_bytes = locate::supplementary_file(file, file_path, &self.debug_root);
        let sup_file = sup_bytes.as_ref().and_then(|bytes| parse(bytes).ok());
        let sup_sections = sup_file.as_ref().and_then(|file| sections::load(file).ok());
        if let Some(sections) = &sup_sections {
            dwarf.set_sup(sections.borrow(|bytes| Bytes::new(bytes, endian)));
        }

        let package_bytes = locate::dwarf_package(image_path);
        let package_file = package_bytes.as_ref().and_then(|bytes| parse(bytes).ok());
        let package_sections = package_file
            .as_ref()
            .and_then(|file| sections::load_package(file).ok());
        let package = package_sections.as_ref().and_then(|sections| {
            let empty = Bytes::new(&[], endian);
            sections
                .borrow(|bytes| Bytes::new(bytes, endian), empty)
                .ok()
        });

        Ok(dwarf::find(
            dwarf,
            package.as_ref(),
            image_path,
            probes,
            &mut self.names,
        ))
    }
}

fn parse(bytes: &[u8]) -> Result<object::File<'_>, Missing> {
    object::File::parse(bytes).map_err(|_| Missing::NotAnObject)
}

impl Found {
    /// Names the physical function by its symbol where DWARF does not, or only by a name without its path.
    fn add_symbol(&mut self, name: std::rc::Rc<str>) {
        if self.physical == Physical::Named {
            return;
        }
        self.physical = Physical::Named;
        match self.frames.last_mut() {
            Some(frame) => frame.function = Some(name),
            None => self.frames.push(SourceFrame {
                function: Some(name),
                ..SourceFrame::default()
            }),
        }
    }
}
