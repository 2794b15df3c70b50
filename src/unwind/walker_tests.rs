//! The walker beside the `backtrace` crate, which uses libgcc's unwinder: for the same call the frames must be equal.

use super::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::panic::catch_unwind;
use std::process::Command;

/// The frames of one call as both unwinders see them, without the function that captured them and what it called.
#[derive(Debug, Default)]
struct Stacks {
    ours: Vec<usize>,
    theirs: Vec<usize>,
}

/// Holds off other tests that need rules to stay cached, or that start module generations.
pub(super) fn serial() -> std::sync::MutexGuard<'static, ()> {
    static SERIAL: std::sync::Mutex<()> = std::sync::Mutex::new(());
    SERIAL
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

thread_local! {
    /// What callbacks, handlers and destructors captured.
    static CAPTURED: RefCell<Vec<Stacks>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn capture() -> Stacks {
    // Once: each time would notice what another test unloads.
    static PREPARED: std::sync::Once = std::sync::Once::new();
    PREPARED.call_once(prepare);
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

/// Gives each walk a new number, and all numbers stay current until told otherwise.
#[derive(Default)]
struct Numbers {
    stacks: RefCell<Vec<(Vec<usize>, bool)>>,
    first_current: Cell<u32>,
}

impl StackIds for Numbers {
    fn is_current(&self, id: u32) -> bool {
        id >= self.first_current.get()
    }

    fn intern(&self, frames: &[usize], may_go: bool) -> u32 {
        let mut stacks = self.stacks.borrow_mut();
        stacks.push((frames.to_vec(), may_go));
        stacks.len() as u32 - 1
    }
}

#[inline(never)]
fn id_here(tracer: &Tracer, depth: Depth, ids: &Numbers) -> u32 {
    black_box(tracer.stack_id(Registers::here(), depth, ids))
}

#[test]
fn memo_knows_a_stack_again_and_tells_call_sites_apart() {
    let _serial = serial();
    prepare();
    let (tracer, ids) = (Tracer::new(), Numbers::default());
    for depth in [Depth::AtMost(10), Depth::Unlimited] {
        let first = ids.stacks.borrow().len() as u32;
        // Not unrolled: each call site must be one.
        for _ in 0..black_box(3) {
            let call = || id_here(&tracer, depth, &ids);
            std::assert_eq!(call(), first);
            std::assert_eq!(id_here(&tracer, depth, &ids), first + 1);
            recurse(3, &mut || {
                std::assert_eq!(id_here(&tracer, depth, &ids), first + 2)
            });
            recurse(4, &mut || {
                std::assert_eq!(id_here(&tracer, depth, &ids), first + 3)
            });
        }
        ids.first_current.set(first + 4);
    }
    tracer.release();
    let n_walks = ids.stacks.borrow().len();
    (0..2).for_each(|_| _ = id_here(&tracer, Depth::AtMost(10), &ids));
    std::assert_eq!(
        ids.stacks.borrow().len(),
        n_walks + 2,
        "no memo after release"
    );
    let may_go = ids.stacks.borrow().iter().any(|(_, may_go)| *may_go);
    std::assert!(!may_go, "the program and the C library stay");
}

type Callback = extern "C" fn(*mut c_void);

/// Builds a shared library of `source` and keeps it loaded.
fn load_c(name: &str, source: &str) -> *mut c_void {
    let dir = std::env::temp_dir().join(format!("walker-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (c_file, library) = (
        dir.join(format!("{name}.c")),
        dir.join(format!("lib{name}.so")),
    );
    std::fs::write(&c_file, source).unwrap();
    let status = Command::new("gcc")
        .args(["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"])
        .args(["-falign-functions=1", "-shared", "-fPIC", "-o"])
        .args([&library, &c_file])
        .status()
        .unwrap();
    std::assert!(status.success());
    let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string, and the library has no initialisers.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    std::assert!(!handle.is_null());
    std::fs::remove_dir_all(dir).unwrap();
    handle
}

fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the handle is of a loaded library.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    std::assert!(!symbol.is_null(), "{name:?}");
    symbol
}

fn call_through(handle: *mut c_void, name: &str) {
    // SAFETY: each C function that the tests define has this type.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(Callback, *mut c_void, c_int) -> c_int>(
            symbol(handle, name),
        )
    };
    black_box(function(
        capture_callback,
        std::ptr::null_mut(),
        black_box(100),
    ));
}

