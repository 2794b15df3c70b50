//! What the journal holds: an event is a word of time and kind, and one word (a packed block), two (packed before and after)
//! or three (operation and program point, old size, new size).

use super::{LiveBlock, PpId};

/// Words of the shortest event.
pub(super) const NARROW_WORDS: usize = 2;
/// Words of a reallocation whose sizes fit.
pub(super) const RESIZE_WORDS: usize = 3;
/// Words of the longest event.
pub(super) const WIDE_WORDS: usize = 4;

/// Bits of an event's first word below the time.
const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// What an event's words mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A block that fits one word was allocated.
    Alloc = 0,
    /// A block that fits one word was freed.
    Free = 1,
    /// What [`Wide`] says.
    Wide = 2,
    /// A block that fits one word, before and after, changed its size.
    Resize = 3,
}

/// The first word of an event.
#[inline(always)]
pub(super) fn first_word(kind: Kind, ticks: u64) -> u64 {
    ticks << KIND_BITS | kind as u64
}

/// The kind of the event that starts with `first`.
#[inline(always)]
pub(super) fn kind_of(first: u64) -> Kind {
    match first & KIND_MASK {
        0 => Kind::Alloc,
        1 => Kind::Free,
        2 => Kind::Wide,
        _ => Kind::Resize,
    }
}

/// The time of the event that starts with `first`, in ticks.
#[inline(always)]
pub(super) fn ticks_of(first: u64) -> u64 {
    first >> KIND_BITS
}

/// An event with both sizes in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    /// A block was allocated.
    Alloc(LiveBlock),
    /// A block was freed.
    Free(LiveBlock),
    /// A block, as it was before, changed its size.
    Realloc { block: LiveBlock, new_size: usize },
    /// An ad hoc event happened.
    AdHoc { pp: PpId, weight: usize },
}

/// Operations of wide events, above the point's number.
const OP_SHIFT: u32 = PpId::BITS;
const OP_ALLOC: u64 = 0;
const OP_FREE: u64 = 1;
const OP_REALLOC: u64 = 2;
const OP_AD_HOC: u64 = 3;

impl Wide {
    /// The words behind the first.
    #[inline]
    pub(super) fn words(self) -> [u64; WIDE_WORDS - 1] {
        let (op, pp, old_size, new_size) = match self {
            Self::Alloc(block) => (OP_ALLOC, block.pp, 0, block.size),
            Self::Free(block) => (OP_FREE, block.pp, block.size, 0),
            Self::Realloc { block, new_size } => (OP_REALLOC, block.pp, block.size, new_size),
            Self::AdHoc { pp, weight } => (OP_AD_HOC, pp, 0, weight),
        };
        let point = op << OP_SHIFT | u64::from(pp.0);
        [point, old_size as u64, new_size as u64]
    }

    /// The event that [`Wide::words`] made `words` of.
    pub(super) fn of([point, old, new]: [u64; WIDE_WORDS - 1]) -> Self {
        let pp = PpId((point & PpId::MASK) as u32);
        let (old_size, new_size) = (old as usize, new as usize);
        let old_block = LiveBlock { pp, size: old_size };
        match point >> OP_SHIFT {
            OP_ALLOC => Self::Alloc(LiveBlock { pp, size: new_size }),
            OP_FREE => Self::Free(old_block),
            OP_REALLOC => Self::Realloc {
                block: old_block,
                new_size,
            },
            _ => Self::AdHoc {
                pp,
                weight: new_size,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_events_come_back_as_they_were() {
        let block = LiveBlock {
            pp: PpId((1 << 28) - 1),
            size: usize::MAX,
        };
        let (new_size, weight) = (7, usize::MAX - 1);
        let pp = PpId(5);
        for event in [
            Wide::Alloc(block),
            Wide::Free(block),
            Wide::Realloc { block, new_size },
            Wide::AdHoc { pp, weight },
        ] {
            std::assert_eq!(Wide::of(event.words()), event);
        }
    }

    #[test]
    fn first_words_keep_time_and_kind() {
        let latest = u64::MAX >> KIND_BITS;
        for kind in [Kind::Alloc, Kind::Free, Kind::Wide, Kind::Resize] {
            let first = first_word(kind, latest);
            std::assert_eq!((kind_of(first), ticks_of(first)), (kind, latest));
        }
    }
}
