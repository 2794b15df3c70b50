//! The primitives of Linux.

use std::fs::Metadata;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Maps `len` bytes of zero pages that take memory only once they are written. Page-aligned; never a huge page, so that
/// one touched word costs one small page. `None` when the address space or a map limit is exhausted.
#[cfg(not(miri))]
pub(crate) fn map_zeroed(len: usize) -> Option<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was mapped just above. A kernel without huge pages answers with an error that changes nothing.
    unsafe { libc::madvise(addr, len, libc::MADV_NOHUGEPAGE) };
    NonNull::new(addr.cast())
}

/// Gives a mapping back.
///
/// # Safety
/// - `addr..addr + len` is a whole mapping made by [`map_zeroed`].
/// - Nobody reads or writes it any more.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(addr: NonNull<u8>, len: usize) {
    // SAFETY: by this function's contract nobody uses the range.
    unsafe { libc::munmap(addr.as_ptr().cast(), len) };
}

/// The pages of an interpreter without mmap come from its allocator.
#[cfg(miri)]
pub(crate) fn map_zeroed(len: usize) -> Option<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(len.max(1), 4096).ok()?;
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// As outside of an interpreter.
///
/// # Safety
/// - `addr..addr + len` was made by [`map_zeroed`].
/// - Nobody reads or writes it any more.
#[cfg(miri)]
pub(crate) unsafe fn unmap(addr: NonNull<u8>, len: usize) {
    if let Ok(layout) = std::alloc::Layout::from_size_align(len.max(1), 4096) {
        // SAFETY: by this function's contract `map_zeroed` made it with this layout and nobody uses it.
        unsafe { std::alloc::dealloc(addr.as_ptr(), layout) };
    }
}

/// Maps `n_words` zero words that live for the rest of the process. `None` when memory is exhausted.
pub(crate) fn map_words(n_words: usize) -> Option<&'static [AtomicU64]> {
    let bytes = map_zeroed(n_words.checked_mul(size_of::<AtomicU64>())?)?;
    let words: NonNull<AtomicU64> = bytes.cast();
    // SAFETY: the mapping is page-aligned, holds n_words zeroed atomics and is never unmapped.
    Some(unsafe { std::slice::from_raw_parts(words.as_ptr(), n_words) })
}

/// Words of its own mapping: a buffer that never touches the global allocator. Starts as zeros; given back when dropped.
pub(crate) struct MappedWords {
    addr: NonNull<usize>,
    n_words: usize,
}

impl MappedWords {
    /// Maps `n_words` words. `None` when memory is exhausted or `n_words` is 0.
    pub(crate) fn new(n_words: usize) -> Option<Self> {
        let bytes = map_zeroed(n_words.checked_mul(size_of::<usize>())?)?;
        Some(Self {
            addr: bytes.cast(),
            n_words,
        })
    }
}

impl Deref for MappedWords {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        // SAFETY: the mapping holds n_words initialised words, and `self` owns it.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.n_words) }
    }
}

impl DerefMut for MappedWords {
    fn deref_mut(&mut self) -> &mut [usize] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.n_words) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and no reference outlives `self`.
        unsafe { unmap(self.addr.cast(), self.n_words * size_of::<usize>()) };
    }
}

/// Makes all of `words` zero and gives their memory back to the system. They must start on a page boundary, as slices from
/// [`map_words`] do. Concurrent readers see old values or zeros.
pub(crate) fn zero_words(words: &'static [AtomicU64]) {
    if !replace_by_zero_pages(words) {
        // Relaxed: the caller orders the reset with the session state.
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(not(miri))]
fn replace_by_zero_pages(words: &'static [AtomicU64]) -> bool {
    let addr = words.as_ptr().cast_mut().cast::<libc::c_void>();
    // SAFETY: the slice borrows a private anonymous mapping for ever; the kernel replaces its pages by zero pages, which is
    // a store of zero to each atomic as far as other threads can see.
    unsafe { libc::madvise(addr, size_of_val(words), libc::MADV_DONTNEED) == 0 }
}

#[cfg(miri)]
fn replace_by_zero_pages(_words: &'static [AtomicU64]) -> bool {
    false
}

/// Sleeps until `word` is woken, unless it no longer holds `expected`. May return early.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: FUTEX_WAIT only reads the word, which outlives the call; a null timeout means none.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            none,
        )
    };
}

