//! Damaged and malicious files: no panic, bounded time, and what is not damaged keeps its names.

use super::tests::Dir;
use super::*;
use object::{Object, ObjectSection, ObjectSymbol};
use std::fs;
use std::time::{Duration, Instant};

/// A small generator of pseudo-random numbers (xorshift64*, Vigna 2016), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// Where a section lies in its file.
fn section(bytes: &[u8], name: &str) -> Option<std::ops::Range<usize>> {
    let file = object::File::parse(bytes).unwrap();
    let (offset, size) = file.section_by_name(name)?.file_range()?;
    Some(offset as usize..(offset + size) as usize)
}

/// Code addresses of a file, 8 bytes apart.
fn probes(bytes: &[u8]) -> Vec<u64> {
    let file = object::File::parse(bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    (text.address()..text.address() + text.size())
        .step_by(8)
        .collect()
}

fn resolve_bytes(path: &Path, bytes: &[u8], probes: &[u64]) -> ModuleNames {
    // Never written over while mapped: a new file each time.
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
    let mut damaged = Module {
        path: path.to_owned(),
        is_executable: false,
        has_file: true,
        build_id: None,
        range: 0..usize::MAX,
        bias: 0,
        generations: (0, 0),
    };
    if let Ok(file) = object::File::parse(bytes) {
        damaged.build_id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
    }
    Resolver::with_debug_root("/nowhere".into()).resolve(&damaged, probes)
}

#[test]
fn damaged_files_cost_their_names_only() {
    let mut random = Random(0x5eed_0000_0000_0001);
    let begin = Instant::now();
    for (compiler, args) in [
        ("cc", "-gdwarf-4"),
        ("c++", "-gdwarf-5"),
        ("cc", "-gdwarf-5 -gz=zlib"),
        ("c++", "-gdwarf-5 -gsplit-dwarf"),
    ] {
        let dir = Dir::new();
        let whole = fs::read(dir.c(compiler, args)).unwrap();
        let probes = probes(&whole);
        let path = dir.0.join("damaged");
        let names = resolve_bytes(&path, &whole, &probes);
        std::assert!(
            names
                .frames
                .iter()
                .flatten()
                .any(|frame| frame.line.is_some())
        );

        for _ in 0..40 {
            let n_kept = random.below(whole.len());
            resolve_bytes(&path, &whole[..n_kept], &probes);
        }
        let mut targets = vec![0..whole.len(), 0..64];
        let names = [
            ".debug_info",
            ".debug_abbrev",
            ".debug_line",
            ".debug_rnglists",
            ".debug_str_offsets",
        ];
        targets.extend(names.iter().filter_map(|name| section(&whole, name)));
        targets.extend(
            [".symtab", ".strtab"]
                .iter()
                .filter_map(|name| section(&whole, name)),
        );
        for target in targets {
            for _ in 0..30 {
                let mut bytes = whole.clone();
                for _ in 0..1 + random.below(8) {
                    let at = target.start + random.below(target.len());
                    bytes[at] ^= 1 << random.below(8);
                }
                resolve_bytes(&path, &bytes, &probes);
            }
        }
    }
    std::assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn every_flipped_bit_of_the_abbreviations_is_survived() {
    let dir = Dir::new();
    let whole = fs::read(dir.c("cc", "-gdwarf-5")).unwrap();
    let probes = probes(&whole);
    let path = dir.0.join("damaged");
    let mut n_named = 0;
    for at in section(&whole, ".debug_abbrev").unwrap() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let names = resolve_bytes(&path, &bytes, &probes);
            n_named += names
                .frames
                .iter()
                .filter(|frames| !frames.is_empty())
                .count();
        }
    }
    // Symbols are there whatever happens to DWARF.
    std::assert!(n_named > 0);
}

#[test]
fn damaged_dwarf_leaves_the_symbols() {
    let dir = Dir::new();
    let program = dir.c("cc", "-g");
    let mut bytes = fs::read(&program).unwrap();
    for name in [".debug_info", ".debug_line"] {
        let range = section(&bytes, name).unwrap();
        bytes[range].fill(0xff);
    }
    let file = object::File::parse(&*bytes).unwrap();
    let outer = file.symbol_by_name("outer").unwrap().address();
    let names = resolve_bytes(&dir.0.join("damaged"), &bytes, &[outer]);
    let found: Vec<Option<&str>> = names.frames[0]
        .iter()
        .map(|frame| frame.function.as_deref())
        .collect();
    std::assert_eq!(found, [Some("outer")]);
}

