//! Allocations in places that are hard to walk out of, in an otherwise stock program.
//!
//! Argument: the path of the library built from `c/callback.c`.

use dhat_ours as dhat;

use std::ffi::{c_ulong, c_void, CString};
use std::hint::black_box;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

type Callback = extern "C" fn(c_ulong) -> *mut c_void;
type ThroughC = unsafe extern "C" fn(Callback, c_ulong) -> *mut c_void;

const TWO_SITES_LINE: u32 = line!() + 4;

#[inline(never)]
fn two_sites() -> [Vec<u8>; 2] {
    let one = black_box(Vec::with_capacity(1111));
    let two = black_box(Vec::with_capacity(2222));
    black_box([one, two])
}

/// Says what the `backtrace` crate takes for the callers of the function that calls this, innermost first.
#[inline(never)]
fn tell_callers(place: &str) {
    let mut callers = Vec::new();
    backtrace::trace(|frame| {
        callers.push(frame.ip() as usize);
        true
    });
    let texts: Vec<String> = callers.iter().map(|ip| format!("{ip:#x}")).collect();
    println!("{place}={}", texts.join(","));
}

extern "C" fn back_in_rust(n: c_ulong) -> *mut c_void {
    tell_callers("callers_in_c");
    Box::into_raw(black_box(Box::new([n; 333]))).cast()
}

#[inline(never)]
fn into_c(through_c: ThroughC) {
    // SAFETY: the library's function hands `n` to the callback and its result back.
    let block = unsafe { through_c(back_in_rust, 7) };
    assert!(!block.is_null());
    // SAFETY: `back_in_rust` made the block of such a box.
    drop(unsafe { Box::from_raw(block.cast::<[c_ulong; 333]>()) });
}

fn load(path: &str) -> ThroughC {
    let path = CString::new(path).expect("a path");
    // SAFETY: the library has no initializers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: the handle is open, the name is terminated.
    let symbol = unsafe { libc::dlsym(library, c"c_outer".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: `c_outer` has this type.
    unsafe { std::mem::transmute::<*mut c_void, ThroughC>(symbol) }
}

#[inline(never)]
fn deep(levels: u32) -> Vec<u8> {
    if levels == 0 {
        tell_callers("callers_in_recursion");
        return black_box(Vec::with_capacity(4444));
    }
    black_box(deep(black_box(levels - 1)))
}

/// Allocates in all places, profiled to the default file.
pub fn main() {
    let through_c = load(&std::env::args().nth(1).expect("the library's path"));
    let profiler = dhat::Profiler::builder()
        .trim_backtraces(Some(usize::MAX))
        .build();
    drop(two_sites());
    into_c(through_c);
    drop(deep(300));
    drop(profiler);
    println!("two_sites={TWO_SITES_LINE}");
}