/// Wakes one thread that sleeps in [`wait`] on `word`.
pub(crate) fn wake_one(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address as a key only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}

/// Whether [`process_barrier`] works; 0 while not known, then one more than the answer.
static HAS_BARRIER: AtomicU32 = AtomicU32::new(0);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes no pointers; a kernel without it answers with an error.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the system has a barrier that makes all threads of the process pass a memory barrier (membarrier(2), Linux 4.14).
/// The first call asks for it.
pub(crate) fn has_process_barrier() -> bool {
    // Relaxed: a repeated registration is harmless.
    let known = HAS_BARRIER.load(Ordering::Relaxed);
    if known != 0 {
        return known == 2;
    }
    let has = !cfg!(miri) && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    HAS_BARRIER.store(1 + u32::from(has), Ordering::Relaxed);
    has
}

/// Makes every thread of the process pass a full memory barrier before this returns: what the caller did before is visible to
/// what they do after, and the other way round. To be called only if [`has_process_barrier`].
pub(crate) fn process_barrier() {
    if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // Registration does not outlive every way of making a process; the barrier for all processes needs none.
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            membarrier(libc::MEMBARRIER_CMD_GLOBAL);
        }
    }
}

/// The monotonic clock, in nanoseconds since an arbitrary moment.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Whether the kernel keeps its own time by the processor's time-stamp counter, which it does only while it finds the
/// counter steady on all processors. Allocates; not hook-safe.
pub(crate) fn kernel_keeps_time_by_tsc() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
}

/// Reads words from this process's own memory at `addr`, stopping at the first page that cannot be read instead of
/// faulting. Returns how many words of `out` were filled; 0 also when the kernel refuses the call.
pub(crate) fn read_words(addr: usize, out: &mut [usize]) -> usize {
    let local = libc::iovec {
        iov_base: out.as_mut_ptr().cast(),
        iov_len: size_of_val(out),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: size_of_val(out),
    };
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    // SAFETY: the local vector covers `out`; the kernel checks the remote range and fails instead of faulting.
    let n_bytes = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n_bytes).unwrap_or(0) / size_of::<usize>()
}

/// The current thread's own stack, lowest address to one past the highest, or `None` if the system does not tell. For the
/// main thread the range ends where the kernel put the program's arguments.
///
/// Hook-safe in that it never reaches the global allocator; glibc's answer for a thread other than the main one uses
/// `malloc`, so the caller keeps the result.
pub(crate) fn stack_bounds() -> Option<Range<usize>> {
    // SAFETY: both calls have no preconditions.
    let is_main = unsafe { libc::getpid() } == unsafe { libc::gettid() };
    if is_main {
        main_stack_bounds()
    } else {
        thread_stack_bounds()
    }
}

/// How long standard error may refuse output before the rest is given up, in milliseconds.
const STDERR_PATIENCE_MS: libc::c_int = 1_000;

/// Writes to standard error, past the standard library's lock and buffer. Errors end it silently; so does a non-blocking
/// standard error that takes nothing for a second.
pub(crate) fn write_stderr(text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: the slice is readable for its length.
        let n_bytes = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(n_bytes) {
            Ok(0) => return,
            Ok(n_bytes) => rest = rest.get(n_bytes..).unwrap_or_default(),
            Err(_) if !stderr_may_go_on() => return,
            Err(_) => {}
        }
    }
}

/// Whether a failed write to standard error is worth another try; waits until it can be.
fn stderr_may_go_on() -> bool {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINTR) => true,
        Some(libc::EAGAIN) => {
            let mut stderr = libc::pollfd {
                fd: libc::STDERR_FILENO,
                events: libc::POLLOUT,
                revents: 0,
            };
            // SAFETY: `stderr` is one valid entry.
            unsafe { libc::poll(&mut stderr, 1, STDERR_PATIENCE_MS) > 0 }
        }
        _ => false,
    }
}

/// Whether the file `new` may take the place of the file `old` by a rename without anybody losing it: `old` has no other
/// name, and the same owner and group. Not hook-safe.
pub(crate) fn may_stand_for(new: &Metadata, old: &Metadata) -> bool {
    old.nlink() == 1 && (new.uid(), new.gid()) == (old.uid(), old.gid())
}

/// The largest part of the main stack that is trusted to be stack. The kernel keeps at least this much address space below
/// the top free of other mappings, whatever the limit says (Linux arch/x86/mm/mmap.c, MIN_GAP).
const MAIN_STACK_GAP: usize = 128 << 20;

