//! The loaded images: which file an address comes from, and what the address is called in that file.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod elf;
mod table;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use table::Lasting;

/// One file that was mapped for execution when an address in it was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// The file's path as the loader gave it, resolved for the executable; a name in brackets for images without a file.
    pub(crate) path: PathBuf,
    /// Whether this is the program itself; its file is then best read through the system's link to it.
    pub(crate) is_executable: bool,
    /// Whether the image comes from a file. The vDSO does not.
    pub(crate) has_file: bool,
    /// The GNU build ID, if the image has one.
    pub(crate) build_id: Option<Vec<u8>>,
    /// The run-time addresses (AVMA) that belong to the module.
    pub(crate) range: Range<usize>,
    /// AVMA minus SVMA, the address as the file's own symbols state it.
    pub(crate) bias: usize,
    /// The first and the last module generation in which the module was seen.
    pub(crate) generations: (u32, u32),
}

/// The modules that addresses were seen in, for looking addresses up.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleMap {
    modules: Vec<Module>,
}

/// An address inside a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModuleAddress {
    /// Index into [`ModuleMap::modules`].
    pub(crate) module_idx: usize,
    /// The address as the file's own symbols state it.
    pub(crate) svma: u64,
}

impl ModuleMap {
    /// All modules; [`ModuleAddress::module_idx`] counts in this slice. Report path only.
    pub(crate) fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Finds the module that contained `avma` in `generation`; `None` when no module did, or when it cannot be told which
    /// of several did. Report path only.
    pub(crate) fn locate(&self, avma: usize, generation: u32) -> Option<ModuleAddress> {
        let mut found: Option<(usize, &Module)> = None;
        for (module_idx, module) in self.modules.iter().enumerate() {
            let (first, last) = module.generations;
            if !module.range.contains(&avma) || !(first..=last).contains(&generation) {
                continue;
            }
            match found {
                Some((_, other)) if !module.is_same_file(other) => return None,
                _ => found = Some((module_idx, module)),
            }
        }
        found.map(|(module_idx, module)| ModuleAddress {
            module_idx,
            svma: avma.wrapping_sub(module.bias) as u64,
        })
    }
}

impl Module {
    /// Whether addresses mean the same in both.
    fn is_same_file(&self, other: &Self) -> bool {
        self.path == other.path && self.build_id == other.build_id && self.bias == other.bias
    }
}

/// The last byte of the call that a return address follows. What is said of a return address is said of that byte: a call
/// that never returns may be the last of its function, of its module even. Hook-safe.
#[inline(always)]
pub(crate) fn call_of(return_address: usize) -> usize {
    return_address.wrapping_sub(1)
}

/// Why an address is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A frame of a living stack executes there, so that its module cannot be unloaded meanwhile.
    OnStack,
    /// It may be no code address at all: only modules that are never unloaded are looked into.
    Guessed,
}

/// What a module says about unwinding: bytes of its image in memory.
#[derive(Clone, Copy)]
pub(crate) struct UnwindTables<'a> {
    /// `.eh_frame_hdr`.
    pub(crate) header: &'a [u8],
    /// Where `header` starts at run time.
    pub(crate) header_avma: usize,
    /// The readable segment that contains it, and `.eh_frame` with it.
    pub(crate) segment: &'a [u8],
    /// Where `segment` starts at run time.
    pub(crate) segment_avma: usize,
}

/// The answer of [`with_unwind_tables`] for an address inside a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InModule<R> {
    /// Whether the module is in the table of seen modules now.
    pub(crate) is_recorded: bool,
    /// What was read from the tables, if the module has any.
    pub(crate) tables: Option<R>,
}

/// Relaxed everywhere: see [`generation`].
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Where most code is. Relaxed everywhere: set before anything is recorded.
static EXECUTABLE_START: AtomicUsize = AtomicUsize::new(0);
static EXECUTABLE_LEN: AtomicUsize = AtomicUsize::new(0);
/// The loader's unload counter plus one, as seen last; 0 before the first look.
static LAST_UNLOADED: AtomicU64 = AtomicU64::new(0);

/// Resolves what the loader offers and notes the modules that are never unloaded. Not hook-safe.
pub(crate) fn prepare() {
    elf::prepare();
    let executable = elf::program_headers();
    if let Some(headers) = executable {
        elf::with_image_locked(headers, |image| {
            EXECUTABLE_START.store(image.range.start, Ordering::Relaxed);
            EXECUTABLE_LEN.store(image.range.len(), Ordering::Relaxed);
        });
    }
    let this_crate = Some(prepare as fn() as usize);
    let functions = [
        executable,
        this_crate,
        elf::c_library_function(),
        elf::loader_function(),
        Some(elf::vdso_start()),
    ];
    for function in functions.into_iter().flatten() {
        elf::with_image_locked(function, |image| {
            table::note(image, generation(), Lasting::Pinned)
        });
    }
}

/// The current module generation: a number that grows when a library has been unloaded. Starts at 0. Hook-safe.
pub(crate) fn generation() -> u32 {
    // Relaxed: whoever reads a number that is about to change reads it for a stack that is older than the change.
    GENERATION.load(Ordering::Relaxed)
}

