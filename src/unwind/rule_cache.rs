//! The rules of addresses seen so far: process-wide, lock-free, in zero pages of the program's own image.
//!
//! An entry is one word: the tag of the address and its packed rule, so it cannot be torn. A set is one cache line. The set
//! index and the tag together are a bijection of the address: an entry is either that address's or another's.

use super::rule::{FrameRule, PackedRule, UnwindRule};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The answer of [`get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    Hit(PackedRule),
    Miss,
}

const N_WAYS: usize = 8;
const SET_BITS: u32 = 13;
const N_SETS: usize = 1 << SET_BITS;
/// User space ends below 2^47; addresses from 2^48 up are not cached.
const ADDRESS_BITS: u32 = 48;
const _: () = std::assert!(ADDRESS_BITS - SET_BITS + PackedRule::BITS <= 64);

#[repr(align(64))]
struct Set([AtomicU64; N_WAYS]);

static SETS: [Set; N_SETS] = [const { Set([const { AtomicU64::new(0) }; N_WAYS]) }; N_SETS];
/// The wide rules, each once; 0 is free. Never emptied: a rule means the same whatever address it is of.
static WIDE_RULES: [AtomicU64; PackedRule::N_WIDE] =
    [const { AtomicU64::new(0) }; PackedRule::N_WIDE];
/// Which way of a full set goes next.
static NEXT_WAY: AtomicU32 = AtomicU32::new(0);

/// The rule of `address`, if it is known. Hook-safe.
#[inline]
pub(super) fn get(address: usize) -> Cached {
    let (set, tag) = place(address);
    for way in &set.0 {
        // Relaxed: the word is the whole entry.
        let entry = way.load(Ordering::Relaxed);
        if entry >> PackedRule::BITS == tag {
            let raw = entry as u32 & ((1 << PackedRule::BITS) - 1);
            if raw != 0 {
                return Cached::Hit(PackedRule::from_raw(raw));
            }
        }
    }
    Cached::Miss
}

/// The wide rule that a packed rule names. Hook-safe.
pub(super) fn wide(idx: usize) -> FrameRule {
    // Relaxed: the word is the whole rule, and a packed rule that names it was made after it was stored; on the rare
    // chance that the store is not seen yet, the zero word is a rule whose CFA does not grow, so that the walk ends.
    FrameRule::from_wide(WIDE_RULES[idx % PackedRule::N_WIDE].load(Ordering::Relaxed))
}

/// The packed form of `rule`; [`UnwindRule::Unsupported`]'s when there is no room for it. Hook-safe.
pub(super) fn pack(rule: UnwindRule) -> PackedRule {
    if let Some(packed) = PackedRule::narrow(rule) {
        return packed;
    }
    let idx = match rule {
        UnwindRule::Frame(frame) => frame.to_wide().and_then(wide_index),
        _ => None,
    };
    idx.map_or(PackedRule::UNSUPPORTED, PackedRule::wide)
}

/// Keeps the rule of `address`, in place of another one when its set is full. Hook-safe.
pub(super) fn insert(address: usize, rule: PackedRule) {
    if address >> ADDRESS_BITS != 0 {
        return;
    }
    let (set, tag) = place(address);
    let free = set.0.iter().find(|way| way.load(Ordering::Relaxed) == 0);
    let way = free.unwrap_or_else(|| {
        let way = NEXT_WAY.fetch_add(1, Ordering::Relaxed);
        &set.0[way as usize % N_WAYS]
    });
    let entry = tag << PackedRule::BITS | u64::from(rule.to_raw());
    way.store(entry, Ordering::Relaxed);
}

/// Forgets all addresses. Hook-safe.
pub(super) fn clear() {
    for way in SETS.iter().flat_map(|set| &set.0) {
        // Pages that were never written stay the shared zero page.
        if way.load(Ordering::Relaxed) != 0 {
            way.store(0, Ordering::Relaxed);
        }
    }
}

/// The set of an address and its tag there.
#[inline]
fn place(address: usize) -> (&'static Set, u64) {
    let address = address as u64;
    // A xor with a right shift of itself can be undone, so this is a bijection.
    let mixed = address ^ address >> SET_BITS;
    let set = &SETS[mixed as usize % N_SETS];
    (set, mixed >> SET_BITS)
}

/// The index of a wide rule, which is added when it is new; `None` when the table is full.
fn wide_index(word: u64) -> Option<usize> {
    let start = (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize;
    for probe in 0..PackedRule::N_WIDE {
        let idx = (start + probe) % PackedRule::N_WIDE;
        // Relaxed: each word stands for itself.
        match WIDE_RULES[idx].compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(idx),
            Err(known) if known == word => return Some(idx),
            Err(_) => {}
        }
    }
    None
}
