//! From addresses to functions, files and lines, or to the reason why there are none. Report path only.

#![deny(unsafe_code)]

#[cfg(feature = "symbolize")]
mod resolver;
#[cfg(not(feature = "symbolize"))]
#[path = "unnamed.rs"]
mod resolver;

use crate::modules::{ModuleAddress, ModuleMap};
use resolver::Resolver;
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
pub(crate) fn symbolize(addresses: &[CodeAddress], modules: &ModuleMap) -> Symbols {
    let mut symbols = Symbols::default();
    let mut by_module: Vec<Vec<(u64, CodeAddress)>> = vec![Vec::new(); modules.modules().len()];
    for &address in addresses {
        if symbols.by_address.contains_key(&address) {
            continue;
        }
        let call = locate_call(address, modules);
        if let Some(call) = call {
            by_module[call.module_idx].push((call.svma, address));
        }
        let resolved = Resolved {
            module: call.map(|call| ModuleAddress {
                svma: call.svma.wrapping_add(1),
                ..call
            }),
            frames: Vec::new(),
        };
        symbols.by_address.insert(address, resolved);
    }

    let mut resolver = Resolver::new();
    for (module, mut calls) in modules.modules().iter().zip(by_module) {
        if !module.has_file || (calls.is_empty() && !module.is_executable) {
            continue;
        }
        calls.sort_unstable();
        let mut probes: Vec<u64> = calls.iter().map(|&(svma, _)| svma).collect();
        probes.dedup();
        let named = resolver.resolve(module, &probes);
        symbols.executable_has_debug_info |= module.is_executable && named.has_debug_info;
        for (svma, address) in calls {
            let frames = probes
                .binary_search(&svma)
                .ok()
                .and_then(|probe_idx| named.frames.get(probe_idx));
            if let (Some(frames), Some(resolved)) = (frames, symbols.by_address.get_mut(&address)) {
                resolved.frames.clone_from(frames);
            }
        }
    }
    symbols
}

/// Locates the last byte of the call that a return address follows: the return address of a call that never returns may
/// lie past the end of its function, of its module even.
fn locate_call(address: CodeAddress, modules: &ModuleMap) -> Option<ModuleAddress> {
    modules.locate(address.avma.checked_sub(1)?, address.generation)
}

/// What a resolver knows of one module's addresses.
#[derive(Debug, Default)]
struct ModuleNames {
    /// One list for each address asked for, in that order; innermost first. Empty or shorter when nothing is known.
    frames: Vec<Vec<SourceFrame>>,
    /// Whether the module's file, or a separate one of the same image, has DWARF.
    has_debug_info: bool,
}
