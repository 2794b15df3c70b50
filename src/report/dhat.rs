//! The file format: field names and their order. Source: Valgrind dhat/dh_main.c, file format comment, version 2.

use serde::Serialize;
use std::io::{self, Write};

/// The whole file. Fields that are `None` are left out.
#[derive(Debug, Serialize)]
pub(super) struct DhatFile {
    #[serde(rename = "dhatFileVersion")]
    pub(super) version: u32,
    pub(super) mode: &'static str,
    pub(super) verb: &'static str,
    /// Whether block lifetimes, maxima and ends are recorded.
    pub(super) bklt: bool,
    /// Whether accesses to blocks are recorded.
    pub(super) bkacc: bool,
    /// What a byte is called, what bytes are called, what blocks are called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bu: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bsu: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bksu: Option<&'static str>,
    /// The unit of times, and that of a million of them.
    pub(super) tu: &'static str,
    #[serde(rename = "Mtu")]
    pub(super) mega_tu: &'static str,
    /// Average lifetimes up to this count as short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tuth: Option<u32>,
    pub(super) cmd: String,
    pub(super) pid: u32,
    /// The time of t-gmax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tg: Option<u64>,
    /// The time of the end.
    pub(super) te: u64,
    pub(super) pps: Vec<PpEntry>,
    /// The frame table; entry 0 is `[root]`.
    pub(super) ftbl: Vec<String>,
    /// Readers of the format ignore fields that they do not know.
    pub(super) modules: Vec<ModuleEntry>,
}

/// A program point in the file.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct PpEntry {
    /// Total bytes and blocks.
    pub(super) tb: u64,
    pub(super) tbk: u64,
    #[serde(flatten)]
    pub(super) heap: Option<HeapEntry>,
    /// Indices into the frame table, innermost first.
    pub(super) fs: Box<[u32]>,
}

/// What a program point has in heap mode only.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct HeapEntry {
    /// Total lifetimes of all blocks.
    pub(super) tl: u64,
    /// Bytes and blocks at the point's own maximum.
    pub(super) mb: u64,
    pub(super) mbk: u64,
    /// Bytes and blocks at t-gmax.
    pub(super) gb: u64,
    pub(super) gbk: u64,
    /// Bytes and blocks at the end.
    pub(super) eb: u64,
    pub(super) ebk: u64,
}

/// A module that a frame of the table lies in. Addresses are hex strings, because JSON numbers lose high bits in many readers.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ModuleEntry {
    pub(super) path: String,
    pub(super) build_id: Option<String>,
    /// The run-time addresses from `start` to before `end` belong to the module.
    pub(super) start: String,
    pub(super) end: String,
    /// Run-time address minus the address as the module's file states it.
    pub(super) bias: String,
}

impl DhatFile {
    /// Writes the file as tools get it: one element a line, no indent.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"");
        let mut serializer = serde_json::Serializer::with_formatter(out, formatter);
        self.serialize(&mut serializer).map_err(io::Error::from)
    }

    /// The file's content as people read it: indented.
    pub(super) fn to_indented(&self) -> String {
        // Fails for maps with keys that are not strings only; there are none.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
