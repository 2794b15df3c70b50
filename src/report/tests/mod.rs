//! Reports of hand-made sessions.

mod file;
mod trimming;

use super::*;
use crate::modules::ModuleAddress;
use crate::recorder::{Anomalies, ProgramPoint, Totals};
use crate::symbolize::{Resolved, SourceFrame};
use std::rc::Rc;

fn source(function: &str, file: &str, line: u32, column: u32) -> SourceFrame {
    SourceFrame {
        function: Some(function.into()),
        file: (!file.is_empty()).then(|| Rc::new(PathBuf::from(file))),
        line: (line > 0).then_some(line),
        column: (column > 0).then_some(column),
    }
}

fn symbols(entries: &[(usize, &[&str])]) -> Symbols {
    let mut symbols = Symbols::default();
    for &(avma, functions) in entries {
        let frames = functions
            .iter()
            .map(|function| source(function, "src/x.rs", 1, 2))
            .collect();
        let address = CodeAddress {
            avma,
            generation: 0,
        };
        let resolved = Resolved {
            module: None,
            frames,
        };
        symbols.by_address.insert(address, resolved);
    }
    symbols
}

fn point(frames: &[usize], shares_builder: bool) -> ProgramPoint {
    ProgramPoint {
        frames: frames.into(),
        tag: StackTag {
            generation: 0,
            shares_builder,
        }
        .to_raw(),
        total_blocks: 2,
        total_bytes: 30,
        max_bytes: 20,
        max_blocks: 1,
        at_gmax_bytes: 10,
        at_gmax_blocks: 1,
        at_end_bytes: 0,
        at_end_blocks: 0,
        lifetimes_ns: 5_999,
    }
}

fn snapshot(mode: Mode, points: Vec<ProgramPoint>) -> Snapshot {
    Snapshot {
        mode,
        totals: Totals::default(),
        end_ns: 2_000_999,
        gmax_ns: 1_500_000,
        points,
        anomalies: Anomalies::default(),
    }
}
