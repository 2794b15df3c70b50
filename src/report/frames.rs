//! The frame table: the text of each shown frame, once.

use super::text::{printable, short_path};
use crate::modules::{Module, ModuleAddress};
use crate::symbolize::{CodeAddress, SourceFrame, Symbols};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// The entry that the viewer's tree starts from; no stack contains it.
const ROOT: &str = "[root]";
/// The frame of a stack that has none.
const PLACEHOLDER: &str = "0x0: ??? (???:0:0)";
/// What stands for a name or a path that is not known.
const UNKNOWN: &str = "???";

/// Items of this crate that users know by their public path, and how symbols spell them.
const PUBLIC_PATHS: [(&str, &str); 3] = [
    ("dhat::ad_hoc::ad_hoc_event", "dhat::ad_hoc_event"),
    ("<dhat::alloc::AllocOver<", "<dhat::AllocOver<"),
    ("<dhat::alloc::Alloc ", "<dhat::Alloc "),
];

/// One function of a stack: a physical frame's own or one inlined into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level<'a> {
    /// Counts the stack's physical frames, innermost first.
    pub(super) frame_idx: usize,
    /// Counts the functions at one address, innermost first.
    level_idx: usize,
    /// Counts the addresses that the table knows.
    known_idx: usize,
    /// `None` for an address without a symbol.
    source: Option<&'a SourceFrame>,
}

impl<'a> Level<'a> {
    /// The function's name, when known.
    pub(super) fn function(&self) -> Option<&'a str> {
        self.source.and_then(|source| source.function.as_deref())
    }
}

/// How many frames of the table have names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    pub(super) n_frames: u64,
    /// Those without the name of a function.
    pub(super) n_no_symbol: u64,
    /// Those of them that show a module and an offset instead.
    pub(super) n_module_only: u64,
}

/// An address that stacks contain.
struct KnownAddress<'a> {
    avma: usize,
    module: Option<ModuleAddress>,
    sources: &'a [SourceFrame],
    /// The index of each level's text, of which there is at least one; 0 while the table does not have it.
    text_idxs: Box<[u32]>,
}

/// The frame table in the making.
pub(super) struct FrameTable<'a> {
    symbols: &'a Symbols,
    modules: &'a [Module],
    texts: Vec<String>,
    known: Vec<KnownAddress<'a>>,
    by_address: HashMap<CodeAddress, usize>,
    /// Entries by the IP in their text: equal texts have equal IPs.
    by_ip: HashMap<usize, Vec<u32>>,
    /// The modules that frames of the table lie in.
    shown_modules: BTreeSet<usize>,
    counts: FrameCounts,
}

impl<'a> FrameTable<'a> {
    /// Makes a table that holds `[root]` only.
    pub(super) fn new(symbols: &'a Symbols, modules: &'a [Module]) -> Self {
        Self {
            symbols,
            modules,
            texts: vec![ROOT.to_owned()],
            known: Vec::new(),
            by_address: HashMap::new(),
            by_ip: HashMap::new(),
            shown_modules: BTreeSet::new(),
            counts: FrameCounts::default(),
        }
    }

    /// Replaces `levels` by those of a stack, innermost first. Each address has at least one.
    pub(super) fn expand(
        &mut self,
        frames: &[usize],
        generation: u32,
        levels: &mut Vec<Level<'a>>,
    ) {
        levels.clear();
        for (frame_idx, &avma) in frames.iter().enumerate() {
            let known_idx = self.know(CodeAddress { avma, generation });
            let known = &self.known[known_idx];
            levels.extend((0..known.text_idxs.len()).map(|level_idx| Level {
                frame_idx,
                level_idx,
                known_idx,
                source: known.sources.get(level_idx),
            }));
        }
    }

