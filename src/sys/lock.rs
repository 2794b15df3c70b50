//! A one-word lock that waits in the kernel and never allocates.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
/// Spins before a wait: enough to ride out a holder that only appends an event.
const N_SPINS: u32 = 100;

/// A mutual-exclusion lock around `T`. Hook-safe; not reentrant; has no notion of poisoning.
///
/// The state word is 0 when free, 1 when held, 2 when held and somebody may wait (U. Drepper, "Futexes Are Tricky",
/// mutex 3).
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and there is one guard at a time, so sharing the lock moves the value
// between threads but never shares it.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Makes a free lock around `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, waiting in the kernel after a short bounded spin. Hook-safe.
    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        // Acquire pairs with the Release swap in the guard's drop.
        if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_slow();
        }
        LockGuard { lock: self }
    }

    /// Takes the lock if it is free. Hook-safe, async-signal-safe.
    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Acquire: as in `lock`.
        let taken = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(LockGuard { lock: self })
    }

    /// Acquire: as in [`Lock::lock`].
    #[cold]
    #[inline(never)]
    fn lock_slow(&self) {
        for _ in 0..N_SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            super::wait(&self.state, CONTENDED);
        }
    }
}

/// Proof that the lock is held; gives it back when dropped.
pub(crate) struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard's existence means that this thread holds the lock, so nobody else has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference through the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next holder.
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            super::wake_one(&self.lock.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_under_contention_are_not_lost() {
        static SUM: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *SUM.lock() += 1));
            }
        });
        std::assert_eq!(*SUM.lock(), 80_000);
    }

    #[test]
    fn try_lock_fails_while_held() {
        let lock = Lock::new(());
        let held = lock.lock();
        std::assert!(lock.try_lock().is_none());
        drop(held);
        std::assert!(lock.try_lock().is_some());
    }
}
