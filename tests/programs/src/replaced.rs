//! Libraries that take each other's place while a profile is recorded.
//!
//! Arguments: how many blocks each library's turn allocates; then a library's path, twice, each followed by the name of its
//! outer function.

use dhat_ours as dhat;

use std::ffi::{c_ulong, c_void, CString};
use std::hint::black_box;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

type Callback = extern "C" fn(c_ulong) -> *mut c_void;
type ThroughC = unsafe extern "C" fn(Callback, c_ulong) -> *mut c_void;

const N_TURNS: usize = 3;

extern "C" fn allocate(n_bytes: c_ulong) -> *mut c_void {
    drop(black_box(Vec::<u8>::with_capacity(n_bytes as usize)));
    black_box(allocate as *mut c_void)
}

/// Loads a library, allocates through it and unloads it; the address of its outer function.
#[inline(never)]
fn turn(path: &str, function: &str, n_blocks: usize, n_bytes: c_ulong) -> usize {
    let (path, function) = (
        CString::new(path).expect("a path"),
        CString::new(function).expect("a name"),
    );
    // SAFETY: the library has no initializers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: the handle is open, the name is terminated.
    let symbol = unsafe { libc::dlsym(library, function.as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the function has this type.
    let through_c = unsafe { std::mem::transmute::<*mut c_void, ThroughC>(symbol) };
    for _ in 0..black_box(n_blocks) {
        // SAFETY: the function hands the number to the callback and its result back.
        black_box(unsafe { through_c(allocate, n_bytes) });
    }
    // SAFETY: the handle is open and no function of the library is running.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    symbol as usize
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n_blocks = args[0].parse().expect("a number");
    let profiler = dhat::Profiler::new_heap();
    let mut addresses = Vec::new();
    for _ in 0..N_TURNS {
        addresses.push(turn(&args[1], &args[2], n_blocks, 1111));
        addresses.push(turn(&args[3], &args[4], n_blocks, 2222));
    }
    drop(profiler);
    addresses.dedup();
    println!("places={}\nturns={N_TURNS}", addresses.len());
}
