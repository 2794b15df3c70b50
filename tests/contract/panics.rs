//! The exact text of every panic, in this process.

use crate::support::{fresh_dir, in_process};

macro_rules! texts {
    () => {
        /// A profiler whose failed assertion saves the profile where nobody minds.
        fn testing() -> dhat::ProfilerBuilder {
            let dir = fresh_dir();
            dhat::Profiler::builder()
                .testing()
                .file_name(dir.join("profile.json"))
        }

        #[test]
        fn one_profiler_at_a_time() {
            let _turn = in_process();
            const TEXT: &str = "dhat: creating a profiler while a profiler is already running";
            for first in [testing(), testing().ad_hoc()] {
                let _profiler = first.build();
                dhat::assert_is_panic(dhat::Profiler::new_heap, TEXT);
                dhat::assert_is_panic(dhat::Profiler::new_ad_hoc, TEXT);
            }
        }

        #[test]
        fn a_profiler_that_asserted_is_in_the_way_until_it_is_dropped() {
            let _turn = in_process();
            let profiler = testing().build();
            dhat::assert_is_panic(|| dhat::assert!(false), "dhat: assertion failed: false");
            dhat::assert_is_panic(
                dhat::Profiler::new_heap,
                "dhat: creating a profiler while a profiler is already running",
            );
            drop(profiler);
            drop(testing().build());
        }

        #[test]
        fn without_a_profiler() {
            let _turn = in_process();
            dhat::assert_is_panic(
                dhat::HeapStats::get,
                "dhat: getting heap stats when no profiler is running",
            );
            dhat::assert_is_panic(
                dhat::AdHocStats::get,
                "dhat: getting ad hoc stats when no profiler is running",
            );
            const ASSERTING: &str = "dhat: asserting when no profiler is running";
            dhat::assert_is_panic(|| dhat::assert!(true), ASSERTING);
            dhat::assert_is_panic(|| dhat::assert_eq!(1, 1), ASSERTING);
            dhat::assert_is_panic(|| dhat::assert_ne!(1, 2), ASSERTING);
            dhat::assert_is_panic(|| dhat::check_assert_condition(|| true), ASSERTING);
        }

        #[test]
        fn in_the_other_mode() {
            let _turn = in_process();
            let profiler = testing().build();
            dhat::assert_is_panic(
                dhat::AdHocStats::get,
                "dhat: getting ad hoc stats while doing heap profiling",
            );
            drop(profiler);
            let _profiler = testing().ad_hoc().build();
            dhat::assert_is_panic(
                dhat::HeapStats::get,
                "dhat: getting heap stats while doing ad hoc profiling",
            );
        }

        #[test]
        fn outside_testing_mode() {
            let _turn = in_process();
            let file = fresh_dir().join("profile.json");
            let _profiler = dhat::Profiler::builder().file_name(&file).build();
            const TEXT: &str = "dhat: asserting while not in testing mode";
            dhat::assert_is_panic(|| dhat::assert!(true), TEXT);
            dhat::assert_is_panic(|| dhat::assert_eq!(1, 2), TEXT);
            dhat::assert_is_panic(|| dhat::assert_ne!(1, 1), TEXT);
            // Such a panic saves nothing.
            std::assert!(!file.exists());
        }

        #[test]
        fn after_an_assertion_failed() {
            let _turn = in_process();
            let _profiler = testing().build();
            dhat::assert_is_panic(|| dhat::assert!(false), "dhat: assertion failed: false");
            const ASSERTING: &str = "dhat: asserting after the profiler has asserted";
            dhat::assert_is_panic(|| dhat::assert!(true), ASSERTING);
            dhat::assert_is_panic(|| dhat::assert_eq!(1, 1), ASSERTING);
            dhat::assert_is_panic(|| dhat::assert_ne!(1, 2), ASSERTING);
            dhat::assert_is_panic(
                dhat::HeapStats::get,
                "dhat: getting heap stats after the profiler has asserted",
            );
            dhat::assert_is_panic(
                dhat::AdHocStats::get,
                "dhat: getting ad hoc stats after the profiler has asserted",
            );
        }

        #[test]
        fn of_failed_assertions() {
            let _turn = in_process();
            let each: [(fn(), &str); 6] = [
                (
                    || dhat::assert!(1 + 1 == 3),
                    "dhat: assertion failed: 1 + 1 == 3",
                ),
                (
                    || dhat::assert!(1 + 1 == 3, "extra {} {}", 1, "2"),
                    "dhat: assertion failed: 1 + 1 == 3: extra 1 2",
                ),
                (
                    || dhat::assert_eq!("a", "b"),
                    "dhat: assertion failed: `(left == right)`\n  left: `\"a\"`,\n right: `\"b\"`",
                ),
                (
                    || dhat::assert_eq!(1, 2, "extra {}", 3),
                    "dhat: assertion failed: `(left == right)`\n  left: `1`,\n right: `2`: extra 3",
                ),
                (
                    || dhat::assert_ne!(1, 1),
                    "dhat: assertion failed: `(left != right)`\n  left: `1`,\n right: `1`",
                ),
                (
                    || dhat::assert_ne!(1, 1, "extra"),
                    "dhat: assertion failed: `(left != right)`\n  left: `1`,\n right: `1`: extra",
                ),
            ];
            for (failing, text) in each {
                let _profiler = testing().build();
                dhat::assert_is_panic(failing, text);
            }
        }

        #[test]
        fn of_the_condition_leaves_the_profiler_running() {
            let _turn = in_process();
            let _profiler = testing().build();
            dhat::assert_is_panic(|| dhat::assert!(std::panic!("mine")), "mine");
            dhat::assert!(true);
            std::assert_eq!(dhat::HeapStats::get().curr_blocks, 0);
        }
    };
}

mod ours {
    use super::{fresh_dir, in_process};
    texts!();
}

mod upstream {
    use super::{fresh_dir, in_process};
    use dhat_upstream as dhat;
    texts!();
}
