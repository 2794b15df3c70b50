//! Unwind tables made by hand, and this program's own with damage.

use super::*;

/// Unwind tables of their own at an address where nothing is mapped.
struct Tables {
    header: Vec<u8>,
    segment: Vec<u8>,
}

const SEGMENT_AVMA: usize = 0x10_0000;
const HEADER_AVMA: usize = 0x20_0000;
const CODE: usize = 0x30_0000;
const CODE_BYTES: u32 = 0x100;

impl Tables {
    /// One CIE with `cie_program` and one FDE with `fde_program` for the code range.
    fn new(augmentation: &[u8], cie_program: &[u8], fde_program: &[u8]) -> Self {
        // Version 1, code alignment 1, data alignment -8, return address in column 16, pointers absolute in 4 bytes.
        let mut cie = vec![0, 0, 0, 0, 1];
        cie.extend(augmentation);
        cie.extend([0, 1, 0x78, 16, 1, 0x03]);
        cie.extend(cie_program);
        let mut segment = entry(&cie);
        let fde_at = segment.len();
        let mut fde = (fde_at as u32 + 4).to_le_bytes().to_vec();
        fde.extend((CODE as u32).to_le_bytes());
        fde.extend(CODE_BYTES.to_le_bytes());
        fde.push(0);
        fde.extend(fde_program);
        segment.extend(entry(&fde));
        segment.extend([0; 4]);

        let mut header = HEADER.to_vec();
        header.extend((SEGMENT_AVMA as i32 - HEADER_AVMA as i32 - 4).to_le_bytes());
        header.extend(1_u32.to_le_bytes());
        header.extend((CODE as i32 - HEADER_AVMA as i32).to_le_bytes());
        header.extend(((SEGMENT_AVMA + fde_at) as i32 - HEADER_AVMA as i32).to_le_bytes());
        Self { header, segment }
    }

    fn rule_of(&self, address: usize) -> UnwindRule {
        let tables = UnwindTables {
            header: &self.header,
            header_avma: HEADER_AVMA,
            segment: &self.segment,
            segment_avma: SEGMENT_AVMA,
        };
        rule_in(&tables, address)
    }
}