fn main_stack_bounds() -> Option<Range<usize>> {
    // SAFETY: getauxval has no preconditions.
    let execfn = unsafe { libc::getauxval(libc::AT_EXECFN) };
    // SAFETY: as above.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) };
    // Both point into what the kernel laid above the first frame.
    let top = if execfn != 0 { execfn } else { random } as usize;
    if top == 0 {
        return None;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the result.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    let soft = if known {
        usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
    } else {
        usize::MAX
    };
    let end = top & !(size_of::<usize>() - 1);
    Some(end.saturating_sub(soft.min(MAIN_STACK_GAP))..end)
}

fn thread_stack_bounds() -> Option<Range<usize>> {
    let mut attr = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread is the running one and `attr` is a valid place for the result.
    if unsafe { libc::pthread_getattr_np(this, attr.as_mut_ptr()) } != 0 {
        return None;
    }
    let mut low = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: pthread_getattr_np initialised `attr`.
    let known = unsafe { libc::pthread_attr_getstack(attr.as_ptr(), &mut low, &mut size) } == 0;
    // SAFETY: as above; it is not used again.
    unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
    (known && !low.is_null()).then(|| low as usize..(low as usize).saturating_add(size))
}

/// Makes the system call `handler` in the child after each fork from now on, on the thread that forked. Not hook-safe.
pub(crate) fn at_fork_in_child(handler: extern "C" fn()) {
    let handler = handler as unsafe extern "C" fn();
    // SAFETY: the function stays for the life of the process and does only what may be done in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(handler)) };
}

/// glibc keeps the values of the first 32 keys inside the thread descriptor; setting a later one allocates.
const N_INLINE_KEYS: libc::pthread_key_t = 32;

/// Calls one function at the exit of each thread that armed it, after the thread's Rust destructors.
pub(crate) struct ThreadExit {
    /// The key plus one; 0 while there is none.
    key_plus_one: AtomicUsize,
}

impl ThreadExit {
    /// Makes a hook that does nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            key_plus_one: AtomicUsize::new(0),
        }
    }

    /// Makes the system call `at_exit` on each armed thread that ends from now on; the argument has no meaning. Repeated
    /// calls do nothing. Not hook-safe: call it before recording starts.
    pub(crate) fn install(&self, at_exit: extern "C" fn(*mut libc::c_void)) {
        // Acquire and Release: the key is made before its number is seen.
        if self.key_plus_one.load(Ordering::Acquire) != 0 {
            return;
        }
        let mut key = 0;
        let at_exit = at_exit as unsafe extern "C" fn(*mut libc::c_void);
        // SAFETY: `key` is a valid place for the result, and the function stays for the life of the process.
        if unsafe { libc::pthread_key_create(&mut key, Some(at_exit)) } == 0 {
            self.key_plus_one.store(key as usize + 1, Ordering::Release);
        }
    }

    /// Arms the current thread. False if this thread's exit cannot be seen without allocating. Hook-safe.
    pub(crate) fn arm(&self) -> bool {
        let Some(key) = self.key_plus_one.load(Ordering::Acquire).checked_sub(1) else {
            return false;
        };
        let key = key as libc::pthread_key_t;
        if key >= N_INLINE_KEYS {
            return false;
        }
        // SAFETY: the key was made by `install` and is never deleted; the value is only compared with null.
        unsafe { libc::pthread_setspecific(key, std::ptr::dangling()) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_bounds_contain_a_local_of_the_main_thread_and_of_another() {
        let contains_local = || {
            let local = 0_u8;
            stack_bounds()
                .unwrap()
                .contains(&(&raw const local as usize))
        };
        std::assert!(contains_local());
        std::assert!(std::thread::spawn(contains_local).join().unwrap());
    }

    #[test]
    fn reading_unmapped_memory_fails_instead_of_faulting() {
        let mut words = [0; 4];
        std::assert_eq!(read_words(8, &mut words), 0);
        let source = [1_usize, 2, 3, 4];
        std::assert_eq!(read_words(source.as_ptr() as usize, &mut words), 4);
        std::assert_eq!(words, source);
    }

    #[test]
    fn zeroed_words_read_zero_again() {
        let words = map_words(4096).unwrap();
        words[4000].store(7, Ordering::Relaxed);
        zero_words(words);
        std::assert_eq!(words[4000].load(Ordering::Relaxed), 0);
    }
}
