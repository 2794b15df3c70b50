//! The macros through a renamed dependency, a third crate and no prelude; no crate is called `dhat` here.

#[global_allocator]
static ALLOC: dhat_ours::Alloc = dhat_ours::Alloc;

/// Nothing in scope but what the macros bring along.
mod bare {
    #![no_implicit_prelude]

    pub(crate) fn asserts() {
        let n_blocks = 1usize;
        ::dhat_ours::assert!(n_blocks == 1);
        ::dhat_ours::assert!(n_blocks == 1,);
        ::dhat_ours::assert!(n_blocks == 1, "of {n_blocks}");
        ::dhat_ours::assert_eq!(n_blocks, 1);
        ::dhat_ours::assert_eq!(n_blocks, 1,);
        ::dhat_ours::assert_eq!(n_blocks, 1, "of {}", n_blocks);
        ::dhat_ours::assert_ne!(n_blocks, 2);
        ::dhat_ours::assert_ne!(n_blocks, 2,);
        ::dhat_ours::assert_ne!(n_blocks, 2, "of {}", n_blocks,);
    }
}

/// Names that a careless macro would take for its own.
mod shadowed {
    #[allow(unused_macros)]
    macro_rules! panic {
        ($($arg:tt)*) => {
            compile_error!("the program's own panic")
        };
    }

    mod core {}
    mod std {}

    pub(crate) fn asserts() {
        let left = 1;
        let right = 2;
        let left_val = 3;
        ::dhat_ours::assert_eq!(left + right, left_val);
        ::dhat_ours::assert_ne!(right, left);
        ::dhat_ours::assert!(left < right, "{left_val}");
    }
}

mod used {
    use facade::{assert_eq, assert_ne, check};

    pub(crate) fn asserts() {
        check!(true);
        assert_eq!(1, 1);
        assert_ne!(1, 2);
        facade::check_blocks!(0);
        facade::memory::assert!(true);
    }
}

fn main() {
    let _profiler = facade::memory::Profiler::builder().testing().build();
    bare::asserts();
    shadowed::asserts();
    used::asserts();
}