/// Starts a new generation if the loader has unloaded anything since the last call; tells whether it did. Takes the
/// loader's lock; never to be called with a lock of ours held. Hook-safe.
pub(crate) fn notice_unloading() -> bool {
    let Some(n_unloaded) = elf::n_unloaded() else {
        return false;
    };
    let now = n_unloaded.wrapping_add(1);
    // Relaxed: of several threads that see the change, the swap picks one to start the generation.
    let last = LAST_UNLOADED.swap(now, Ordering::Relaxed);
    let is_new = last != 0 && last != now;
    if is_new {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    is_new
}

/// Notes the module of `avma` and gives its unwind tables to `read`. `None` when `avma` is in no module that may be looked
/// into. Hook-safe.
pub(crate) fn with_unwind_tables<R>(
    avma: usize,
    scope: Scope,
    read: impl FnOnce(&UnwindTables<'_>) -> R,
) -> Option<InModule<R>> {
    if scope == Scope::Guessed && !table::is_pinned(avma) {
        return None;
    }
    elf::with_image(avma, |image| InModule {
        is_recorded: table::note(image, generation(), Lasting::Unloadable),
        tables: unwind_tables(image).map(|tables| read(&tables)),
    })
}

/// Whether `avma` lies in a module that is never unloaded. Hook-safe.
#[inline]
pub(crate) fn is_pinned_code(avma: usize) -> bool {
    let start = EXECUTABLE_START.load(Ordering::Relaxed);
    avma.wrapping_sub(start) < EXECUTABLE_LEN.load(Ordering::Relaxed) || table::is_pinned(avma)
}

/// All modules that addresses were seen in, and those that contain the given addresses without a walk having been led there
/// by a table. Each address comes with the generation it was captured in. Report path only, with no lock held.
pub(crate) fn covering(addresses: impl Iterator<Item = (usize, u32)>) -> ModuleMap {
    let now = generation();
    let seen = ModuleMap {
        modules: table::modules(now),
    };
    let mut is_complete = true;
    for (avma, generation) in addresses {
        // What an earlier generation had at an address can no longer be asked.
        if generation == now && seen.locate(avma, now).is_none() {
            is_complete = false;
            elf::with_image_locked(avma, |image| table::note(image, now, Lasting::Unloadable));
        }
    }
    if is_complete {
        return seen;
    }
    ModuleMap {
        modules: table::modules(now),
    }
}

fn unwind_tables<'a>(image: &elf::Image<'a>) -> Option<UnwindTables<'a>> {
    let header = image.unwind_header()?;
    let segment = image.segment_of(&header)?;
    Some(UnwindTables {
        header: image.bytes(header.clone())?,
        header_avma: header.start,
        segment: image.bytes(segment.clone())?,
        segment_avma: segment.start,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, range: Range<usize>, generations: (u32, u32)) -> Module {
        Module {
            path: path.into(),
            is_executable: false,
            has_file: true,
            build_id: None,
            bias: range.start,
            range,
            generations,
        }
    }

    #[test]
    fn locate_goes_by_address_and_generation() {
        let map = ModuleMap {
            modules: vec![
                module("old", 0x1000..0x3000, (0, 2)),
                module("new", 0x2000..0x4000, (3, 5)),
            ],
        };
        let found = |avma, generation| {
            map.locate(avma, generation)
                .map(|at| (at.module_idx, at.svma))
        };
        std::assert_eq!(found(0x2fff, 2), Some((0, 0x1fff)));
        std::assert_eq!(found(0x2fff, 3), Some((1, 0xfff)));
        std::assert_eq!(found(0x1000, 0), Some((0, 0)));
        std::assert_eq!(found(0x1000, 3), None);
        std::assert_eq!(found(0x3000, 2), None);
        std::assert_eq!(found(0x3fff, 6), None);
        std::assert_eq!(found(0xfff, 1), None);
        std::assert_eq!(found(0x4000, 4), None);
    }

    #[test]
    fn locate_does_not_choose_between_two_files() {
        let ranges = || 0x1000..0x3000;
        let mut modules = vec![module("a", ranges(), (0, 1)), module("b", ranges(), (1, 1))];
        let map = ModuleMap {
            modules: modules.clone(),
        };
        std::assert_eq!(map.locate(0x2000, 1), None);
        std::assert_eq!(map.locate(0x2000, 0).unwrap().module_idx, 0);
        // The same file seen twice is no choice.
        modules[1].path = "a".into();
        std::assert!(ModuleMap { modules }.locate(0x2000, 1).is_some());
    }

    #[test]
    fn the_executable_the_c_library_and_the_vdso_are_seen_after_prepare() {
        prepare();
        let map = covering(std::iter::empty());
        let module_of = |avma| {
            let at = map.locate(avma, generation()).unwrap();
            let module = &map.modules()[at.module_idx];
            std::assert_eq!(at.svma as usize, avma - module.bias);
            module
        };
        let executable = module_of(prepare as fn() as usize);
        std::assert!(executable.is_executable && executable.has_file);
        std::assert_eq!(executable.path, std::env::current_exe().unwrap());
        std::assert!(executable.build_id.as_ref().is_some_and(|id| id.len() >= 8));
        let c_library = module_of(elf::c_library_function().unwrap());
        std::assert!(!c_library.is_executable && c_library.has_file);
        std::assert!(c_library.path.to_str().unwrap().contains("libc.so"));
        let vdso = module_of(elf::vdso_start());
        std::assert_eq!(vdso.path.to_str(), Some("[vdso]"));
        std::assert!(!vdso.has_file);
        let local = 0;
        std::assert!(
            map.locate(&raw const local as usize, generation())
                .is_none()
        );
    }
}