const C_SOURCE: &str = r#"
#include <alloca.h>
#include <setjmp.h>
#include <stdlib.h>
typedef void (*callback)(void *);
static void *volatile sink;
int plain(callback f, void *data, int n) {
    volatile char room[300];
    room[n] = 1;
    f(data);
    return room[n];
}
int with_alloca(callback f, void *data, int n) {
    char *room = alloca(n * 16);
    sink = room;
    f(data);
    return room[n] == 3;
}
__attribute__((force_align_arg_pointer))
int with_aligned_arguments(callback f, void *data, int n) {
    volatile char room[40];
    room[n % 40] = 1;
    f(data);
    return room[n % 40];
}
int with_aligned_locals(callback f, void *data, int n) {
    __attribute__((aligned(64))) char room[128];
    sink = room;
    f(data);
    return room[n] == 3;
}
int with_aligned_locals_and_alloca(callback f, void *data, int n) {
    __attribute__((aligned(64))) char room[128];
    char *more = alloca(n);
    sink = room;
    sink = more;
    f(data);
    return room[n] + more[n - 1] == 3;
}
int with_huge_locals(callback f, void *data, int n) {
    char room[200000];
    sink = room;
    f(data);
    return room[n] == 3;
}
static jmp_buf back;
__attribute__((noreturn, noinline)) static void leave(callback f, void *data) {
    f(data);
    longjmp(back, 1);
}
__attribute__((noinline)) static void ends_in_call(callback f, void *data) {
    leave(f, data);
}
int through_noreturn(callback f, void *data, int n) {
    if (setjmp(back) == 0)
        ends_in_call(f, data);
    return n;
}
static int compare(const void *left, const void *right) {
    (*(callback *)left)(0);
    return 0;
}
int through_qsort(callback f, void *data, int n) {
    callback items[2] = {f, f};
    qsort(items, 2, sizeof *items, compare);
    return n;
}
"#;

#[test]
fn c_code_without_frame_pointers_is_walked() {
    let handle = load_c("through", C_SOURCE);
    let names = [
        "plain",
        "with_alloca",
        "with_aligned_arguments",
        "with_aligned_locals",
        "with_aligned_locals_and_alloca",
        "with_huge_locals",
        "through_noreturn",
        "through_qsort",
    ];
    for name in names {
        call_through(handle, name);
        let all = take_captured();
        std::assert!(!all.is_empty(), "{name}");
        for stacks in all {
            std::assert_eq!(stacks.ours, stacks.theirs, "{name}: {stacks:x?}");
            std::assert!(stacks.ours.len() > 5);
        }
    }
}

#[test]
fn coroutines_are_walked_into_their_resumer_and_further() {
    let mut coroutine = corosensei::Coroutine::new(|yielder, ()| {
        let mut all = vec![capture()];
        yielder.suspend(());
        recurse(5, &mut || all.push(capture()));
        let mut inner = corosensei::Coroutine::new(|_: &corosensei::Yielder<(), ()>, ()| capture());
        all.extend(inner.resume(()).as_return());
        all
    });
    coroutine.resume(()).as_yield().unwrap();
    let all = recurse_and_return(3, &mut || coroutine.resume(()).as_return());
    let all = all.unwrap();
    std::assert_eq!(all.len(), 3);
    all.iter().for_each(|stacks| check_equal(stacks, 8));
}

#[inline(never)]
fn recurse_and_return<T>(n: usize, then: &mut dyn FnMut() -> T) -> T {
    if n == 0 {
        then()
    } else {
        black_box(recurse_and_return(black_box(n - 1), then))
    }
}

#[test]
fn grown_stacks_are_walked_into_the_stacks_before_them() {
    #[inline(never)]
    fn descend(n: usize, grows: bool) -> Stacks {
        let next = || match n {
            0 => capture(),
            _ => black_box(descend(n - 1, grows)),
        };
        if grows {
            stacker::grow(128 << 10, next)
        } else {
            stacker::maybe_grow(64 << 10, 256 << 10, next)
        }
    }
    check_equal(&descend(0, true), 5);
    check_equal(&descend(30, true), 60);
    check_equal(&descend(300, false), 300);
    let thread = std::thread::spawn(|| descend(3, true));
    check_equal(&thread.join().unwrap(), 10);
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs `handler` for `signal`, with `SA_ONSTACK` or 0.
fn on_signal(signal: c_int, handler: Handler, stack_flag: c_int) {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | stack_flag;
    // SAFETY: the action is complete, and the handler has the type that SA_SIGINFO asks for.
    let failed = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    std::assert_eq!(failed, 0);
}

/// Runs `then` with an alternate signal stack for this thread.
fn with_signal_stack(then: impl FnOnce()) {
    let mut memory = vec![0_u64; 32 << 10];
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: size_of_val(memory.as_slice()),
    };
    let mut old = stack;
    // SAFETY: the memory outlives its use as a stack, which ends below.
    std::assert_eq!(unsafe { libc::sigaltstack(&stack, &mut old) }, 0);
    then();
    // SAFETY: the old stack is still there.
    std::assert_eq!(unsafe { libc::sigaltstack(&old, std::ptr::null_mut()) }, 0);
}