fn entry(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// CFA = rsp+8, return address at CFA-8: what holds at a function's first instruction.
const AT_ENTRY: [u8; 5] = [0x0c, 7, 8, 0x90, 1];

fn frame_with(base: Base, offset: i32, deref: Option<i32>) -> FrameRule {
    FrameRule {
        cfa: Cfa {
            base,
            offset,
            deref,
        },
        return_address: Place {
            base: PlaceBase::Cfa,
            offset: -8,
        },
        saved_fp: SavedFp::Same,
        interrupts: false,
    }
}

#[test]
fn rows_hold_from_their_address_on() {
    // advance 1; def_cfa_offset 16; offset rbp at CFA-16; advance 3; def_cfa_register rbp
    let program = [0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6];
    let tables = Tables::new(b"zR", &AT_ENTRY, &program);
    let saved = SavedFp::At(Place {
        base: PlaceBase::Cfa,
        offset: -16,
    });
    let at_entry = frame_with(Base::Sp, 8, None);
    let mut pushed = frame_with(Base::Sp, 16, None);
    pushed.saved_fp = saved;
    let mut in_body = frame_with(Base::Fp, 16, None);
    in_body.saved_fp = saved;
    std::assert_eq!(tables.rule_of(CODE), UnwindRule::Frame(at_entry));
    std::assert_eq!(tables.rule_of(CODE + 1), UnwindRule::Frame(pushed));
    std::assert_eq!(tables.rule_of(CODE + 3), UnwindRule::Frame(pushed));
    std::assert_eq!(tables.rule_of(CODE + 4), UnwindRule::Frame(in_body));
    std::assert_eq!(tables.rule_of(CODE + 0xff), UnwindRule::Frame(in_body));
    std::assert_eq!(tables.rule_of(CODE + 0x100), UnwindRule::NoTable);
    std::assert_eq!(tables.rule_of(CODE - 1), UnwindRule::NoTable);
}

#[test]
fn undefined_return_address_means_outermost() {
    let tables = Tables::new(b"zR", &AT_ENTRY, &[0x07, 16]);
    std::assert_eq!(tables.rule_of(CODE), UnwindRule::Outermost);
}

#[test]
fn expressions_of_signal_frames_and_realigned_frames_are_understood() {
    // glibc's __restore_rt: CFA = *(rsp+160), rip at rsp+168, rbp at rsp+120.
    let program = [
        0x0f, 4, 0x77, 0xa0, 0x01, 0x06, 0x10, 16, 3, 0x77, 0xa8, 0x01, 0x10, 6, 3, 0x77, 0xf8,
        0x00,
    ];
    let signal = FrameRule {
        cfa: Cfa {
            base: Base::Sp,
            offset: 160,
            deref: Some(0),
        },
        return_address: Place {
            base: PlaceBase::Sp,
            offset: 168,
        },
        saved_fp: SavedFp::At(Place {
            base: PlaceBase::Sp,
            offset: 120,
        }),
        interrupts: true,
    };
    let tables = Tables::new(b"zRS", &AT_ENTRY, &program);
    std::assert_eq!(tables.rule_of(CODE), UnwindRule::Frame(signal));

    // gcc's realigned frame: CFA = *(rbp-8), rbp at rbp+0.
    let program = [0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0x00];
    let mut realigned = frame_with(Base::Fp, -8, Some(0));
    realigned.saved_fp = SavedFp::At(Place {
        base: PlaceBase::Fp,
        offset: 0,
    });
    let tables = Tables::new(b"zR", &AT_ENTRY, &program);
    std::assert_eq!(tables.rule_of(CODE), UnwindRule::Frame(realigned));

    // A CFA of *rbp+24.
    let tables = Tables::new(b"zR", &AT_ENTRY, &[0x0f, 5, 0x76, 0, 0x06, 0x23, 24]);
    let linked = frame_with(Base::Fp, 0, Some(24));
    std::assert_eq!(tables.rule_of(CODE), UnwindRule::Frame(linked));
}

#[test]
fn expression_of_procedure_linkage_tables_depends_on_the_address() {
    // rsp+8 + ((rip & 15) >= 11) << 3
    let program = [
        0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
    ];
    let tables = Tables::new(b"zR", &AT_ENTRY, &program);
    let rule = |offset| UnwindRule::Frame(frame_with(Base::Sp, offset, None));
    std::assert_eq!(tables.rule_of(CODE + 16), rule(8));
    std::assert_eq!(tables.rule_of(CODE + 26), rule(8));
    std::assert_eq!(tables.rule_of(CODE + 27), rule(16));
    std::assert_eq!(tables.rule_of(CODE + 31), rule(16));
}

#[test]
fn what_rules_cannot_say_is_unsupported() {
    for program in [
        // CFA = r10+0
        &[0x0c, 10, 0][..],
        // CFA = *(rax)
        &[0x0f, 3, 0x70, 0, 0x06],
        // An expression that ends without a value, one that underflows, one with an unknown operation.
        &[0x0f, 0],
        &[0x0f, 1, 0x22],
        &[0x0f, 1, 0xff],
        // More values than the stack holds.
        &[
            0x0f, 9, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30,
        ],
        // The return address in a register.
        &[0x09, 16, 0],
        // A truncated instruction.
        &[0x0e],
    ] {
        let tables = Tables::new(b"zR", &AT_ENTRY, program);
        std::assert_eq!(
            tables.rule_of(CODE),
            UnwindRule::Unsupported,
            "{program:x?}"
        );
    }
}

#[test]
fn damaged_tables_of_this_program_give_rules_and_nothing_worse() {
    modules::prepare();
    let here = damaged_tables_of_this_program_give_rules_and_nothing_worse as fn() as usize;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let outcome = modules::with_unwind_tables(here, Scope::OnStack, |tables| {
        let mut kinds = std::collections::HashSet::new();
        let (mut header, mut segment) = (tables.header.to_vec(), tables.segment.to_vec());
        for round in 0..20_000 {
            let address = here.wrapping_add(next() % 0x4_0000) - 0x2_0000;
            // The entry that the address leads to is where damage matters most.
            let near = find_entry(tables, address).map(|entry| {
                let offset = entry.section_avma + entry.offset - tables.segment_avma;
                offset + next() % 64
            });
            let at = near.unwrap_or_else(&mut next) % segment.len();
            let header_at = next() % header.len().min(64);
            let (old, old_header) = (segment[at], header[header_at]);
            segment[at] = next() as u8;
            if round % 4 == 0 {
                header[header_at] = next() as u8;
            }
            let cut = if round % 8 == 0 { at } else { segment.len() };
            let damaged = UnwindTables {
                header: &header,
                segment: &segment[..cut],
                ..*tables
            };
            kinds.insert(std::mem::discriminant(&rule_in(&damaged, address)));
            (segment[at], header[header_at]) = (old, old_header);
        }
        kinds.len()
    });
    // The control: damage was met, and so was what it left intact.
    std::assert!(outcome.unwrap().tables.unwrap() >= 3);
}
