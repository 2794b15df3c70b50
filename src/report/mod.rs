//! From a snapshot to the file and the summary. Report path only, but for [`StackTag`], which is hook-safe.

#![forbid(unsafe_code)]

mod dhat;
mod fold;
mod frames;
mod save;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod trim;

use crate::modules::{self, Module};
use crate::recorder::{Mode, Snapshot};
use crate::symbolize::{self, CodeAddress, Symbols};
use crate::sys;
use crate::unwind::WalkCounts;
use dhat::{DhatFile, ModuleEntry, PpEntry};
use fold::Folds;
use frames::{FrameCounts, FrameTable};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use summary::Notes;
use trim::Trimmer;

/// What a finished session hands over.
pub(crate) struct Session {
    /// What was recorded.
    pub(crate) snapshot: Snapshot,
    /// What the walks of the session could not do.
    pub(crate) walks: WalkCounts,
    /// The builder's own stack, innermost first, whole.
    pub(crate) builder_frames: Vec<usize>,
    /// Whether frames at the top and the bottom of stacks are trimmed.
    pub(crate) trims: bool,
    /// Whether the allocator of this crate was called at all while the session ran.
    pub(crate) allocator_seen: bool,
}

/// Where a report goes.
pub(crate) enum Output {
    /// To a file.
    File(PathBuf),
    /// To a string, indented.
    Memory,
}

/// The tag of an interned stack: the module generation that its addresses belong to, and whether its outermost frames are
/// shared with the builder of the Profiler (same thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackTag {
    /// The module generation, below 2^31.
    pub(crate) generation: u32,
    /// Whether the stack is one of the builder's thread.
    pub(crate) shares_builder: bool,
}

impl StackTag {
    /// The tag as the recorder keeps it.
    pub(crate) fn to_raw(self) -> u32 {
        self.generation << 1 | u32::from(self.shares_builder)
    }

    /// The tag that [`StackTag::to_raw`] gave `raw` for.
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self {
            generation: raw >> 1,
            shares_builder: raw & 1 != 0,
        }
    }
}

/// What a report is made of.
struct Material<'a> {
    snapshot: &'a Snapshot,
    modules: &'a [Module],
    symbols: &'a Symbols,
    builder_frames: &'a [usize],
    trims: bool,
}

/// A report in memory, and what the summary tells about it.
struct Report {
    file: DhatFile,
    frames: FrameCounts,
    n_folded: u64,
}

/// Symbolizes, trims, folds, writes and prints. Returns the JSON for [`Output::Memory`], else an empty string. Write errors
/// are printed, print errors ignored. The caller makes sure that nothing it allocates is recorded and that no lock is held.
pub(crate) fn finish(session: &Session, output: &Output, print_json: bool) -> String {
    let snapshot = &session.snapshot;
    let addresses = addresses(snapshot);
    let modules = modules::covering(addresses.iter().map(|at| (at.call(), at.generation)));
    let symbols = symbolize::symbolize(&addresses, &modules);
    let report = build(&Material {
        snapshot,
        modules: modules.modules(),
        symbols: &symbols,
        builder_frames: &session.builder_frames,
        trims: session.trims,
    });
    sys::write_stderr(summary::totals(snapshot).as_bytes());
    let mut text = String::new();
    let mut memory = String::new();
    match output {
        Output::File(path) => {
            let result = save::save(path, &|out| report.file.write_to(out));
            text += &summary::saved(path, &result);
        }
        Output::Memory => {
            memory = report.file.to_indented();
            text += summary::SAVED_TO_MEMORY;
        }
    }
    if print_json {
        text += &summary::json(&report.file.to_indented());
    }
    let notes = Notes {
        allocator_missing: snapshot.mode == Mode::Heap && !session.allocator_seen,
        debug_info_missing: cfg!(feature = "symbolize")
            && !addresses.is_empty()
            && !symbols.executable_has_debug_info,
        frames: report.frames,
        walks: session.walks,
        anomalies: snapshot.anomalies,
        n_folded: report.n_folded,
    };
    text += &notes.text();
    sys::write_stderr(text.as_bytes());
    memory
}

