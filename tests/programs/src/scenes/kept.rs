//! The places where programs keep a `Profiler`, and the ways it ends.

use std::ffi::OsStr;
use std::hint::black_box;
use std::sync::{Mutex, OnceLock};

static GLOBAL: Mutex<Option<dhat::Profiler>> = Mutex::new(None);
static ONCE: OnceLock<dhat::Profiler> = OnceLock::new();

struct Harness {
    name: &'static str,
    profiler: Option<dhat::Profiler>,
}

extern "C" fn at_exit() {
    drop(GLOBAL.lock().unwrap().take());
}

fn work() {
    drop(black_box(Vec::<u8>::with_capacity(1234)));
}

/// Profiles one block of 1,234 bytes with a profiler kept in the `place`.
pub fn run(place: &OsStr) {
    match place.to_str().unwrap() {
        "option" => {
            let mut profiler = Some(dhat::Profiler::new_heap());
            work();
            drop(profiler.take());
        }
        "struct" => {
            let harness = Harness {
                name: "harness",
                profiler: Some(dhat::Profiler::new_heap()),
            };
            work();
            assert_eq!(harness.name.len(), 7);
            drop(harness.profiler);
        }
        "mutex" => {
            *GLOBAL.lock().unwrap() = Some(dhat::Profiler::new_heap());
            work();
            *GLOBAL.lock().unwrap() = None;
        }
        "atexit" => {
            // SAFETY: the callback takes nothing and returns.
            assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
            *GLOBAL.lock().unwrap() = Some(dhat::Profiler::new_heap());
            work();
            std::process::exit(0);
        }
        "other_thread" => {
            let profiler = dhat::Profiler::new_heap();
            work();
            std::thread::scope(|scope| scope.spawn(move || drop(profiler)).join().unwrap());
        }
        // A static is never dropped: nothing is written.
        "once" => {
            assert!(ONCE.set(dhat::Profiler::new_heap()).is_ok());
            work();
        }
        "assert_fails" => {
            let profiler = dhat::Profiler::builder().testing().build();
            let block = black_box(Vec::<u8>::with_capacity(1234));
            let stats = dhat::HeapStats::get();
            dhat::assert_is_panic(
                || dhat::assert_eq!(stats.curr_bytes, 1),
                "dhat: assertion failed: `(left == right)`\n  left: `1234`,\n right: `1`",
            );
            drop(block);
            println!("saved={}", std::path::Path::new("dhat-heap.json").exists());
            std::fs::rename("dhat-heap.json", "saved.json").unwrap();
            drop(profiler);
            // The next profiler starts afresh.
            let _profiler = dhat::Profiler::builder().testing().build();
            dhat::assert!(true);
        }
        "panic_unwinds" => {
            let _profiler = dhat::Profiler::new_heap();
            work();
            panic!("the program's own");
        }
        other => panic!("no such place: {other}"),
    }
}
