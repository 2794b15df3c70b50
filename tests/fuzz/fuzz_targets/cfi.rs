//! The parser of unwind tables, fed with bytes: it must give a rule for whatever they hold, with no panic and in bounded
//! time. Run with `cargo fuzz run cfi` in `tests/fuzz`.
//!
//! The sources are compiled into this crate, so that nothing has to be public for it.

#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../../src/modules/mod.rs"]
mod modules;
#[path = "../../../src/sys/mod.rs"]
mod sys;

mod unwind;

use libfuzzer_sys::fuzz_target;

const SEGMENT_AVMA: usize = 0x10_0000;
const HEADER_AVMA: usize = 0x20_0000;
const CODE: i32 = 0x30_0000;

// Input: how the header comes about, an offset, then the segment. Most headers are made right, with one row that points to
// the offset, so that the search is passed; the others are the segment's own bytes.
fuzz_target!(|data: &[u8]| {
    let Some(([kind, low, high, code], segment)) = data.split_first_chunk::<4>() else {
        return;
    };
    let offset = i32::from(u16::from_le_bytes([*low, *high]));
    let mut header = vec![1, 0x1b, 0x03, 0x3b];
    header.extend((SEGMENT_AVMA as i32 - HEADER_AVMA as i32 - 4).to_le_bytes());
    header.extend(1_u32.to_le_bytes());
    header.extend((CODE - HEADER_AVMA as i32).to_le_bytes());
    header.extend((SEGMENT_AVMA as i32 + offset - HEADER_AVMA as i32).to_le_bytes());
    let tables = modules::UnwindTables {
        header: if *kind == 0 { segment } else { &header },
        header_avma: HEADER_AVMA,
        segment,
        segment_avma: SEGMENT_AVMA,
    };
    unwind::parse(&tables, CODE as usize + usize::from(*code));
});
