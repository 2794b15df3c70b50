//! Unwind rules: how to get from a frame to its caller, spelled out and packed.
//!
//! Two packed forms exist. The narrow one has [`PackedRule::BITS`] bits and shares a word with the address it belongs to;
//! it says what nearly all compiled code needs: CFA from sp or fp, the return address just below it. Everything else is a
//! wide rule of 64 bits, which a narrow one names by index. Offsets are packed in words of 8 bytes.

/// What the register that a value is relative to may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Sp,
    Fp,
}

/// How to compute the CFA, which is also the caller's stack pointer. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cfa {
    pub(super) base: Base,
    pub(super) offset: i32,
    /// When set, `base + offset` is the address of a word, and the CFA is that word plus this.
    pub(super) deref: Option<i32>,
}

/// What the address of a saved register is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceBase {
    Cfa,
    Sp,
    Fp,
}

/// Where the caller's value of a register is saved. The offset is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: PlaceBase,
    pub(super) offset: i32,
}

/// What became of the caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedFp {
    /// The frame did not change it.
    Same,
    At(Place),
    /// The table does not tell, or in a way that rules do not follow.
    Lost,
}

/// The rule of a frame that has a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRule {
    pub(super) cfa: Cfa,
    pub(super) return_address: Place,
    pub(super) saved_fp: SavedFp,
    /// Whether the caller was interrupted, so that its pc is the next instruction itself and not a return address.
    pub(super) interrupts: bool,
}

/// What is known about unwinding from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnwindRule {
    Frame(FrameRule),
    /// The frame has no caller.
    Outermost,
    /// No table describes the address.
    NoTable,
    /// A table describes the address with more than a rule can say.
    Unsupported,
}

const WORD: i32 = size_of::<usize>() as i32;

const KIND_SP: u32 = 1;
const KIND_FP: u32 = 2;
const KIND_WIDE: u32 = 3;
const KIND_OUTERMOST: u32 = 4;
const KIND_NO_TABLE: u32 = 5;
const KIND_UNSUPPORTED: u32 = 6;

const KIND_BITS: u32 = 3;
const CFA_BITS: u32 = 14;
const FP_BITS: u32 = 12;
const CFA_SHIFT: u32 = KIND_BITS;
const FP_SHIFT: u32 = CFA_SHIFT + CFA_BITS;

/// A rule in its narrow form; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedRule(u32);

/// What a [`PackedRule`] turns out to be.
pub(super) enum Unpacked {
    /// The CFA is a register plus [`PackedRule::cfa_bytes`] and the return address lies just below it.
    Simple,
    /// The rule is the wide one with this index.
    Wide(usize),
    Outermost,
    NoTable,
    Unsupported,
}

impl PackedRule {
    /// How many low bits of the raw form are used.
    pub(super) const BITS: u32 = KIND_BITS + CFA_BITS + FP_BITS;
    /// How many wide rules can be named.
    pub(super) const N_WIDE: usize = 1 << 12;
    /// The narrow form of [`UnwindRule::Unsupported`].
    pub(super) const UNSUPPORTED: Self = Self(KIND_UNSUPPORTED);

    /// The narrow form of `rule`; `None` when it takes a wide rule.
    pub(super) fn narrow(rule: UnwindRule) -> Option<Self> {
        let frame = match rule {
            UnwindRule::Frame(frame) => frame,
            UnwindRule::Outermost => return Some(Self(KIND_OUTERMOST)),
            UnwindRule::NoTable => return Some(Self(KIND_NO_TABLE)),
            UnwindRule::Unsupported => return Some(Self::UNSUPPORTED),
        };
        let below_cfa = Place {
            base: PlaceBase::Cfa,
            offset: -WORD,
        };
        if frame.interrupts || frame.cfa.deref.is_some() || frame.return_address != below_cfa {
            return None;
        }
        let kind = match frame.cfa.base {
            Base::Sp => KIND_SP,
            Base::Fp => KIND_FP,
        };
        let fp_words = match frame.saved_fp {
            SavedFp::Same => 0,
            SavedFp::At(Place {
                base: PlaceBase::Cfa,
                offset,
            }) if offset < 0 => words(offset.checked_neg()?, FP_BITS)?,
            _ => return None,
        };
        let cfa_words = words(frame.cfa.offset, CFA_BITS)?;
        (cfa_words > 0).then_some(Self(kind | cfa_words << CFA_SHIFT | fp_words << FP_SHIFT))
    }

