//! The loaded images: which file an address comes from, and what the address is called in that file.

#![deny(unsafe_code)]

use std::ops::Range;
use std::path::PathBuf;

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
    /// All modules; [`ModuleAddress::module_idx`] counts in this slice.
    pub(crate) fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Finds the module that contained `avma` in `generation`; `None` when no module did.
    pub(crate) fn locate(&self, _avma: usize, _generation: u32) -> Option<ModuleAddress> {
        todo!()
    }
}

/// The current module generation: a number that grows when a library has been unloaded. Starts at 0. Hook-safe.
pub(crate) fn generation() -> u32 {
    todo!()
}

/// All modules that addresses were seen in so far. Report path only.
pub(crate) fn seen() -> ModuleMap {
    todo!()
}
