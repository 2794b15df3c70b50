//! What is shown of a stack.

use super::*;

/// The functions shown of one stack, innermost first, without addresses and places.
fn shown_functions(
    mode: Mode,
    frames: &[usize],
    builder_frames: Option<&[usize]>,
    symbols: &Symbols,
) -> Vec<String> {
    let points = vec![point(frames, builder_frames.is_some())];
    let report = build(&Material {
        snapshot: &snapshot(mode, points),
        modules: &[],
        symbols,
        builder_frames: builder_frames.unwrap_or_default(),
        trims: true,
    });
    let file = report.file;
    let texts = file.pps[0].fs.iter().map(|idx| &file.ftbl[*idx as usize]);
    texts
        .map(|text| {
            let (_, text) = text.split_once(": ").unwrap();
            text.rsplit_once(" (").unwrap().0.to_owned()
        })
        .collect()
}

/// The frame 0 of heap stacks in a build of rustc 1.95.
const OWN: &str = "<dhat::alloc::Alloc as core::alloc::global::GlobalAlloc>::alloc";

#[test]
fn of_the_allocator_frames_of_a_debug_build_the_outermost_stays() {
    let symbols = symbols(&[
        (1, &[OWN]),
        (2, &["__rustc::__rust_alloc"]),
        (
            3,
            &[
                "alloc::alloc::alloc",
                "<alloc::alloc::Global>::alloc_impl_runtime",
            ],
        ),
        (
            4,
            &[
                "<alloc::alloc::Global>::alloc_impl",
                "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
                "alloc::boxed::box_new_uninit",
            ],
        ),
        (5, &["<alloc::boxed::Box<[u8; 100]>>::new", "up::main"]),
    ]);
    std::assert_eq!(
        shown_functions(Mode::Heap, &[1, 2, 3, 4, 5], None, &symbols),
        [
            "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
            "alloc::boxed::box_new_uninit",
            "<alloc::boxed::Box<[u8; 100]>>::new",
            "up::main",
        ]
    );
}

#[test]
fn legacy_names_are_trimmed_alike() {
    let symbols = symbols(&[
        (
            1,
            &["<dhat::alloc::AllocOver<A> as core::alloc::global::GlobalAlloc>::alloc"],
        ),
        (2, &["__rg_alloc"]),
        (
            3,
            &[
                "alloc::alloc::alloc",
                "alloc::alloc::Global::alloc_impl",
                "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
                "alloc::alloc::exchange_malloc",
                "app::main",
            ],
        ),
    ]);
    std::assert_eq!(
        shown_functions(Mode::Heap, &[1, 2, 3], None, &symbols),
        ["alloc::alloc::exchange_malloc", "app::main"]
    );
}

#[test]
fn shims_and_own_frames_never_stay_where_no_allocator_frame_follows() {
    let symbols = symbols(&[
        (1, &[OWN]),
        (2, &["__rustc::__rust_alloc"]),
        (3, &["<alloc::raw_vec::RawVecInner>::try_allocate_in"]),
        (4, &["app::main"]),
    ]);
    std::assert_eq!(
        shown_functions(Mode::Heap, &[1, 2, 3, 4], None, &symbols),
        [
            "<alloc::raw_vec::RawVecInner>::try_allocate_in",
            "app::main"
        ]
    );
}

#[test]
fn first_frame_goes_by_its_place_even_with_another_name() {
    // Identical functions are merged under one name; a stripped program has none.
    let symbols = symbols(&[(1, &["app::merged"]), (3, &["app::main"])]);
    let shown = |frames: &[usize]| shown_functions(Mode::Heap, frames, None, &symbols);
    std::assert_eq!(shown(&[1, 3]), ["app::main"]);
    std::assert_eq!(shown(&[0x99, 3]), ["app::main"]);
}

#[test]
fn program_function_that_the_allocator_method_was_inlined_into_stays() {
    let symbols = symbols(&[(
        1,
        &[
            "dhat::hook::record",
            OWN,
            "__rustc::__rust_alloc",
            "alloc::alloc::alloc",
            "app::main",
        ],
    )]);
    std::assert_eq!(
        shown_functions(Mode::Heap, &[1], None, &symbols),
        ["alloc::alloc::alloc", "app::main"]
    );
}

