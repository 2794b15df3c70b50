//! Assertions about the figures of a session: the macros and what they expand to.

#![forbid(unsafe_code)]

use crate::profiler;
use std::panic::UnwindSafe;

/// Asserts that an expression is true.
///
/// Like [`std::assert!`] it takes format arguments. The operand is evaluated once; what it allocates is not counted. On
/// failure the profile is saved and the summary printed before the panic.
///
/// # Panics
/// - `dhat: assertion failed: <expression>`, followed by `: <message>` if there is one
/// - `dhat: asserting when no profiler is running`
/// - `dhat: asserting while not in testing mode`
/// - `dhat: asserting after the profiler has asserted`
///
/// # Examples
/// ```
/// let _profiler = dhat::Profiler::builder().testing().build();
/// let stats = dhat::HeapStats::get();
/// dhat::assert!(stats.total_bytes < 1_000_000);
/// dhat::assert!(stats.curr_blocks < 10, "{} blocks are live", stats.curr_blocks);
/// ```
#[macro_export]
macro_rules! assert {
    ($cond:expr $(,)?) => ({
        if $crate::check_assert_condition(|| $cond) {
            $crate::__std::panic!("dhat: assertion failed: {}", $crate::__std::stringify!($cond));
        }
    });
    ($cond:expr, $($arg:tt)+) => ({
        if $crate::check_assert_condition(|| $cond) {
            $crate::__std::panic!(
                "dhat: assertion failed: {}: {}",
                $crate::__std::stringify!($cond),
                $crate::__std::format_args!($($arg)+)
            );
        }
    });
}

/// Asserts that two expressions are equal.
///
/// Like [`std::assert_eq!`] it takes format arguments. Each operand is evaluated once; what it allocates is not counted. On
/// failure the profile is saved and the summary printed before the panic.
///
/// # Panics
/// - ``dhat: assertion failed: `(left == right)` ``, followed by both values and the message if there is one
/// - as [`dhat::assert!`](crate::assert!) when the Profiler cannot assert
///
/// # Examples
/// ```
/// let _profiler = dhat::Profiler::builder().testing().build();
/// let stats = dhat::HeapStats::get();
/// dhat::assert_eq!(stats.curr_blocks, 0);
/// dhat::assert_eq!(stats.curr_bytes, 0, "after {} blocks", stats.total_blocks);
/// ```
#[macro_export]
macro_rules! assert_eq {
    ($left:expr, $right:expr $(,)?) => ({
        $crate::__assert_compare!("(left == right)", ==, $left, $right)
    });
    ($left:expr, $right:expr, $($arg:tt)+) => ({
        $crate::__assert_compare!("(left == right)", ==, $left, $right, $($arg)+)
    });
}

/// Asserts that two expressions differ.
///
/// Like [`std::assert_ne!`] it takes format arguments. Each operand is evaluated once; what it allocates is not counted. On
/// failure the profile is saved and the summary printed before the panic.
///
/// # Panics
/// - ``dhat: assertion failed: `(left != right)` ``, followed by both values and the message if there is one
/// - as [`dhat::assert!`](crate::assert!) when the Profiler cannot assert
///
/// # Examples
/// ```
/// #[global_allocator]
/// static ALLOC: dhat::Alloc = dhat::Alloc;
/// # fn main() {
/// let _profiler = dhat::Profiler::builder().testing().build();
/// let boxed = Box::new(1);
/// dhat::assert_ne!(dhat::HeapStats::get().curr_bytes, 0);
/// # drop(boxed);
/// # }
/// ```
#[macro_export]
macro_rules! assert_ne {
    ($left:expr, $right:expr $(,)?) => ({
        $crate::__assert_compare!("(left != right)", !=, $left, $right)
    });
    ($left:expr, $right:expr, $($arg:tt)+) => ({
        $crate::__assert_compare!("(left != right)", !=, $left, $right, $($arg)+)
    });
}

#[doc(hidden)]
#[macro_export]
macro_rules! __assert_compare {
    ($text:literal, $op:tt, $left:expr, $right:expr $(, $($arg:tt)+)?) => ({
        let mut values = $crate::__std::option::Option::None;
        if $crate::check_assert_condition(|| match (&$left, &$right) {
            (left, right) => {
                let holds = *left $op *right;
                if !holds {
                    values = $crate::__std::option::Option::Some((
                        $crate::__std::format!("{:?}", left),
                        $crate::__std::format!("{:?}", right),
                    ));
                }
                holds
            }
        }) {
            let (left, right) = $crate::__std::option::Option::unwrap_or_default(values);
            $crate::__std::panic!(
                $crate::__std::concat!(
                    "dhat: assertion failed: `", $text, "`\n  left: `{}`,\n right: `{}`{}"
                ),
                left,
                right,
                $crate::__message!($($($arg)+)?),
            );
        }
    });
}

#[doc(hidden)]
#[macro_export]
macro_rules! __message {
    () => ("");
    ($($arg:tt)+) => ($crate::__std::format_args!(": {}", $crate::__std::format_args!($($arg)+)));
}

/// Evaluates a condition for the assertion macros. True when it failed: then the profile was saved and the caller panics.
///
/// No lock is held and nothing is counted while `cond` runs.
///
/// # Panics
/// As [`assert!`](crate::assert!), when the Profiler cannot assert.
#[doc(hidden)]
pub fn check_assert_condition<F>(cond: F) -> bool
where
    F: FnOnce() -> bool,
{
    profiler::check_assertion(cond)
}

/// Checks that `f` panics with the text `expected`.
///
/// # Panics
/// If it does not.
#[doc(hidden)]
pub fn assert_is_panic<R, F: FnOnce() -> R + UnwindSafe>(f: F, expected: &str) {
    let Err(payload) = std::panic::catch_unwind(f) else {
        panic!("assert_is_panic: Not an error")
    };
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or(payload.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(actual) => std::assert_eq!(expected, actual),
        None => panic!("assert_is_panic: Not a string: {payload:?}"),
    }
}
