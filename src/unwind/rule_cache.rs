//! The rules of addresses seen so far: process-wide, lock-free, in zero pages of the program's own image.
//!
//! An entry is one word: the tag of the address and its packed rule, so it cannot be torn. A set is one cache line. The set
//! index and the tag together make up the address: an entry is either that address's or another's.

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
/// The rule lies above the tag, in the place of the bits that select the set and of the zeros above an address.
const RULE_SHIFT: u32 = ADDRESS_BITS - SET_BITS;
const RULE_MASK: u64 = (1 << PackedRule::BITS) - 1;
const _: () = std::assert!(RULE_SHIFT + PackedRule::BITS == 64);

#[repr(align(64))]
struct Set([AtomicU64; N_WAYS]);

static SETS: [Set; N_SETS] = [const { Set([const { AtomicU64::new(0) }; N_WAYS]) }; N_SETS];
/// The wide rules, each once; 0 is free. Never emptied: a rule means the same whatever address it is of.
static WIDE_RULES: [AtomicU64; PackedRule::N_WIDE] =
    [const { AtomicU64::new(0) }; PackedRule::N_WIDE];
/// Which way of a full set goes next. Relaxed: any does.
static NEXT_WAY: AtomicU32 = AtomicU32::new(0);

/// The rule of `address`, if it is known. Hook-safe.
#[inline]
pub(super) fn get(address: usize) -> Cached {
    let Some((set, tag)) = place(address) else {
        return Cached::Miss;
    };
    for way in &set.0 {
        // Relaxed: the word is the whole entry.
        let entry = way.load(Ordering::Relaxed);
        // With the right tag only the rule's bits remain and become the lowest; a rule is never 0, but an empty way is.
        let rule = (entry ^ tag).rotate_right(RULE_SHIFT);
        if rule.wrapping_sub(1) < RULE_MASK {
            return Cached::Hit(PackedRule::from_raw(rule as u32));
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
    let Some((set, tag)) = place(address) else {
        return;
    };
    let entry = tag | u64::from(rule.to_raw()) << RULE_SHIFT;
    for way in &set.0 {
        // Relaxed: the word is the whole entry. The exchange keeps two threads from taking the same free way.
        match way.compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(known) if known == entry => return,
            Err(_) => {}
        }
    }
    let way = NEXT_WAY.fetch_add(1, Ordering::Relaxed) as usize;
    set.0[way % N_WAYS].store(entry, Ordering::Relaxed);
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

/// The set of an address, and its tag there in the bits below the rule; `None` for an address that is not cached.
#[inline]
fn place(address: usize) -> Option<(&'static Set, u64)> {
    // Most look-ups come from return addresses, which are one more: this spares the way from frame to frame a step.
    let key = address.wrapping_add(1) as u64;
    if key >> ADDRESS_BITS != 0 {
        return None;
    }
    // The bits above the lowest make the tag. They also spread addresses that lie at equal distances, as the call sites of
    // functions of one size do; the tag says how, so that set and tag still make up the address.
    let tag = key >> SET_BITS;
    Some((&SETS[(key ^ tag) as usize % N_SETS], tag))
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

#[cfg(test)]
mod tests {
    use super::super::rule::{Base, Cfa, Place, PlaceBase, SavedFp};
    use super::super::walker_tests::serial;
    use super::*;

    /// A rule whose CFA offset tells it apart.
    fn rule(n_words: i32) -> PackedRule {
        pack(UnwindRule::Frame(FrameRule {
            cfa: Cfa {
                base: Base::Sp,
                offset: n_words * 8,
                deref: None,
            },
            return_address: Place {
                base: PlaceBase::Cfa,
                offset: -8,
            },
            saved_fp: SavedFp::Same,
            interrupts: false,
        }))
    }

    /// One of the addresses that belong to a set, in a part of the kernel's half that no other test uses.
    fn address_in_set(set_idx: usize, nth: usize) -> usize {
        let tag = (0xf800_0000_0000 >> SET_BITS) + nth;
        let key = (tag << SET_BITS) | ((set_idx ^ tag) % N_SETS);
        key - 1
    }

    #[test]
    fn addresses_that_share_a_set_are_told_apart() {
        let _serial = serial();
        // Kernel-half addresses below 2^48: no other test's code or data is there.
        let base = 0xffff_0000_0000_usize & ((1 << 48) - 1);
        let neighbors = (0..3).map(|low| base + low);
        let shared: Vec<usize> = neighbors
            .chain((0..6).map(|nth| address_in_set(5, nth)))
            .collect();
        for (idx, &address) in shared.iter().enumerate() {
            std::assert_eq!(get(address), Cached::Miss);
            insert(address, rule(idx as i32 + 1));
        }
        for (idx, &address) in shared.iter().enumerate() {
            std::assert_eq!(get(address), Cached::Hit(rule(idx as i32 + 1)));
            std::assert_eq!(get(address | 1 << 48), Cached::Miss);
        }
        std::assert_eq!(get(base + (2 << 20)), Cached::Miss);
        for neighbor in (0..usize::BITS).map(|bit| shared[0] ^ 1 << bit) {
            if !shared.contains(&neighbor) {
                std::assert_eq!(get(neighbor), Cached::Miss, "{neighbor:x}");
            }
        }
    }

    #[test]
    fn a_full_set_takes_new_addresses_and_still_answers_rightly() {
        let _serial = serial();
        let addresses = || (0..40).map(|idx| (idx as i32 + 1, address_in_set(77, idx)));
        addresses().for_each(|(n_words, address)| insert(address, rule(n_words)));
        let hits = addresses().filter(|&(n_words, address)| match get(address) {
            Cached::Hit(found) => {
                std::assert_eq!(found, rule(n_words));
                true
            }
            Cached::Miss => false,
        });
        std::assert_eq!(hits.count(), N_WAYS);
        std::assert_ne!(get(address_in_set(77, 39)), Cached::Miss);
    }

    #[test]
    fn wide_rules_are_kept_once() {
        let wide_rule = FrameRule {
            cfa: Cfa {
                base: Base::Fp,
                offset: -80,
                deref: Some(16),
            },
            return_address: Place {
                base: PlaceBase::Fp,
                offset: -88,
            },
            saved_fp: SavedFp::Lost,
            interrupts: true,
        };
        let packed = pack(UnwindRule::Frame(wide_rule));
        std::assert_eq!(pack(UnwindRule::Frame(wide_rule)), packed);
        let super::super::rule::Unpacked::Wide(idx) = packed.unpack() else {
            std::panic!("not wide")
        };
        std::assert_eq!(wide(idx), wide_rule);
    }
}
