//! Names from symbol tables. A symbol names an address only inside its own size.

use object::{Object, ObjectSymbol, SymbolFlags, SymbolKind, elf};
use std::cmp::Reverse;

/// A symbol that covers at least one of the addresses asked for, in the order of preference: the one that begins last,
/// then a function before a label, then the name users know (`write` before `__write`), then any fixed order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'d> {
    start: Reverse<u64>,
    is_label: bool,
    n_underscores: usize,
    is_local: bool,
    name: &'d [u8],
    /// The first covered address and the first beyond, as indices.
    first_idx: usize,
    end_idx: usize,
}

/// Finds the symbol of each address. `probes` are sorted; the names come in the same order. Time is about linear in symbols
/// plus addresses, whatever overlaps.
pub(super) fn find<'d>(file: &object::File<'d>, probes: &[u64]) -> Vec<Option<&'d [u8]>> {
    let mut candidates: Vec<Candidate<'d>> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter_map(|symbol| candidate(&symbol, probes))
        .collect();
    candidates.sort_unstable();

    let mut names = vec![None; probes.len()];
    // For each address the next one without a name, itself if it has none; paths are halved as they are walked.
    let mut next_free: Vec<usize> = (0..=probes.len()).collect();
    for candidate in candidates {
        let mut idx = free_from(&mut next_free, candidate.first_idx);
        while idx < candidate.end_idx {
            names[idx] = Some(candidate.name);
            next_free[idx] = idx + 1;
            idx = free_from(&mut next_free, idx + 1);
        }
    }
    names
}

fn free_from(next_free: &mut [usize], mut idx: usize) -> usize {
    while next_free[idx] != idx {
        next_free[idx] = next_free[next_free[idx]];
        idx = next_free[idx];
    }
    idx
}

fn candidate<'d, S: ObjectSymbol<'d>>(symbol: &S, probes: &[u64]) -> Option<Candidate<'d>> {
    if symbol.size() == 0 || symbol.is_undefined() {
        return None;
    }
    let start = symbol.address();
    let end = start.checked_add(symbol.size())?;
    let first_idx = probes.partition_point(|&probe| probe < start);
    if probes.get(first_idx).is_none_or(|&probe| probe >= end) {
        return None;
    }
    let is_label = match symbol.kind() {
        SymbolKind::Text => false,
        // Hand-written assembly often leaves the type out.
        SymbolKind::Unknown if is_untyped(symbol.flags()) => true,
        _ => return None,
    };
    let name = unversioned(symbol.name_bytes().ok()?);
    if name.is_empty() {
        return None;
    }
    Some(Candidate {
        start: Reverse(start),
        is_label,
        n_underscores: name.iter().take_while(|&&byte| byte == b'_').count(),
        is_local: symbol.is_local(),
        name,
        first_idx,
        end_idx: probes.partition_point(|&probe| probe < end),
    })
}

fn is_untyped<S, F>(flags: SymbolFlags<S, F>) -> bool {
    match flags {
        SymbolFlags::Elf { st_info, .. } => st_info & 0xf == elf::STT_NOTYPE,
        _ => false,
    }
}

/// Cuts a symbol version off (`memcpy@@GLIBC_2.14`), which some linkers write into the name.
fn unversioned(name: &[u8]) -> &[u8] {
    match name.iter().position(|&byte| byte == b'@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}