    /// The narrow form that names the wide rule at `idx`, which is below [`PackedRule::N_WIDE`].
    pub(super) fn wide(idx: usize) -> Self {
        Self(KIND_WIDE | (idx as u32) << KIND_BITS)
    }

    /// The raw form: not 0, and no bit above [`PackedRule::BITS`].
    #[inline]
    pub(super) fn to_raw(self) -> u32 {
        self.0
    }

    /// The rule that [`PackedRule::to_raw`] gave `raw` for.
    #[inline]
    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Tells the kinds apart.
    #[inline]
    pub(super) fn unpack(self) -> Unpacked {
        match self.0 & ((1 << KIND_BITS) - 1) {
            KIND_SP | KIND_FP => Unpacked::Simple,
            KIND_WIDE => Unpacked::Wide((self.0 >> KIND_BITS) as usize),
            KIND_OUTERMOST => Unpacked::Outermost,
            KIND_NO_TABLE => Unpacked::NoTable,
            _ => Unpacked::Unsupported,
        }
    }

    /// Whether [`PackedRule::unpack`] says [`Unpacked::Simple`].
    #[inline]
    pub(super) fn is_simple(self) -> bool {
        matches!(self.unpack(), Unpacked::Simple)
    }

    /// Whether the rule is simple and the CFA relative to the stack pointer.
    #[inline]
    pub(super) fn is_sp_relative(self) -> bool {
        self.0 & ((1 << KIND_BITS) - 1) == KIND_SP
    }

    /// For a simple rule: whether the CFA is relative to the frame pointer.
    #[inline]
    pub(super) fn uses_fp(self) -> bool {
        self.0 & KIND_FP != 0
    }

    /// For a simple rule: the CFA's distance from its register in words, at least 1.
    #[inline]
    pub(super) fn cfa_words(self) -> usize {
        (self.0 >> CFA_SHIFT & ((1 << CFA_BITS) - 1)) as usize
    }

    /// For a simple rule: the CFA's distance from its register.
    #[inline]
    pub(super) fn cfa_bytes(self) -> usize {
        self.cfa_words() * size_of::<usize>()
    }

    /// For a simple rule: how many words below the CFA the caller's frame pointer is saved; 0 when the frame did not change
    /// it.
    #[inline]
    pub(super) fn fp_words_below_cfa(self) -> usize {
        (self.0 >> FP_SHIFT) as usize
    }

    /// For a simple rule: how far below the CFA the caller's frame pointer is saved; 0 when the frame did not change it.
    #[inline]
    pub(super) fn fp_bytes_below_cfa(self) -> usize {
        self.fp_words_below_cfa() * size_of::<usize>()
    }

    /// The rule that a simple one stands for.
    pub(super) fn spell_out(self) -> FrameRule {
        let below_cfa = |bytes: usize| Place {
            base: PlaceBase::Cfa,
            offset: -(bytes as i32),
        };
        FrameRule {
            cfa: Cfa {
                base: if self.uses_fp() { Base::Fp } else { Base::Sp },
                offset: self.cfa_bytes() as i32,
                deref: None,
            },
            return_address: below_cfa(size_of::<usize>()),
            saved_fp: match self.fp_bytes_below_cfa() {
                0 => SavedFp::Same,
                bytes => SavedFp::At(below_cfa(bytes)),
            },
            interrupts: false,
        }
    }
}

/// `bytes` in words when that is a whole number below `1 << bits`.
fn words(bytes: i32, bits: u32) -> Option<u32> {
    let n_words = u32::try_from(bytes / WORD).ok()?;
    (bytes % WORD == 0 && n_words < 1 << bits).then_some(n_words)
}

