//! The assertion macros: forms, hygiene, and what becomes of their operands.

use crate::support::{build, in_process, run};
use std::cell::Cell;
use std::process::Command;

macro_rules! forms {
    () => {
        #[test]
        fn conditions_that_hold_cost_nothing_and_say_nothing() {
            let _turn = in_process();
            let _profiler = dhat::Profiler::builder().testing().build();
            let n = 3;
            dhat::assert!(n == 3);
            dhat::assert!(n == 3, "a message");
            dhat::assert!(n == 3, "{} {n} {n:>width$}", 1, width = n);
            dhat::assert_eq!(n, 3);
            dhat::assert_eq!(n, 3,);
            dhat::assert_eq!(n, 3, "{}", n);
            dhat::assert_ne!(n, 4);
            dhat::assert_ne!(n, 4, "{}", n);
            dhat::assert_eq!(&[1, 2][..], vec![1, 2]);
        }

        #[test]
        fn an_assertion_is_a_unit_expression() {
            let _turn = in_process();
            let _profiler = dhat::Profiler::builder().testing().build();
            let () = dhat::assert!(true);
            let pass = || dhat::assert_eq!(1, 1);
            let _: () = match 1 {
                1 => dhat::assert_ne!(1, 2),
                _ => pass(),
            };
        }

        #[test]
        fn an_assertion_may_be_brought_into_scope() {
            use dhat::assert as check;
            use dhat::assert_eq as check_eq;
            let _turn = in_process();
            let _profiler = dhat::Profiler::builder().testing().build();
            check!(true);
            check_eq!(2, 2);
        }

        #[test]
        fn operands_are_borrowed() {
            let _turn = in_process();
            let _profiler = dhat::Profiler::builder().testing().build();
            let (left, right) = (String::from("a"), String::from("a"));
            dhat::assert_eq!(left, right);
            std::assert_eq!(left, right);
        }
    };
}

mod upstream {
    use super::*;
    use dhat_upstream as dhat;
    forms!();
}

mod ours {
    use super::*;
    forms!();

    /// Takes the place of the standard macro, as a program may have it.
    mod in_place_of_std {
        use dhat::{assert, assert_eq, assert_ne};

        #[test]
        fn the_macros_may_shadow_those_of_std() {
            let _turn = super::in_process();
            let _profiler = dhat::Profiler::builder().testing().build();
            assert!(true);
            assert_eq!(1, 1);
            assert_ne!(1, 2);
        }
    }

    #[test]
    fn trailing_commas_are_fine() {
        let _turn = in_process();
        let _profiler = dhat::Profiler::builder().testing().build();
        dhat::assert!(true,);
        dhat::assert!(true, "a message",);
        dhat::assert_eq!(1, 1, "a message",);
        dhat::assert_ne!(1, 2,);
        dhat::assert_ne!(1, 2, "{}", 3,);
    }

    #[test]
    fn operands_are_evaluated_once() {
        let _turn = in_process();
        let n_calls = Cell::new(0);
        let next = || {
            n_calls.set(n_calls.get() + 1);
            n_calls.get()
        };
        {
            let _profiler = dhat::Profiler::builder().testing().build();
            dhat::assert_eq!(next(), 1);
            dhat::assert_ne!(next(), 1);
            dhat::assert!(next() == 3);
        }
        let dir = crate::support::fresh_dir();
        let _profiler = dhat::Profiler::builder()
            .testing()
            .file_name(dir.join("profile.json"))
            .build();
        let failing = std::panic::AssertUnwindSafe(|| dhat::assert_eq!(next(), 0));
        dhat::assert_is_panic(
            failing,
            "dhat: assertion failed: `(left == right)`\n  left: `4`,\n right: `0`",
        );
        std::assert_eq!(n_calls.get(), 4);
    }

    #[test]
    fn conditions_may_ask_for_stats() {
        let _turn = in_process();
        let _profiler = dhat::Profiler::builder().testing().build();
        dhat::assert!(dhat::HeapStats::get().total_blocks == 0);
        dhat::assert_eq!(dhat::HeapStats::get().curr_bytes, 0);
        dhat::assert_ne!(dhat::HeapStats::get().max_bytes, 1);
    }

    #[test]
    fn names_of_the_program_do_not_collide() {
        let _turn = in_process();
        let _profiler = dhat::Profiler::builder().testing().build();
        let (left, right, left_val, right_val, cond) = (1, 1, 2, 2, true);
        dhat::assert_eq!(left, right);
        dhat::assert_eq!(left_val, right_val);
        dhat::assert_ne!(left, right_val);
        dhat::assert!(cond);
        dhat::assert!(cond, "{left} {right}");
    }
}

#[test]
fn macros_work_renamed_and_through_a_third_crate_and_without_a_prelude() {
    let program = build("dev", &["--features", "oracle", "--bin", "renamed"], &[]).join("renamed");
    run(Command::new(program)).succeeded();
}