#[test]
fn signal_handler_is_walked_into_the_interrupted_code() {
    extern "C" fn handler(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        capture_callback(std::ptr::null_mut());
    }
    // Not the small alternate stack that the standard library makes.
    on_signal(libc::SIGUSR2, handler, 0);
    on_signal(libc::SIGUSR1, handler, libc::SA_ONSTACK);
    fn interrupt(signal: c_int) {
        // SAFETY: the handler for this signal is the one above.
        std::assert_eq!(unsafe { libc::raise(signal) }, 0);
    }
    interrupt(libc::SIGUSR2);
    with_signal_stack(|| interrupt(libc::SIGUSR1));
    with_signal_stack(|| {
        let mut coroutine = corosensei::Coroutine::new(|_: &corosensei::Yielder<(), ()>, ()| {
            interrupt(libc::SIGUSR1)
        });
        coroutine.resume(()).as_return().unwrap();
    });
    let all = take_captured();
    std::assert_eq!(all.len(), 3);
    all.iter().for_each(|stacks| check_equal(stacks, 7));
}

#[test]
fn code_interrupted_at_its_first_instruction_is_walked() {
    extern "C" fn handler(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        capture_callback(std::ptr::null_mut());
        // SAFETY: the third argument of such a handler is the interrupted context.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        // Over the two bytes of ud2.
        context.uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
    }
    let handle = load_c(
        "trap",
        r#"
        __asm__(".globl trap\n.type trap,@function\n"
                "before: .cfi_startproc\n.cfi_def_cfa_offset 4096\nnop\n.cfi_endproc\n"
                "trap: .cfi_startproc\nud2\nret\n.cfi_endproc\n");
        void trap(void);
        typedef void (*callback)(void *);
        int through_trap(callback f, void *data, int n) { trap(); return n; }
        "#,
    );
    on_signal(libc::SIGILL, handler, libc::SA_ONSTACK);
    with_signal_stack(|| call_through(handle, "through_trap"));
    check_equal(&take_captured()[0], 7);
}

#[test]
fn code_without_tables_is_walked_by_its_frame_records() {
    // push rbp; mov rbp,rsp; mov rax,rdi; mov rdi,rsi; call rax; pop rbp; ret
    let code: [u8; 14] = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3,
    ];
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping touches no existing memory.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) };
    std::assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page is writable and longer than the code.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len()) };
    // SAFETY: the code above calls its first argument with its second.
    let through =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(Callback, *mut c_void)>(page) };
    #[inline(never)]
    fn outer(through: extern "C" fn(Callback, *mut c_void)) -> Stacks {
        let from_here = capture();
        through(capture_callback, std::ptr::null_mut());
        black_box(from_here)
    }
    let from_here = outer(through);
    let stacks = take_captured().pop().unwrap();
    // libgcc has no table for the code and ends there; ours follows the frame record to the code that called it.
    let return_address = page as usize + 12;
    std::assert_eq!(stacks.theirs.last(), Some(&return_address));
    let code_idx = stacks.theirs.len() - 1;
    std::assert_eq!(stacks.ours[..=code_idx], stacks.theirs);
    let beyond = &stacks.ours[code_idx + 1..];
    std::assert!(
        beyond.len() >= from_here.ours.len(),
        "{stacks:x?} {from_here:x?}"
    );
    let n_common = from_here.ours.len() - 1;
    std::assert_eq!(
        beyond[beyond.len() - n_common..],
        from_here.ours[from_here.ours.len() - n_common..]
    );
}

#[test]
fn unloaded_library_keeps_its_name_and_starts_a_new_generation() {
    let _serial = serial();
    let handle = load_c("gone", C_SOURCE);
    refresh();
    let before = modules::generation();
    call_through(handle, "plain");
    let stacks = take_captured().pop().unwrap();
    let plain = symbol(handle, "plain") as usize;
    let pc = *stacks
        .ours
        .iter()
        .find(|&&pc| pc > plain && pc < plain + 200)
        .unwrap();
    // SAFETY: the handle is of a loaded library, none of whose functions is running.
    std::assert_eq!(unsafe { libc::dlclose(handle) }, 0);
    std::assert_eq!(modules::generation(), before, "not noticed before refresh");
    // What a new session begins with notices it as a refresh does.
    prepare();
    std::assert_eq!(modules::generation(), before + 1);
    std::assert_eq!(rule_cache::get(pc - 1), rule_cache::Cached::Miss);
    refresh();
    std::assert_eq!(
        modules::generation(),
        before + 1,
        "nothing was unloaded since"
    );

    let map = modules::covering(std::iter::empty());
    let at = map.locate(pc, before).unwrap();
    let module = &map.modules()[at.module_idx];
    std::assert!(module.path.to_str().unwrap().ends_with("libgone.so"));
    std::assert_eq!(at.svma as usize, pc - module.bias);
    std::assert_eq!(map.locate(pc, before + 1), None);
}
