//! The return addresses that a walk collects.

use crate::sys::MappedWords;

/// Return addresses, innermost first. Short stacks stay in place; longer ones go to a mapping.
pub(super) struct Frames {
    inline: [usize; Self::N_INLINE],
    spill: Option<MappedWords>,
    /// How many there are.
    pub(super) len: usize,
}

impl Frames {
    const N_INLINE: usize = 64;

    /// Makes an empty list that will use `spill` before it maps anything itself.
    pub(super) fn new(spill: Option<MappedWords>) -> Self {
        Self {
            inline: [0; Self::N_INLINE],
            spill,
            len: 0,
        }
    }

    /// The frames so far.
    pub(super) fn as_slice(&self) -> &[usize] {
        match &self.spill {
            Some(spill) if self.len > Self::N_INLINE => &spill[..self.len],
            _ => &self.inline[..self.len],
        }
    }

    /// The mapping, for the next walk.
    pub(super) fn into_spill(self) -> Option<MappedWords> {
        self.spill
    }

    /// Where the first `max` frames go, as far as there is room now: the frames so far and what follows them.
    pub(super) fn room(&mut self, max: usize) -> &mut [usize] {
        let room = match &mut self.spill {
            Some(spill) if self.len > Self::N_INLINE => &mut spill[..],
            _ => &mut self.inline[..],
        };
        let n_frames = room.len().min(max);
        &mut room[..n_frames]
    }

    /// Adds a frame; false when there is no memory for it.
    #[inline]
    pub(super) fn push(&mut self, pc: usize) -> bool {
        if let Some(slot) = self.inline.get_mut(self.len) {
            *slot = pc;
            self.len += 1;
            return true;
        }
        self.push_slow(pc)
    }

    #[cold]
    #[inline(never)]
    fn push_slow(&mut self, pc: usize) -> bool {
        let capacity = self.spill.as_ref().map_or(0, |spill| spill.len());
        if self.len == capacity || capacity == 0 {
            let Some(mut larger) = MappedWords::new((capacity * 2).max(1024)) else {
                return false;
            };
            if let Some(spill) = &self.spill {
                larger[..capacity].copy_from_slice(spill);
            }
            self.spill = Some(larger);
        }
        let Some(spill) = &mut self.spill else {
            return false;
        };
        if self.len == Self::N_INLINE {
            spill[..Self::N_INLINE].copy_from_slice(&self.inline);
        }
        spill[self.len] = pc;
        self.len += 1;
        true
    }
}
