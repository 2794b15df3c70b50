//! From return addresses to functions, files, lines and inlined callers, as far as any are known. Report path only.

#![deny(unsafe_code)]

#[cfg(feature = "symbolize")]
mod resolver;
#[cfg(not(feature = "symbolize"))]
#[path = "unnamed.rs"]
mod resolver;

use crate::modules::{self, ModuleAddress, ModuleMap};
use resolver::Resolver;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A return address as captured, and the module generation it was captured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CodeAddress {
    /// The run-time address.
    pub(crate) avma: usize,
    /// The module generation.
    pub(crate) generation: u32,
}

impl CodeAddress {
    /// The address in the call before it, as [`modules::call_of`] has it.
    pub(crate) fn call(self) -> usize {
        modules::call_of(self.avma)
    }
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
    /// One for each address asked for.
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
        let has_file = |call: &ModuleAddress| modules.modules()[call.module_idx].has_file;
        let call = modules
            .locate(address.call(), address.generation)
            .filter(has_file);
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
        if calls.is_empty() && !module.is_executable {
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

/// What a resolver knows of one module's addresses.
#[derive(Debug, Default)]
struct ModuleNames {
    /// One list for each address asked for, in that order; innermost first. Empty or shorter when nothing is known.
    frames: Vec<Vec<SourceFrame>>,
    /// Whether the module's file, or a separate one of the same image, has DWARF.
    has_debug_info: bool,
}

#[cfg(all(test, feature = "symbolize"))]
mod tests {
    use super::*;
    use object::{Object, ObjectSymbol};

    /// The module that is the program was built with debug information.
    fn symbolized(avmas: &[usize]) -> (Vec<Resolved>, ModuleMap) {
        let generation = crate::modules::generation();
        let address = |&avma: &usize| CodeAddress { avma, generation };
        let addresses: Vec<CodeAddress> = avmas.iter().map(address).collect();
        let calls = addresses.iter().map(|address| (address.call(), generation));
        let modules = crate::modules::covering(calls);
        let symbols = symbolize(&addresses, &modules);
        let saw_executable = modules.modules().iter().any(|module| module.is_executable);
        std::assert_eq!(symbols.executable_has_debug_info, saw_executable);
        let resolved = addresses
            .iter()
            .map(|address| symbols.by_address[address].clone())
            .collect();
        (resolved, modules)
    }

    #[test]
    fn return_addresses_lie_in_their_callers() {
        let mut avmas = Vec::new();
        let line = line!() + 1;
        backtrace::trace(|frame| {
            avmas.push(frame.ip() as usize);
            true
        });
        let (resolved, modules) = symbolized(&avmas);
        let (own_idx, own) = resolved
            .iter()
            .enumerate()
            .find_map(|(idx, resolved)| {
                let frame = resolved.frames.last()?;
                let name = frame.function.as_deref()?;
                name.ends_with("::return_addresses_lie_in_their_callers")
                    .then_some((idx, frame))
            })
            .unwrap();
        std::assert_eq!(own.line, Some(line));
        std::assert!(own.file.as_ref().unwrap().ends_with(file!()));
        let module = resolved[own_idx].module.unwrap();
        let bias = modules.modules()[module.module_idx].bias;
        std::assert_eq!(module.svma, (avmas[own_idx] - bias) as u64);
    }

    #[test]
    fn address_after_a_function_belongs_to_it() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let symbol = file
            .symbols()
            .find(|symbol| {
                let is_function = symbol.kind() == object::SymbolKind::Text;
                is_function && symbol.size() > 0 && symbol.name() == Ok("main")
            })
            .unwrap();
        let own = symbolized as *const () as usize;
        let (_, modules) = symbolized(&[own]);
        let module = modules.locate(own, crate::modules::generation()).unwrap();
        let bias = modules.modules()[module.module_idx].bias;
        let start = bias + symbol.address() as usize;
        let end = start + symbol.size() as usize;
        let (resolved, _) = symbolized(&[start + 1, end]);
        for resolved in resolved {
            let frame = resolved.frames.last().unwrap();
            std::assert_eq!(frame.function.as_deref(), Some("main"));
        }
    }

    #[test]
    fn addresses_in_no_module_have_an_entry_without_names() {
        let (resolved, _) = symbolized(&[0, 1, usize::MAX]);
        for resolved in resolved {
            std::assert_eq!(resolved.module, None);
            std::assert_eq!(resolved.frames, []);
        }
    }
}
