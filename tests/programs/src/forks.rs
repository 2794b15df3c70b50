//! A process that forks while its other threads allocate; its children allocate too.

use dhat_ours as dhat;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

const N_CHILDREN: usize = 60;
const N_THREADS: usize = 3;
/// More than fill the recorder's buffers several times.
const N_BLOCKS_A_CHILD: usize = 20_000;
/// A child that hangs is ended by its alarm clock.
const LIMIT_SECONDS: u32 = 20;
const CHILD_BLOCK: usize = 4321;

fn child(profiler: dhat::Profiler) -> ! {
    // SAFETY: alarm has no preconditions.
    unsafe { libc::alarm(LIMIT_SECONDS) };
    for _ in 0..N_BLOCKS_A_CHILD {
        black_box(Vec::<u8>::with_capacity(CHILD_BLOCK));
    }
    let stats = std::panic::catch_unwind(dhat::HeapStats::get);
    let another = std::panic::catch_unwind(|| drop(dhat::Profiler::new_heap()));
    drop(profiler);
    let status = i32::from(stats.is_ok()) + 2 * i32::from(another.is_ok());
    // SAFETY: ends the child without the parent's exit handlers.
    unsafe { libc::_exit(status) }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let profiler = dhat::Profiler::new_heap();
    let stop = AtomicBool::new(false);
    let mut n_fine = 0;
    std::thread::scope(|scope| {
        for _ in 0..N_THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(Vec::<u8>::with_capacity(100));
                }
            });
        }
        for _ in 0..N_CHILDREN {
            // SAFETY: the child allocates and panics only, which the C library makes safe after a fork.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // The parent's value stays in the parent: this is the child's copy.
                // SAFETY: the copy is read once; the parent's own is not touched by it.
                child(unsafe { std::ptr::read(&profiler) });
            }
            let mut status = -1;
            // SAFETY: the child is this process's and `status` takes the result.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            if status != 0 {
                break;
            }
            n_fine += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(profiler);
    println!(
        "fine={n_fine}\nchildren={N_CHILDREN}\nchild_block={CHILD_BLOCK}\npid={}",
        std::process::id()
    );
}