    /// The index of a level's text, which is added at its first use.
    pub(super) fn index(&mut self, level: &Level<'a>) -> u32 {
        let known = &self.known[level.known_idx];
        let text_idx = known.text_idxs[level.level_idx];
        if text_idx != 0 {
            return text_idx;
        }
        let (avma, module) = (known.avma, known.module);
        let text = self.text(level, known);
        let (text_idx, is_new) = self.add(avma, text);
        if is_new {
            let no_symbol = level.function().is_none();
            self.counts.n_frames += 1;
            self.counts.n_no_symbol += u64::from(no_symbol);
            self.counts.n_module_only += u64::from(no_symbol && module.is_some());
        }
        self.shown_modules
            .extend(module.map(|module| module.module_idx));
        self.known[level.known_idx].text_idxs[level.level_idx] = text_idx;
        text_idx
    }

    /// The index of the frame that stands in for a stack without frames.
    pub(super) fn placeholder(&mut self) -> u32 {
        self.add(0, PLACEHOLDER.to_owned()).0
    }

    /// The texts in the order of their indices, the modules' indices in ascending order, and the counts.
    pub(super) fn finish(self) -> (Vec<String>, BTreeSet<usize>, FrameCounts) {
        (self.texts, self.shown_modules, self.counts)
    }

    /// The index of an address in `known`, which gets an entry at its first use.
    fn know(&mut self, address: CodeAddress) -> usize {
        let next_idx = self.known.len();
        let known_idx = *self.by_address.entry(address).or_insert(next_idx);
        if known_idx == next_idx {
            let resolved = self.symbols.by_address.get(&address);
            let sources = resolved.map_or(&[][..], |resolved| &resolved.frames[..]);
            self.known.push(KnownAddress {
                avma: address.avma,
                module: resolved.and_then(|resolved| resolved.module),
                sources,
                text_idxs: vec![0; sources.len().max(1)].into(),
            });
        }
        known_idx
    }

    /// The index of `text`, and whether the table did not have it before.
    fn add(&mut self, ip: usize, text: String) -> (u32, bool) {
        let same_ip = self.by_ip.entry(ip).or_default();
        let known = same_ip
            .iter()
            .find(|idx| self.texts[**idx as usize] == text);
        if let Some(&known) = known {
            return (known, false);
        }
        // Each text takes far more than a byte, so memory ends before 2^32 of them.
        let idx = self.texts.len() as u32;
        same_ip.push(idx);
        self.texts.push(text);
        (idx, true)
    }

    fn text(&self, level: &Level<'_>, known: &KnownAddress<'_>) -> String {
        let mut text = format!("0x{:x}: ", known.avma);
        match (level.function(), known.module) {
            (Some(name), _) => push_name(&mut text, name),
            (None, Some(module)) => self.push_module_offset(&mut text, module),
            (None, None) => text.push_str(UNKNOWN),
        }
        let file = level.source.and_then(|source| source.file.as_deref());
        let path = file.map_or(UNKNOWN.to_owned(), |file| short_path(file));
        let line = level.source.and_then(|source| source.line).unwrap_or(0);
        let column = level.source.and_then(|source| source.column).unwrap_or(0);
        // Writing to a string cannot fail.
        let _ = write!(text, " ({path}:{line}:{column})");
        text
    }

    fn push_module_offset(&self, text: &mut String, address: ModuleAddress) {
        let module = self.modules.get(address.module_idx);
        let name = module.and_then(|module| module.path.file_name());
        let name = name.map_or(UNKNOWN.into(), |name| name.to_string_lossy());
        let _ = write!(text, "{}+0x{:x}", printable(&name), address.svma);
    }
}

fn push_name(text: &mut String, name: &str) {
    let public = PUBLIC_PATHS
        .iter()
        .find_map(|(spelled, public)| Some((public, name.strip_prefix(spelled)?)));
    match public {
        Some((public, rest)) => {
            text.push_str(public);
            text.push_str(&printable(rest));
        }
        None => text.push_str(&printable(name)),
    }
}