/// All addresses of all stacks, each once, in ascending order.
fn addresses(snapshot: &Snapshot) -> Vec<CodeAddress> {
    let mut unique = HashSet::new();
    for point in &snapshot.points {
        let generation = StackTag::from_raw(point.tag).generation;
        unique.extend(
            point
                .frames
                .iter()
                .map(|&avma| CodeAddress { avma, generation }),
        );
    }
    let mut addresses: Vec<CodeAddress> = unique.into_iter().collect();
    addresses.sort_unstable();
    addresses
}

fn build(material: &Material<'_>) -> Report {
    let &Material {
        snapshot,
        modules,
        symbols,
        builder_frames,
        trims,
    } = material;
    let trimmer = trims.then(|| Trimmer::new(snapshot.mode, builder_frames));
    let mut table = FrameTable::new(symbols, modules);
    let mut folds = Folds::default();
    let (mut levels, mut shown) = (Vec::new(), Vec::new());
    for point in &snapshot.points {
        let tag = StackTag::from_raw(point.tag);
        table.expand(&point.frames, tag.generation, &mut levels);
        let range = match &trimmer {
            Some(trimmer) => trimmer.shown(&point.frames, tag.shares_builder, &levels),
            None => 0..levels.len(),
        };
        shown.clear();
        shown.extend(levels[range].iter().map(|level| table.index(level)));
        if shown.is_empty() {
            shown.push(table.placeholder());
        }
        folds.add(&shown, point);
    }
    let (pps, n_folded) = folds.finish(snapshot.mode);
    let (ftbl, shown_modules, frames) = table.finish();
    let shown_modules = shown_modules.iter().filter_map(|&idx| modules.get(idx));
    // A module that was loaded again at the same place is listed once.
    let mut entries: Vec<ModuleEntry> = Vec::new();
    for entry in shown_modules.map(module_entry) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    Report {
        file: dhat_file(snapshot, pps, ftbl, entries),
        frames,
        n_folded,
    }
}

fn dhat_file(
    snapshot: &Snapshot,
    pps: Vec<PpEntry>,
    ftbl: Vec<String>,
    modules: Vec<ModuleEntry>,
) -> DhatFile {
    let is_heap = snapshot.mode == Mode::Heap;
    let ad_hoc = |name| (!is_heap).then_some(name);
    // A session with program points lasted, however coarse the clock.
    let at_least_ns = u64::from(!pps.is_empty());
    let gmax_us = micros_at_least_one(snapshot.gmax_ns.into());
    let end_us = micros_at_least_one(snapshot.end_ns.max(at_least_ns).into());
    DhatFile {
        version: 2,
        mode: if is_heap { "rust-heap" } else { "rust-ad-hoc" },
        verb: "Allocated",
        bklt: is_heap,
        bkacc: false,
        bu: ad_hoc("unit"),
        bsu: ad_hoc("units"),
        bksu: ad_hoc("events"),
        tu: "µs",
        mega_tu: "s",
        tuth: is_heap.then_some(10),
        cmd: command(std::env::args_os()),
        pid: std::process::id(),
        tg: is_heap.then_some(gmax_us),
        te: if is_heap { end_us.max(gmax_us) } else { end_us },
        pps,
        ftbl,
        modules,
    }
}

/// The command line, lossy where it is not Unicode.
fn command(args: impl Iterator<Item = OsString>) -> String {
    let words: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    words.join(" ")
}

fn module_entry(module: &Module) -> ModuleEntry {
    let hex = |address: usize| format!("0x{address:x}");
    let build_id = module.build_id.as_ref();
    ModuleEntry {
        path: module.path.to_string_lossy().into_owned(),
        build_id: build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()),
        start: hex(module.range.start),
        end: hex(module.range.end),
        bias: hex(module.bias),
    }
}

/// Whole microseconds; 1 for anything shorter that is not zero.
fn micros_at_least_one(ns: u128) -> u64 {
    let micros = u64::try_from(ns / 1_000).unwrap_or(u64::MAX);
    micros.max(u64::from(ns > 0))
}
