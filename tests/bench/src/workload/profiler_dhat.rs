//! This crate and the `dhat` crate, which are started in the same way.

use crate::Depth;
#[cfg(feature = "milliner")]
use milliner as dhat;
use std::path::Path;
#[cfg(feature = "upstream")]
use upstream as dhat;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

pub struct Session {
    profiler: dhat::Profiler,
}

impl Session {
    pub fn start(report_file: &Path, depth: Depth) -> Self {
        let max_frames = match depth {
            Depth::Ten => Some(10),
            Depth::All => None,
        };
        Self {
            profiler: dhat::Profiler::builder()
                .file_name(report_file)
                .trim_backtraces(max_frames)
                .build(),
        }
    }

    /// Writes the report.
    pub fn finish(self) {
        drop(self.profiler);
    }

    pub fn total_blocks(&self) -> Option<u64> {
        Some(dhat::HeapStats::get().total_blocks)
    }
}

pub fn blocks_counted() -> Option<u64> {
    None
}