#[test]
fn only_the_contiguous_run_at_the_top_is_trimmed() {
    let symbols = symbols(&[
        (1, &[OWN]),
        (2, &["alloc::alloc::alloc"]),
        (3, &["app::arena::grow"]),
        (
            4,
            &["<alloc::alloc::Global as core::alloc::Allocator>::grow"],
        ),
        (5, &["<alloc::alloc::Global as app::Arena>::make"]),
        (6, &["app::__rust_alloc"]),
    ]);
    let shown = |frames: &[usize]| shown_functions(Mode::Heap, frames, None, &symbols);
    std::assert_eq!(shown(&[1, 2, 3, 4]).len(), 3);
    std::assert_eq!(
        shown(&[1, 5, 6])[0],
        "<alloc::alloc::Global as app::Arena>::make"
    );
    std::assert_eq!(shown(&[1, 6]), ["app::__rust_alloc"]);
}

#[test]
fn stack_of_nothing_but_allocator_frames_keeps_its_last() {
    let symbols = symbols(&[(1, &[OWN]), (2, &["__rustc::__rust_alloc"])]);
    let shown = |frames: &[usize]| shown_functions(Mode::Heap, frames, None, &symbols);
    std::assert_eq!(shown(&[1, 2]), ["__rustc::__rust_alloc"]);
    std::assert_eq!(shown(&[1]).len(), 1);
}

#[test]
fn frames_shared_with_the_builder_go() {
    let symbols = symbols(&[
        (1, &[OWN]),
        (2, &["app::work"]),
        (11, &["app::main"]),
        (12, &["std::rt::lang_start"]),
        (13, &["_start"]),
    ]);
    // Address 10 is the call of the builder in main, 11 another call in main.
    let builder = [9, 10, 12, 13];
    let shown = |frames: &[usize], builder| shown_functions(Mode::Heap, frames, builder, &symbols);
    std::assert_eq!(
        shown(&[1, 2, 11, 12, 13], Some(&builder)),
        ["app::work", "app::main"]
    );
    // Another thread's stack keeps what it does not share by its tag.
    std::assert_eq!(shown(&[1, 2, 11, 12, 13], None).len(), 4);
}

#[test]
fn stack_cut_at_its_depth_loses_what_it_shares() {
    let symbols = symbols(&[(1, &[OWN]), (2, &["app::work"]), (11, &["app::main"])]);
    let builder = [9, 10, 12, 13, 14, 15];
    let shown = |frames: &[usize]| shown_functions(Mode::Heap, frames, Some(&builder), &symbols);
    std::assert_eq!(shown(&[1, 2, 11, 12, 13]), ["app::work", "app::main"]);
    std::assert_eq!(shown(&[1, 2, 11, 12]), ["app::work", "app::main"]);
    std::assert_eq!(shown(&[1, 2, 11]), ["app::work", "app::main"]);
}

#[test]
fn cut_stack_of_a_recursion_keeps_its_frames() {
    let symbols = symbols(&[(1, &[OWN]), (7, &["app::recurse"])]);
    let shown =
        |builder: &[usize]| shown_functions(Mode::Heap, &[1, 7, 7, 7], Some(builder), &symbols);
    std::assert_eq!(shown(&[9, 7, 7, 12, 13]).len(), 3);
    std::assert_eq!(shown(&[9, 7, 12, 13]).len(), 3);
}

#[test]
fn wholly_shared_stack_keeps_its_first_program_frame() {
    let symbols = symbols(&[(1, &[OWN]), (12, &["app::main"]), (13, &["_start"])]);
    std::assert_eq!(
        shown_functions(Mode::Heap, &[1, 12, 13], Some(&[9, 12, 13]), &symbols),
        ["app::main"]
    );
}

#[test]
fn ad_hoc_stack_begins_with_the_event_function() {
    let symbols = symbols(&[
        (1, &["dhat::hook::event", "dhat::ad_hoc::ad_hoc_event"]),
        (2, &["alloc::alloc::alloc"]),
        (3, &["app::main"]),
        (4, &["_start"]),
        (5, &["dhat::ad_hoc_event", "app::inlined"]),
    ]);
    let shown = |frames: &[usize], builder: &[usize]| {
        shown_functions(Mode::AdHoc, frames, Some(builder), &symbols)
    };
    std::assert_eq!(
        shown(&[1, 2, 3, 4], &[9, 4]),
        ["dhat::ad_hoc_event", "alloc::alloc::alloc", "app::main"]
    );
    std::assert_eq!(
        shown(&[5, 4], &[9, 4]),
        ["dhat::ad_hoc_event", "app::inlined"]
    );
}