/// The fields of a wide rule, from bit 0 up: (shift, bits).
mod wide {
    pub(super) const CFA_BASE: (u32, u32) = (0, 1);
    pub(super) const HAS_DEREF: (u32, u32) = (1, 1);
    pub(super) const CFA_OFFSET: (u32, u32) = (2, 25);
    pub(super) const DEREF_OFFSET: (u32, u32) = (27, 6);
    pub(super) const RA_BASE: (u32, u32) = (33, 2);
    pub(super) const RA_OFFSET: (u32, u32) = (35, 11);
    pub(super) const FP_KIND: (u32, u32) = (46, 3);
    pub(super) const FP_OFFSET: (u32, u32) = (49, 14);
    pub(super) const INTERRUPTS: (u32, u32) = (63, 1);
}

const FP_SAME: u64 = 3;
const FP_LOST: u64 = 4;

impl FrameRule {
    /// The wide form, never 0; `None` when an offset is out of its range or no multiple of a word.
    pub(super) fn to_wide(self) -> Option<u64> {
        let (fp_kind, fp_offset) = match self.saved_fp {
            SavedFp::Same => (FP_SAME, 0),
            SavedFp::Lost => (FP_LOST, 0),
            SavedFp::At(place) => (place_base_bits(place.base), place.offset),
        };
        Some(
            bit(wide::CFA_BASE, self.cfa.base == Base::Fp)
                | bit(wide::HAS_DEREF, self.cfa.deref.is_some())
                | put(wide::CFA_OFFSET, self.cfa.offset)?
                | put(wide::DEREF_OFFSET, self.cfa.deref.unwrap_or(0))?
                | place_base_bits(self.return_address.base) << wide::RA_BASE.0
                | put(wide::RA_OFFSET, self.return_address.offset)?
                | fp_kind << wide::FP_KIND.0
                | put(wide::FP_OFFSET, fp_offset)?
                | bit(wide::INTERRUPTS, self.interrupts),
        )
    }

    /// The rule that [`FrameRule::to_wide`] gave `word` for. Any other word gives some rule.
    pub(super) fn from_wide(word: u64) -> Self {
        let has = |(shift, _): (u32, u32)| word >> shift & 1 != 0;
        let saved_fp = match word >> wide::FP_KIND.0 & 7 {
            FP_SAME => SavedFp::Same,
            FP_LOST => SavedFp::Lost,
            base => SavedFp::At(Place {
                base: place_base(base),
                offset: get(word, wide::FP_OFFSET),
            }),
        };
        Self {
            cfa: Cfa {
                base: if has(wide::CFA_BASE) {
                    Base::Fp
                } else {
                    Base::Sp
                },
                offset: get(word, wide::CFA_OFFSET),
                deref: has(wide::HAS_DEREF).then(|| get(word, wide::DEREF_OFFSET)),
            },
            return_address: Place {
                base: place_base(word >> wide::RA_BASE.0 & 3),
                offset: get(word, wide::RA_OFFSET),
            },
            saved_fp,
            interrupts: has(wide::INTERRUPTS),
        }
    }
}

fn bit((shift, _): (u32, u32), is_set: bool) -> u64 {
    u64::from(is_set) << shift
}

/// The bits of a signed field that holds `bytes` in words.
fn put((shift, bits): (u32, u32), bytes: i32) -> Option<u64> {
    let n_words = bytes / WORD;
    let half = 1 << (bits - 1);
    let fits = bytes % WORD == 0 && (-half..half).contains(&n_words);
    fits.then(|| (i64::from(n_words) as u64 & ((1 << bits) - 1)) << shift)
}

/// The bytes that a signed field holds.
fn get(word: u64, (shift, bits): (u32, u32)) -> i32 {
    let n_words = (word << (64 - shift - bits)) as i64 >> (64 - bits);
    n_words as i32 * WORD
}

fn place_base_bits(base: PlaceBase) -> u64 {
    match base {
        PlaceBase::Cfa => 0,
        PlaceBase::Sp => 1,
        PlaceBase::Fp => 2,
    }
}

