//! mod-alloc: counters and call sites, stacks of 8 frames by frame pointers, one DHAT file without names.
//!
//! It has no lifetimes, no peaks of call sites and no frees of them. Its table is sized by `MOD_ALLOC_BUCKETS`.

use crate::Depth;
use mod_alloc::dhat_compat as dhat;
use std::path::Path;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

pub struct Session {
    profiler: dhat::Profiler,
}

impl Session {
    pub fn start(report_file: &Path, _depth: Depth) -> Self {
        Self {
            profiler: dhat::Profiler::builder().file_name(report_file).build(),
        }
    }

    /// Writes the report.
    pub fn finish(self) {
        drop(self.profiler);
    }

    /// Its counters run from the start of the process, not of the session: they do not tell.
    pub fn total_blocks(&self) -> Option<u64> {
        None
    }
}

pub fn blocks_counted() -> Option<u64> {
    None
}
