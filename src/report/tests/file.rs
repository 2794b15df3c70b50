//! What the file holds.

use super::*;

fn module(path: &str, build_id: Option<&[u8]>) -> Module {
    Module {
        path: PathBuf::from(path),
        is_executable: build_id.is_some(),
        has_file: true,
        build_id: build_id.map(<[u8]>::to_vec),
        range: 0x5000..0x9000,
        bias: 0x4000,
        generations: (0, 0),
    }
}

/// Two points in three modules, of which one has no shown frame.
fn small_material() -> (Vec<ProgramPoint>, Vec<Module>, Symbols) {
    let modules = vec![
        module("/opt/app", Some(&[0x0a, 0xbc])),
        module("/lib/libunseen.so", None),
        module("/lib/libcuda.so.550.54.14", None),
    ];
    let mut symbols = symbols(&[
        (
            0x5010,
            &["<dhat::alloc::Alloc as core::alloc::global::GlobalAlloc>::alloc"],
        ),
        (0x5020, &[]),
        (0x5030, &[]),
    ]);
    let mut resolve = |avma: usize, module_idx: usize, frames: Vec<SourceFrame>| {
        let address = CodeAddress {
            avma,
            generation: 0,
        };
        let module = Some(ModuleAddress {
            module_idx,
            svma: avma as u64 - 0x4000,
        });
        symbols
            .by_address
            .insert(address, Resolved { module, frames });
    };
    let inlined = source("<app::Tree>::grow", "/home/me/app/src/tree.rs", 7, 9);
    let physical = source("app::main", "/home/me/app/src/main.rs", 20, 0);
    resolve(0x5020, 0, vec![inlined, physical]);
    resolve(0x5030, 2, Vec::new());
    let points = vec![
        point(&[0x5010, 0x5020], false),
        point(&[0x5010, 0x5030, 0x77], false),
    ];
    (points, modules, symbols)
}

fn json_of(mode: Mode, trims: bool) -> String {
    let (points, modules, symbols) = small_material();
    let mut report = build(&Material {
        snapshot: &snapshot(mode, points),
        modules: &modules,
        symbols: &symbols,
        builder_frames: &[],
        trims,
    });
    report.file.cmd = "app \"a b\"".to_owned();
    report.file.pid = 42;
    let mut json = Vec::new();
    report.file.write_to(&mut json).unwrap();
    String::from_utf8(json).unwrap()
}

#[test]
fn heap_file_has_exactly_these_bytes() {
    let pp = "\"tb\": 30,\n\"tbk\": 2,\n\"tl\": 5,\n\"mb\": 20,\n\"mbk\": 1,\n\"gb\": 10,\n\"gbk\": 1,\n\"eb\": 0,\n\"ebk\": 0,\n";
    let expected = format!(
        r#"{{
"dhatFileVersion": 2,
"mode": "rust-heap",
"verb": "Allocated",
"bklt": true,
"bkacc": false,
"tu": "µs",
"Mtu": "s",
"tuth": 10,
"cmd": "app \"a b\"",
"pid": 42,
"tg": 1500,
"te": 2000,
"pps": [
{{
{pp}"fs": [
1,
2
]
}},
{{
{pp}"fs": [
3,
4
]
}}
],
"ftbl": [
"[root]",
"0x5020: <app::Tree>::grow (app/src/tree.rs:7:9)",
"0x5020: app::main (app/src/main.rs:20:0)",
"0x5030: libcuda.so.550.54.14+0x1030 (???:0:0)",
"0x77: ??? (???:0:0)"
],
"modules": [
{{
"path": "/opt/app",
"build_id": "0abc",
"start": "0x5000",
"end": "0x9000",
"bias": "0x4000"
}},
{{
"path": "/lib/libcuda.so.550.54.14",
"build_id": null,
"start": "0x5000",
"end": "0x9000",
"bias": "0x4000"
}}
]
}}"#
    );
    std::assert_eq!(json_of(Mode::Heap, true), expected);
}