fn place_base(bits: u64) -> PlaceBase {
    match bits {
        0 => PlaceBase::Cfa,
        1 => PlaceBase::Sp,
        _ => PlaceBase::Fp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(cfa: Cfa, return_address: Place, saved_fp: SavedFp, interrupts: bool) -> FrameRule {
        FrameRule {
            cfa,
            return_address,
            saved_fp,
            interrupts,
        }
    }

    const BELOW_CFA: Place = Place {
        base: PlaceBase::Cfa,
        offset: -8,
    };

    #[test]
    fn plain_frames_are_narrow_and_keep_their_offsets() {
        let cfa = Cfa {
            base: Base::Fp,
            offset: 16,
            deref: None,
        };
        let saved_fp = SavedFp::At(Place {
            base: PlaceBase::Cfa,
            offset: -16,
        });
        let rule = UnwindRule::Frame(frame(cfa, BELOW_CFA, saved_fp, false));
        let packed = PackedRule::narrow(rule).unwrap();
        std::assert!(matches!(packed.unpack(), Unpacked::Simple));
        std::assert!(packed.uses_fp());
        std::assert_eq!(packed.cfa_bytes(), 16);
        std::assert_eq!(packed.fp_bytes_below_cfa(), 16);
        std::assert!(packed.to_raw() >> PackedRule::BITS == 0);
        std::assert_eq!(UnwindRule::Frame(packed.spell_out()), rule);

        let cfa = Cfa {
            base: Base::Sp,
            offset: 131_064,
            deref: None,
        };
        let packed = PackedRule::narrow(UnwindRule::Frame(frame(
            cfa,
            BELOW_CFA,
            SavedFp::Same,
            false,
        )))
        .unwrap();
        std::assert!(!packed.uses_fp());
        std::assert_eq!(packed.cfa_bytes(), 131_064);
        std::assert_eq!(packed.fp_bytes_below_cfa(), 0);
    }

    #[test]
    fn frames_that_do_not_fit_the_narrow_form_are_refused_by_it() {
        let cfa = |offset| Cfa {
            base: Base::Sp,
            offset,
            deref: None,
        };
        let narrow = |cfa, interrupts| {
            PackedRule::narrow(UnwindRule::Frame(frame(
                cfa,
                BELOW_CFA,
                SavedFp::Same,
                interrupts,
            )))
        };
        std::assert!(narrow(cfa(131_072), false).is_none());
        std::assert!(narrow(cfa(12), false).is_none());
        std::assert!(narrow(cfa(0), false).is_none());
        std::assert!(narrow(cfa(-8), false).is_none());
        std::assert!(narrow(cfa(16), true).is_none());
        std::assert!(narrow(cfa(16), false).is_some());
    }

    #[test]
    fn wide_rules_survive_packing() {
        let signal_frame = frame(
            Cfa {
                base: Base::Sp,
                offset: 160,
                deref: Some(0),
            },
            Place {
                base: PlaceBase::Sp,
                offset: 168,
            },
            SavedFp::At(Place {
                base: PlaceBase::Sp,
                offset: 120,
            }),
            true,
        );
        let realigned = frame(
            Cfa {
                base: Base::Fp,
                offset: -8,
                deref: Some(0),
            },
            BELOW_CFA,
            SavedFp::At(Place {
                base: PlaceBase::Fp,
                offset: 0,
            }),
            false,
        );
        let large = frame(
            Cfa {
                base: Base::Sp,
                offset: 100 << 20,
                deref: None,
            },
            BELOW_CFA,
            SavedFp::Lost,
            false,
        );
        for rule in [signal_frame, realigned, large] {
            std::assert_eq!(FrameRule::from_wide(rule.to_wide().unwrap()), rule);
        }
        let mut odd = large;
        odd.cfa.offset = 12;
        std::assert_eq!(odd.to_wide(), None);
        odd.cfa.offset = 200 << 20;
        std::assert_eq!(odd.to_wide(), None);
    }
}
