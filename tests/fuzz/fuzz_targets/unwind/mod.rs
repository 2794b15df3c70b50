//! The part of the `unwind` room that parses tables.

#[path = "../../../../src/unwind/arch/mod.rs"]
pub(crate) mod arch;
#[path = "../../../../src/unwind/cfi.rs"]
mod cfi;
#[path = "../../../../src/unwind/row.rs"]
mod row;
#[path = "../../../../src/unwind/rule.rs"]
mod rule;
#[path = "../../../../src/unwind/rule_cache.rs"]
mod rule_cache;

use crate::modules::UnwindTables;

/// Parses the entry of `address` and packs its rule.
pub(crate) fn parse(tables: &UnwindTables<'_>, address: usize) {
    let _rule = rule_cache::pack(cfi::rule_in(tables, address));
}