/// Sections of DWARF 4 with one unit, whose entries are given after its root: 1 is the root's abbreviation, 2 a subprogram
/// and 3 an inlined function, all with children, both with a name, a start and a size.
struct Handmade {
    info: Vec<u8>,
}

const HANDMADE_ABBREVS: &[u8] = &[
    1, 0x11, 1, 0x11, 0x01, 0x12, 0x06, 0,
    0, // DW_TAG_compile_unit: low_pc addr, high_pc data4
    2, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0,
    0, // DW_TAG_subprogram: name string, the same
    3, 0x1d, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0, 0, // DW_TAG_inlined_subroutine
    4, 0x1d, 1, 0x31, 0x13, 0x11, 0x01, 0x12, 0x06, 0,
    0, // the same with abstract_origin ref4
    0,
];

impl Handmade {
    fn new() -> Self {
        let mut info = vec![0; 4];
        info.extend([4, 0, 0, 0, 0, 0, 8]);
        let mut unit = Self { info };
        unit.entry(1, b"", 0x1000, 0x1000);
        unit
    }

    fn entry(&mut self, abbrev: u8, head: &[u8], start: u64, size: u32) {
        self.info.push(abbrev);
        self.info.extend(head);
        self.info.extend(start.to_le_bytes());
        self.info.extend(size.to_le_bytes());
    }

    fn find(mut self, probes: &[u64]) -> Vec<Vec<String>> {
        let length = (self.info.len() - 4) as u32;
        self.info[..4].copy_from_slice(&length.to_le_bytes());
        let endian = gimli::RunTimeEndian::Little;
        let dwarf = gimli::Dwarf::load(|id| -> Result<Bytes<'_>, Missing> {
            let bytes = match id {
                gimli::SectionId::DebugInfo => &self.info[..],
                gimli::SectionId::DebugAbbrev => HANDMADE_ABBREVS,
                _ => &[],
            };
            Ok(Bytes::new(bytes, endian))
        });
        let mut names = Names::default();
        dwarf::find(
            dwarf.unwrap(),
            None,
            Path::new("/nowhere"),
            probes,
            &mut names,
        )
        .into_iter()
        .map(|found| {
            let name = |frame: SourceFrame| frame.function.unwrap_or_default().to_string();
            found.frames.into_iter().map(name).collect()
        })
        .collect()
    }
}

#[test]
fn handmade_inlining_is_found() {
    let mut unit = Handmade::new();
    unit.entry(2, b"f\0", 0x1000, 0x100);
    unit.entry(3, b"g\0", 0x1010, 0x20);
    unit.entry(3, b"h\0", 0x1018, 0x8);
    unit.info.extend([0, 0]);
    unit.entry(3, b"i\0", 0x1040, 0x10);
    unit.info.extend([0, 0, 0]);
    let found = unit.find(&[0x1000, 0x1010, 0x1018, 0x1020, 0x1030, 0x104f, 0x1100]);
    let expected: [&[&str]; 7] = [
        &["f"],
        &["g", "f"],
        &["h", "g", "f"],
        &["g", "f"],
        &["f"],
        &["i", "f"],
        &[],
    ];
    std::assert_eq!(found, expected);
}

#[test]
fn endless_nesting_is_cut() {
    let mut unit = Handmade::new();
    unit.entry(2, b"f\0", 0x1000, 0x100);
    for _ in 0..200_000 {
        unit.entry(3, b"g\0", 0x1000, 0x100);
    }
    let found = unit.find(&[0x1000, 0x1001]);
    std::assert_eq!(found[0].last().map(String::as_str), Some("f"));
    std::assert_eq!(found[0].len(), 257);
    std::assert_eq!(found[0], found[1]);
}

#[test]
fn origins_that_refer_to_themselves_have_no_name() {
    let mut unit = Handmade::new();
    unit.entry(2, b"f\0", 0x1000, 0x100);
    let own_offset = unit.info.len() as u32;
    unit.entry(4, &own_offset.to_le_bytes(), 0x1000, 0x10);
    let found = unit.find(&[0x1000, 0x1020]);
    std::assert_eq!(found, [vec!["", "f"], vec!["f"]]);
}

#[test]
fn discarded_functions_name_nothing() {
    let mut unit = Handmade::new();
    unit.entry(2, b"discarded\0", 0, 0x2000);
    unit.info.push(0);
    unit.entry(2, b"kept\0", 0x1000, 0x10);
    std::assert_eq!(
        unit.find(&[0x1000, 0x1800]),
        [vec!["kept".to_owned()], vec![]]
    );
}
