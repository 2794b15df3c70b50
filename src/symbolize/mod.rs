//! From addresses to functions, files and lines, or to the reason why there are none. Report path only.

#![deny(unsafe_code)]

use crate::modules::{ModuleAddress, ModuleMap};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A return address as captured, and the module generation it was captured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CodeAddress {
    pub(crate) avma: usize,
    pub(crate) generation: u32,
}

/// One source-level function that an address lies in: the physical one or one inlined into it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct SourceFrame {
    /// The demangled name without hash.
    pub(crate) function: Option<Rc<str>>,
    /// The path as the compiler recorded it, compilation directory included.
    pub(crate) file: Option<Rc<PathBuf>>,
    /// 1-based; `None` when unknown.
    pub(crate) line: Option<u32>,
    /// 1-based; `None` when unknown.
    pub(crate) column: Option<u32>,
}

/// What is known of one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    /// Where the address itself lies, for `module+0xOFFSET`: not moved to the call before it. `None` outside any
    /// file-backed module.
    pub(crate) module: Option<ModuleAddress>,
    /// Innermost inlined function first, the physical function last. Empty when no symbol exists.
    pub(crate) frames: Vec<SourceFrame>,
}

/// The answers for a set of addresses.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    pub(crate) by_address: HashMap<CodeAddress, Resolved>,
    /// Whether the executable has debug information.
    pub(crate) executable_has_debug_info: bool,
}

/// Resolves return addresses. Every address gets an entry. Opens one module at a time and keeps none open. Never fails as a
/// whole: what cannot be read leaves its addresses without frames.
pub(crate) fn symbolize(_addresses: &[CodeAddress], _modules: &ModuleMap) -> Symbols {
    todo!()
}
