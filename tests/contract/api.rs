//! Signatures and traits, hidden items included, pinned for both crates by one expansion.

use crate::support::in_process;

macro_rules! signatures {
    () => {
        use std::alloc::GlobalAlloc;
        use std::fmt::Debug;
        use std::path::{Path, PathBuf};

        static ALLOC: dhat::Alloc = dhat::Alloc;

        #[test]
        fn functions_have_these_types() {
            let _: fn() -> dhat::Profiler = dhat::Profiler::new_heap;
            let _: fn() -> dhat::Profiler = dhat::Profiler::new_ad_hoc;
            let _: fn() -> dhat::ProfilerBuilder = dhat::Profiler::builder;
            let _: fn(&mut dhat::Profiler) -> String = dhat::Profiler::drop_and_get_memory_output;
            let _: fn(dhat::ProfilerBuilder) -> dhat::ProfilerBuilder =
                dhat::ProfilerBuilder::ad_hoc;
            let _: fn(dhat::ProfilerBuilder) -> dhat::ProfilerBuilder =
                dhat::ProfilerBuilder::testing;
            let _: fn(dhat::ProfilerBuilder) -> dhat::ProfilerBuilder =
                dhat::ProfilerBuilder::eprint_json;
            let _: fn(dhat::ProfilerBuilder, Option<usize>) -> dhat::ProfilerBuilder =
                dhat::ProfilerBuilder::trim_backtraces;
            let _: fn(dhat::ProfilerBuilder) -> dhat::Profiler = dhat::ProfilerBuilder::build;
            let _: fn() -> dhat::HeapStats = dhat::HeapStats::get;
            let _: fn() -> dhat::AdHocStats = dhat::AdHocStats::get;
            let _: fn(usize) = dhat::ad_hoc_event;
            let _: fn(fn() -> bool) -> bool = dhat::check_assert_condition::<fn() -> bool>;
            let _: fn(fn() -> u8, &str) = dhat::assert_is_panic::<u8, fn() -> u8>;
        }

        #[test]
        fn a_file_name_is_whatever_is_a_path() {
            fn accepts<P: AsRef<Path>>() -> fn(dhat::ProfilerBuilder, P) -> dhat::ProfilerBuilder {
                dhat::ProfilerBuilder::file_name::<P>
            }
            accepts::<&str>();
            accepts::<String>();
            accepts::<&Path>();
            accepts::<PathBuf>();
            accepts::<&std::ffi::OsStr>();
        }

        #[test]
        fn types_have_these_traits() {
            fn shared<T: Debug + Send + Sync + Unpin + 'static>() {}
            fn stats<T: Clone + Debug + PartialEq + Eq + Send + Sync + 'static>() {}
            shared::<dhat::Alloc>();
            shared::<dhat::Profiler>();
            shared::<dhat::ProfilerBuilder>();
            stats::<dhat::HeapStats>();
            stats::<dhat::AdHocStats>();
            let _: &dyn GlobalAlloc = &ALLOC;
        }

        #[test]
        fn the_allocator_is_a_constant_unit_value() {
            const CONST: dhat::Alloc = dhat::Alloc;
            static INSIDE: dhat::Alloc = dhat::Alloc;
            let dhat::Alloc = CONST;
            std::assert_eq!(format!("{INSIDE:?}"), "Alloc");
            let layout = std::alloc::Layout::new::<u64>();
            // SAFETY: the layout has a size.
            let block = unsafe { INSIDE.alloc(layout) };
            std::assert!(!block.is_null());
            // SAFETY: the block was allocated with this layout.
            unsafe { ALLOC.dealloc(block, layout) };
        }

        #[test]
        fn heap_stats_have_these_fields() {
            let _turn = in_process();
            let profiler = dhat::Profiler::builder().testing().build();
            let stats = dhat::HeapStats::get();
            std::assert_eq!(
                format!("{stats:?}"),
                "HeapStats { total_blocks: 0, total_bytes: 0, curr_blocks: 0, curr_bytes: 0, \
                 max_blocks: 0, max_bytes: 0 }"
            );
            std::assert_eq!(stats.clone(), stats);
            let dhat::HeapStats {
                total_blocks,
                total_bytes,
                curr_blocks,
                curr_bytes,
                max_blocks,
                max_bytes,
                ..
            } = stats;
            let _: [u64; 2] = [total_blocks, total_bytes];
            let _: [usize; 4] = [curr_blocks, curr_bytes, max_blocks, max_bytes];
            drop(profiler);
        }

        #[test]
        fn ad_hoc_stats_have_these_fields() {
            let _turn = in_process();
            let profiler = dhat::Profiler::builder().ad_hoc().testing().build();
            dhat::ad_hoc_event(usize::MAX);
            dhat::ad_hoc_event(0);
            let stats = dhat::AdHocStats::get();
            std::assert_eq!(
                format!("{stats:?}"),
                "AdHocStats { total_events: 2, total_units: 18446744073709551615 }"
            );
            std::assert_eq!(stats.clone(), stats);
            let dhat::AdHocStats {
                total_events,
                total_units,
                ..
            } = stats;
            let _: [u64; 2] = [total_events, total_units];
            drop(profiler);
        }

        #[test]
        fn a_panic_that_is_not_the_expected_one_is_told() {
            let caught = |f: fn()| {
                std::panic::catch_unwind(f)
                    .expect_err("a panic")
                    .downcast::<String>()
            };
            let other = caught(|| dhat::assert_is_panic(|| std::panic!("one"), "other"));
            std::assert!(other.unwrap().contains("one"));
            dhat::assert_is_panic(
                || dhat::assert_is_panic(|| (), "any"),
                "assert_is_panic: Not an error",
            );
            dhat::assert_is_panic(|| std::panic!("formatted {}", 1), "formatted 1");
        }
    };
}

mod ours {
    use super::in_process;
    signatures!();

    #[test]
    fn an_allocator_over_another_is_const_constructed() {
        static OVER: dhat::AllocOver<std::alloc::System> = dhat::AllocOver::new(std::alloc::System);
        const fn wraps<A>(inner: A) -> dhat::AllocOver<A> {
            dhat::AllocOver::new(inner)
        }
        let _: &dyn GlobalAlloc = &OVER;
        let _: dhat::AllocOver<std::alloc::System> = wraps(std::alloc::System);
    }
}

mod upstream {
    use super::in_process;
    use dhat_upstream as dhat;
    signatures!();
}
