//! Which part of a stack is shown: not the allocator's machinery at the top, not what lies below `main` at the bottom.

use super::frames::Level;
use crate::recorder::Mode;
use std::collections::HashMap;
use std::ops::Range;

/// The name that ad hoc stacks begin with, as symbols spell it.
const AD_HOC_EVENTS: [&str; 2] = ["dhat::ad_hoc::ad_hoc_event", "dhat::ad_hoc_event"];

/// How names of this crate's functions begin that can stand in the first physical frame of a heap stack.
const OWN_PREFIXES: [&str; 8] = [
    "<dhat::Alloc as ",
    "<dhat::AllocOver<",
    "<dhat::alloc::Alloc as ",
    "<dhat::alloc::AllocOver<",
    "dhat::alloc::",
    "dhat::hook::",
    "dhat::unwind::",
    "<dhat::unwind::",
];

/// How names in the standard library's `alloc::alloc` begin, in the v0 and the legacy mangling.
const ALLOCATOR_PREFIXES: [&str; 3] = [
    "alloc::alloc::",
    "<alloc::alloc::Global>::",
    "<alloc::alloc::Global as core::alloc::",
];

/// The functions that the compiler makes between `alloc::alloc` and the global allocator.
const SHIMS: [&str; 12] = [
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rust_dealloc",
    "__rg_alloc",
    "__rg_alloc_zeroed",
    "__rg_realloc",
    "__rg_dealloc",
    "__rdl_alloc",
    "__rdl_alloc_zeroed",
    "__rdl_realloc",
    "__rdl_dealloc",
];

/// What a function does, as far as trimming goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The standard library's allocation functions. The outermost one stays.
    Allocator,
    /// The compiler's functions before the global allocator. None stays.
    Shim,
    /// Everything else.
    Program,
}

fn role(level: &Level<'_>) -> Role {
    let Some(name) = level.function() else {
        return Role::Program;
    };
    let is_allocator = ALLOCATOR_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix));
    if is_allocator {
        Role::Allocator
    } else if SHIMS.contains(&name.strip_prefix("__rustc::").unwrap_or(name)) {
        Role::Shim
    } else {
        Role::Program
    }
}

fn is_own(level: &Level<'_>) -> bool {
    let name = level.function().unwrap_or_default();
    OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// What all stacks of a session are trimmed by.
pub(super) struct Trimmer<'a> {
    mode: Mode,
    builder_frames: &'a [usize],
    /// Where each address stands in the builder's stack; `None` when it stands there more than once.
    places: HashMap<usize, Option<usize>>,
}

impl<'a> Trimmer<'a> {
    /// Takes the builder's whole stack, innermost first.
    pub(super) fn new(mode: Mode, builder_frames: &'a [usize]) -> Self {
        let mut places = HashMap::new();
        for (place, &avma) in builder_frames.iter().enumerate() {
            places
                .entry(avma)
                .and_modify(|known| *known = None)
                .or_insert(Some(place));
        }
        Self {
            mode,
            builder_frames,
            places,
        }
    }

    /// The levels of a stack that are shown; never none when there are any.
    pub(super) fn shown(
        &self,
        frames: &[usize],
        shares_builder: bool,
        levels: &[Level<'_>],
    ) -> Range<usize> {
        let start = match self.mode {
            Mode::Heap => heap_start(levels),
            Mode::AdHoc => ad_hoc_start(levels),
        };
        let n_shared = if shares_builder {
            self.n_shared(frames)
        } else {
            0
        };
        let n_kept = frames.len() - n_shared;
        let end = levels.partition_point(|level| level.frame_idx < n_kept);
        // At least one level stays: the first behind the allocator's, or the last.
        let start = start.min(levels.len().saturating_sub(1));
        start..end.max((start + 1).min(levels.len()))
    }

    /// How many of the outermost physical frames a stack shares with the builder.
    fn n_shared(&self, frames: &[usize]) -> usize {
        let Some(last) = frames.last() else {
            return 0;
        };
        let n_builder = if self.builder_frames.last() == Some(last) {
            self.builder_frames.len()
        } else if let Some(Some(place)) = self.places.get(last) {
            // Cut short. In a recursion, an address does not tell at which depth the stack was cut.
            let is_recursive = frames.iter().filter(|avma| *avma == last).count() > 1;
            if is_recursive { 0 } else { place + 1 }
        } else {
            0
        };
        let builder = self.builder_frames[..n_builder].iter().rev();
        let pairs = frames.iter().rev().zip(builder);
        pairs.take_while(|(avma, other)| avma == other).count()
    }
}

/// The first level shown of a heap stack. Its first physical frame is this crate's allocator method, whatever its name; only
/// functions that the method was inlined into belong to the program.
fn heap_start(levels: &[Level<'_>]) -> usize {
    let n_first = n_in_first_frame(levels);
    let last_own = levels[..n_first].iter().rposition(is_own);
    let own_end = last_own.map_or(n_first, |own| own + 1);
    let behind = &levels[own_end..];
    let n_run = behind
        .iter()
        .take_while(|level| role(level) != Role::Program)
        .count();
    let outermost = behind[..n_run]
        .iter()
        .rposition(|level| role(level) == Role::Allocator);
    own_end + outermost.unwrap_or(n_run)
}

/// The first level shown of an ad hoc stack: the event function, without what is inlined into it.
fn ad_hoc_start(levels: &[Level<'_>]) -> usize {
    let is_event = |level: &Level<'_>| {
        level
            .function()
            .is_some_and(|name| AD_HOC_EVENTS.contains(&name))
    };
    let first = &levels[..n_in_first_frame(levels)];
    first.iter().rposition(is_event).unwrap_or(0)
}

fn n_in_first_frame(levels: &[Level<'_>]) -> usize {
    levels.partition_point(|level| level.frame_idx == 0)
}
