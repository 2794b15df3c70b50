//! The clock of the journal: raw ticks while recording, nanoseconds in the snapshot.
//!
//! Reads do not serialize: two events on different threads that are closer than the processor's reordering window may get
//! their times in either order, which the ledger's signed counters bear.

#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

const MONOTONIC: u32 = 0;
const COUNTER: u32 = 1;
#[cfg(test)]
const MANUAL: u32 = 2;

/// How often both clocks are read for one [`Moment`].
const N_READINGS: u32 = 5;

/// The source of ticks. A tick fits in 62 bits.
pub(super) struct Clock {
    /// [`MONOTONIC`] until [`Clock::choose`] finds something better. Relaxed: it changes only while nothing is recorded.
    source: AtomicU32,
    /// The time that tests set.
    #[cfg(test)]
    manual: AtomicU64,
}

/// One moment as ticks and as nanoseconds since an arbitrary moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// In units of the chosen source.
    pub(super) ticks: u64,
    /// By the monotonic clock.
    pub(super) ns: u64,
}

/// Converts ticks since the session's start to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Nanoseconds a tick, in units of 2^-40.
    ns_per_tick: u128,
}

/// The fraction bits of a [`Scale`].
const SCALE_BITS: u32 = 40;

impl Clock {
    /// Makes a clock that counts monotonic nanoseconds.
    pub(super) const fn new() -> Self {
        Self {
            source: AtomicU32::new(MONOTONIC),
            #[cfg(test)]
            manual: AtomicU64::new(0),
        }
    }

    /// Takes the processor's counter if it runs at one rate everywhere. Not hook-safe.
    pub(super) fn choose(&self) {
        let is_open = self.source.load(Ordering::Relaxed) == MONOTONIC;
        if is_open && counter::is_reliable() {
            self.source.store(COUNTER, Ordering::Relaxed);
        }
    }

    /// The time in ticks. Hook-safe, async-signal-safe.
    #[inline]
    pub(super) fn ticks(&self) -> u64 {
        match self.source.load(Ordering::Relaxed) {
            COUNTER => counter::read(),
            #[cfg(test)]
            MANUAL => self.manual.load(Ordering::Relaxed),
            _ => sys::monotonic_ns(),
        }
    }

    /// The time in ticks where reading it is a few instructions. Hook-safe, async-signal-safe.
    #[inline(always)]
    pub(super) fn counter_ticks(&self) -> Option<u64> {
        (self.source.load(Ordering::Relaxed) == COUNTER).then(counter::read)
    }

    /// The time in both units: of a few readings the one that was least interrupted.
    pub(super) fn moment(&self) -> Moment {
        let readings = (0..N_READINGS).map(|_| self.reading());
        let closest = readings.min_by_key(|(window_ticks, _)| *window_ticks);
        closest.map_or_else(Moment::default, |(_, moment)| moment)
    }

    /// The time in both units, and the ticks within which both were read.
    fn reading(&self) -> (u64, Moment) {
        let before = self.ticks();
        if self.source.load(Ordering::Relaxed) != COUNTER {
            return (
                0,
                Moment {
                    ticks: before,
                    ns: before,
                },
            );
        }
        let ns = sys::monotonic_ns();
        let window_ticks = self.ticks().saturating_sub(before);
        let ticks = before + window_ticks / 2;
        (window_ticks, Moment { ticks, ns })
    }
}

impl Scale {
    /// The scale of a session from two of its moments. One tick is one nanosecond if they are the same.
    pub(super) fn between(start: Moment, end: Moment) -> Self {
        let n_ticks = u128::from(end.ticks.saturating_sub(start.ticks));
        let n_ns = u128::from(end.ns.saturating_sub(start.ns));
        let exact = (n_ns << SCALE_BITS).checked_div(n_ticks);
        Self {
            ns_per_tick: exact.unwrap_or(1 << SCALE_BITS),
        }
    }

    /// `n_ticks` in nanoseconds, rounded down.
    pub(super) fn ns(self, n_ticks: u128) -> u128 {
        n_ticks.saturating_mul(self.ns_per_tick) >> SCALE_BITS
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    //! The time-stamp counter (Intel SDM vol. 3, "Time-Stamp Counter").

    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// CPUID leaf with the advanced power management flags, and its bit in EDX for an invariant TSC.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    /// The counter's value. Hook-safe, async-signal-safe.
    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction; the kernel keeps time with it, so it is not disabled.
        unsafe { _rdtsc() }
    }

    /// Whether the counter runs at one rate on all processors. Not hook-safe.
    // `__cpuid` is unsafe in the oldest supported compiler and safe in later ones.
    #[allow(unused_unsafe)]
    pub(super) fn is_reliable() -> bool {
        // SAFETY: every x86-64 processor has the instruction.
        let max_leaf = unsafe { __cpuid(0x8000_0000) }.eax;
        if max_leaf < POWER_LEAF {
            return false;
        }
        // SAFETY: as above.
        let power = unsafe { __cpuid(POWER_LEAF) };
        power.edx & INVARIANT_TSC != 0 && crate::sys::kernel_keeps_time_by_tsc()
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod counter {
    //! The virtual counter: one rate on all cores by architecture (Arm ARM, "The Generic Timer").

    /// The counter's value. Hook-safe, async-signal-safe.
    #[inline]
    pub(super) fn read() -> u64 {
        let ticks: u64;
        // SAFETY: the system lets user code read the register, and the read has no effect on memory.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
        };
        ticks
    }

    /// Whether the counter runs at one rate on all processors.
    pub(super) fn is_reliable() -> bool {
        true
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod counter {
    //! Where there is no counter that can be trusted.

    /// The monotonic clock's nanoseconds, for want of a counter. Hook-safe.
    pub(super) fn read() -> u64 {
        crate::sys::monotonic_ns()
    }

    /// Whether there is a counter that runs at one rate on all processors.
    pub(super) fn is_reliable() -> bool {
        false
    }
}

#[cfg(test)]
impl Clock {
    /// Makes the clock show `ticks`, one a nanosecond, from now on.
    pub(super) fn set(&self, ticks: u64) {
        self.manual.store(ticks, Ordering::Relaxed);
        self.source.store(MANUAL, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_scale_by_the_ratio_of_the_two_moments() {
        let start = Moment { ticks: 50, ns: 7 };
        let end = Moment {
            ticks: 3_050,
            ns: 1_007,
        };
        let scale = Scale::between(start, end);
        // A third of a nanosecond a tick has no exact binary fraction; the error is below one part in 2^38.
        std::assert_eq!(scale.ns(3_001), 1_000);
        std::assert_eq!(scale.ns(300_000_100), 100_000_033);
        std::assert_eq!(Scale::between(start, start).ns(5), 5);
    }

    #[test]
    fn chosen_source_agrees_with_the_monotonic_clock() {
        let clock = Clock::new();
        clock.choose();
        let start = clock.moment();
        let outer = std::time::Instant::now();
        while outer.elapsed().as_millis() < 20 {}
        let middle = clock.ticks() - start.ticks;
        let elapsed_ns = outer.elapsed().as_nanos();
        let scale = Scale::between(start, clock.moment());
        let scaled_ns = scale.ns(middle.into());
        std::assert!(scaled_ns.abs_diff(elapsed_ns) < elapsed_ns / 2);
    }
}