#[test]
fn ad_hoc_file_names_its_units_and_has_no_heap_fields() {
    let json = json_of(Mode::AdHoc, true);
    let head = r#"{
"dhatFileVersion": 2,
"mode": "rust-ad-hoc",
"verb": "Allocated",
"bklt": false,
"bkacc": false,
"bu": "unit",
"bsu": "units",
"bksu": "events",
"tu": "µs",
"Mtu": "s",
"cmd": "app \"a b\"",
"pid": 42,
"te": 2000,
"pps": [
{
"tb": 30,
"tbk": 2,
"fs": [
1,
2,
3
]
},
"#;
    std::assert!(json.starts_with(head), "{json}");
}

#[test]
fn untrimmed_stack_begins_with_the_allocator_method_by_its_public_path() {
    let json = json_of(Mode::Heap, false);
    let frame =
        "\"0x5010: <dhat::Alloc as core::alloc::global::GlobalAlloc>::alloc (src/x.rs:1:2)\"";
    std::assert!(json.contains(frame), "{json}");
}

#[test]
fn file_without_program_points_is_whole() {
    let empty = Symbols::default();
    let report = build(&Material {
        snapshot: &snapshot(Mode::Heap, Vec::new()),
        modules: &[],
        symbols: &empty,
        builder_frames: &[],
        trims: true,
    });
    std::assert!(report.file.pps.is_empty());
    std::assert_eq!(report.file.ftbl, ["[root]"]);
    std::assert_eq!(report.frames, FrameCounts::default());
}

#[test]
fn stacks_without_frames_share_one_placeholder_and_one_entry() {
    let empty = Symbols::default();
    let points = vec![point(&[], false), point(&[], true)];
    let report = build(&Material {
        snapshot: &snapshot(Mode::Heap, points),
        modules: &[],
        symbols: &empty,
        builder_frames: &[0x10],
        trims: true,
    });
    std::assert_eq!(report.file.pps.len(), 1);
    std::assert_eq!(&*report.file.pps[0].fs, [1]);
    std::assert_eq!(report.file.ftbl[1], "0x0: ??? (???:0:0)");
    std::assert_eq!(report.n_folded, 1);
}

#[test]
fn equal_stacks_after_trimming_are_folded() {
    let symbols = symbols(&[
        (1, &["dhat::alloc::x"]),
        (2, &["__rustc::__rust_alloc"]),
        (3, &["__rustc::__rust_realloc"]),
        (4, &["app::main"]),
    ]);
    let points = vec![point(&[1, 2, 4], false), point(&[1, 3, 4], false)];
    let report = build(&Material {
        snapshot: &snapshot(Mode::Heap, points),
        modules: &[],
        symbols: &symbols,
        builder_frames: &[],
        trims: true,
    });
    std::assert_eq!(report.file.pps.len(), 1);
    std::assert_eq!(report.file.pps[0].tb, 60);
    std::assert_eq!(report.n_folded, 1);
}

#[test]
fn same_text_in_two_generations_is_one_frame() {
    let mut symbols = symbols(&[(1, &["own"]), (2, &["app::main"])]);
    let at = |avma, generation| CodeAddress { avma, generation };
    for avma in [1, 2] {
        let again = symbols.by_address[&at(avma, 0)].clone();
        symbols.by_address.insert(at(avma, 1), again);
    }
    let mut later = point(&[1, 2], false);
    later.tag = StackTag {
        generation: 1,
        shares_builder: false,
    }
    .to_raw();
    let report = build(&Material {
        snapshot: &snapshot(Mode::Heap, vec![point(&[1, 2], false), later]),
        modules: &[],
        symbols: &symbols,
        builder_frames: &[],
        trims: true,
    });
    std::assert_eq!(report.file.ftbl.len(), 2);
    std::assert_eq!(report.file.pps.len(), 1);
}

#[test]
fn times_round_down_but_never_to_nothing() {
    std::assert_eq!(
        [0, 1, 999, 1_000, 1_999, 2_000].map(micros_at_least_one),
        [0, 1, 1, 1, 1, 2]
    );
    let empty = Symbols::default();
    let mut short = snapshot(Mode::Heap, vec![point(&[], false)]);
    short.points[0].lifetimes_ns = 0;
    (short.end_ns, short.gmax_ns) = (0, 0);
    let report = |snapshot: &Snapshot| {
        build(&Material {
            snapshot,
            modules: &[],
            symbols: &empty,
            builder_frames: &[],
            trims: true,
        })
        .file
    };
    let file = report(&short);
    std::assert_eq!((file.tg, file.te), (Some(0), 1));
    std::assert_eq!(file.pps[0].heap.as_ref().unwrap().tl, 1);
    (short.end_ns, short.gmax_ns) = (4_000, 9_000);
    let file = report(&short);
    std::assert_eq!((file.tg, file.te), (Some(9), 9));
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_unicode_are_shown_lossily() {
    let bytes = std::os::unix::ffi::OsStringExt::from_vec(b"a\xffb".to_vec());
    let args = ["app".into(), bytes, "c d".into()];
    std::assert_eq!(command(args.into_iter()), "app a\u{fffd}b c d");
}

/// Whether the text is `0xHEX: FUNCTION (FILE:LINE:COLUMN)`, as importers split it: the regular expression
/// `^0x[0-9a-f]+: (.+) \((.+):(\d+):(\d+)\)$`.
fn is_importable(text: &str) -> bool {
    let parts = || {
        let (ip, rest) = text.strip_prefix("0x")?.split_once(": ")?;
        let (function, place) = rest.strip_suffix(')')?.rsplit_once(" (")?;
        let (place, column) = place.rsplit_once(':')?;
        let (file, line) = place.rsplit_once(':')?;
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_hex = !ip.is_empty()
            && ip
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_line = !text.contains(['\n', '\r', '\u{2028}', '\u{2029}']);
        Some(
            is_hex
                && !function.is_empty()
                && !file.is_empty()
                && is_number(line)
                && is_number(column)
                && is_line,
        )
    };
    parts().unwrap_or(false)
}

#[test]
fn every_frame_has_the_form_that_importers_split() {
    std::assert!(!is_importable("0x1: f (a.rs:1)"));
    std::assert!(!is_importable("f (a.rs:1:2)"));
    let (mut points, modules, mut symbols) = small_material();
    let hostile = [
        source("a (b): c (d:1:2)", "with (paren):7/a\nb.rs", 3, 4),
        source("line\nbreak", "", 0, 0),
        SourceFrame::default(),
    ];
    for (avma, frame) in hostile.into_iter().enumerate() {
        let address = CodeAddress {
            avma: 0x100 + avma,
            generation: 0,
        };
        let resolved = Resolved {
            module: None,
            frames: vec![frame],
        };
        symbols.by_address.insert(address, resolved);
    }
    points.push(point(&[0x5010, 0x100, 0x101, 0x102], false));
    points.push(point(&[], false));
    let report = build(&Material {
        snapshot: &snapshot(Mode::Heap, points),
        modules: &modules,
        symbols: &symbols,
        builder_frames: &[],
        trims: true,
    });
    let (root, frames) = report.file.ftbl.split_first().unwrap();
    std::assert_eq!(root, "[root]");
    std::assert_eq!(frames.len(), 8);
    for frame in frames {
        std::assert!(is_importable(frame), "{frame:?}");
    }
    let expected = FrameCounts {
        n_frames: 7,
        n_no_symbol: 3,
        n_module_only: 1,
    };
    std::assert_eq!(report.frames, expected);
}
