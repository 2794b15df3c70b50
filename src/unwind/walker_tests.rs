//! The walker beside the `backtrace` crate, which uses libgcc's unwinder: for the same call the frames must be equal.

use super::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

/// The frames of one call as both unwinders see them, without the function that captured them and what it called.
#[derive(Debug, Default)]
struct Stacks {
    ours: Vec<usize>,
    theirs: Vec<usize>,
}

thread_local! {
    /// What callbacks, handlers and destructors captured.
    static CAPTURED: RefCell<Vec<Stacks>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn capture() -> Stacks {
    prepare();
    let ours = trace(Registers::here(), Depth::Unlimited);
    let mut theirs = Vec::new();
    let mut capturer_idx = None;
    // SAFETY: libgcc's unwinder needs no lock; the crate's own is for the Windows debugger library.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            if frame.symbol_address() as usize == capture as fn() -> Stacks as usize {
                capturer_idx = Some(theirs.len());
            }
            theirs.push(frame.ip() as usize);
            true
        });
    }
    // libgcc reports the end as a frame without address.
    while theirs.last() == Some(&0) {
        theirs.pop();
    }
    let n_inner = capturer_idx.expect("the capturing function is one of the frames") + 1;
    Stacks {
        ours: ours[1..].to_vec(),
        theirs: theirs[n_inner..].to_vec(),
    }
}

extern "C" fn capture_callback(_: *mut c_void) {
    let stacks = capture();
    CAPTURED.with_borrow_mut(|all| all.push(stacks));
}

fn take_captured() -> Vec<Stacks> {
    CAPTURED.with_borrow_mut(std::mem::take)
}

#[track_caller]
fn check_equal(stacks: &Stacks, min_frames: usize) {
    std::assert!(stacks.ours.len() >= min_frames, "{stacks:x?}");
    std::assert_eq!(stacks.ours, stacks.theirs, "{:x?}", stacks);
}

#[inline(never)]
fn recurse(n: usize, then: &mut dyn FnMut()) {
    if n == 0 {
        then();
    } else {
        recurse(black_box(n - 1), then);
    }
    black_box(n);
}

#[test]
fn plain_calls_and_closures_are_walked() {
    check_equal(&capture(), 3);
    let closure = || capture();
    check_equal(&black_box(closure)(), 3);
    let boxed: Box<dyn Fn() -> Stacks> = Box::new(|| (0..1).map(|_| capture()).next().unwrap());
    check_equal(&black_box(boxed)(), 3);
}

#[test]
fn deep_recursion_is_walked_to_its_end() {
    for depth in [60, 70, 400, 5_000] {
        let mut stacks = Stacks::default();
        recurse(depth, &mut || stacks = capture());
        check_equal(&stacks, depth);
    }
}

#[test]
fn thread_and_its_thread_local_destructors_are_walked() {
    struct OnDrop(std::sync::mpsc::Sender<Stacks>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.send(capture()).unwrap();
        }
    }
    thread_local! {
        static LOCAL: RefCell<Option<OnDrop>> = const { RefCell::new(None) };
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        sender.send(capture()).unwrap();
        LOCAL.set(Some(OnDrop(sender)));
    });
    check_equal(&receiver.recv().unwrap(), 5);
    check_equal(&receiver.recv().unwrap(), 3);
    thread.join().unwrap();
}

#[test]
fn drop_glue_while_a_panic_unwinds_and_catch_unwind_are_walked() {
    struct OnDrop;
    impl Drop for OnDrop {
        fn drop(&mut self) {
            capture_callback(std::ptr::null_mut());
        }
    }
    let outcome = catch_unwind(|| {
        let _on_drop = OnDrop;
        capture_callback(std::ptr::null_mut());
        std::panic::resume_unwind(Box::new(()));
    });
    std::assert!(outcome.is_err());
    let all = take_captured();
    std::assert_eq!(all.len(), 2);
    all.iter().for_each(|stacks| check_equal(stacks, 5));
}

#[test]
fn callback_from_the_c_library_is_walked() {
    extern "C" fn compare(left: *const c_void, right: *const c_void) -> c_int {
        capture_callback(std::ptr::null_mut());
        (left as usize).cmp(&(right as usize)) as c_int
    }
    let mut items = [3_u64, 1, 2];
    // SAFETY: the array has three elements of eight bytes, and the callback does not touch them.
    unsafe { libc::qsort(items.as_mut_ptr().cast(), 3, 8, Some(compare)) };
    // SAFETY: as above.
    unsafe {
        libc::bsearch(
            items.as_ptr().cast(),
            items.as_ptr().cast(),
            3,
            8,
            Some(compare),
        )
    };
    let all = take_captured();
    std::assert!(all.len() >= 3);
    all.iter().for_each(|stacks| check_equal(stacks, 5));
}

#[inline(never)]
fn never_returns() -> ! {
    capture_callback(std::ptr::null_mut());
    std::panic::resume_unwind(Box::new(()))
}

#[test]
fn call_at_the_very_end_of_a_function_is_walked() {
    #[inline(never)]
    fn ends_in_a_call() {
        never_returns();
    }
    std::assert!(catch_unwind(ends_in_a_call).is_err());
    check_equal(&take_captured()[0], 5);
}
