//! The lines on standard error. Programs parse the first ones; their texts are fixed.

use super::frames::FrameCounts;
use super::text::{count_of, printable, thousands};
use crate::recorder::{Anomalies, Mode, Snapshot};
use crate::unwind::WalkCounts;
use std::path::Path;

/// The saved line of a report that went to memory.
pub(super) const SAVED_TO_MEMORY: &str = "dhat: The data has been saved to the memory buffer\n";

/// The first lines: what was recorded in all.
pub(super) fn totals(snapshot: &Snapshot) -> String {
    let totals = &snapshot.totals;
    let (bytes, blocks) = match snapshot.mode {
        Mode::Heap => ("bytes", "blocks"),
        Mode::AdHoc => ("units", "events"),
    };
    let line = |label: &str, n_bytes: u64, n_blocks: u64| {
        let (n_bytes, n_blocks) = (thousands(n_bytes), thousands(n_blocks));
        format!("dhat: {label} {n_bytes} {bytes} in {n_blocks} {blocks}\n")
    };
    let mut text = line("Total:    ", totals.total_bytes, totals.total_blocks);
    if snapshot.mode == Mode::Heap {
        text += &line("At t-gmax:", totals.max_bytes, totals.max_blocks);
        text += &line("At t-end: ", totals.curr_bytes, totals.curr_blocks);
    }
    text
}

/// The line that tells where the report is, or why it is not.
pub(super) fn saved(path: &Path, result: &std::io::Result<()>) -> String {
    let path = path.to_string_lossy();
    let path = printable(&path);
    match result {
        Ok(()) => format!(
            "dhat: The data has been saved to {path}, and is viewable with dhat/dh_view.html\n"
        ),
        Err(error) => format!("dhat: error: Writing to {path} failed: {error}\n"),
    }
}

/// The line with the whole report in it.
pub(super) fn json(indented: &str) -> String {
    format!("dhat: json = `{indented}`\n")
}

/// What may be worth a word after the fixed lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notes {
    pub(super) allocator_missing: bool,
    pub(super) debug_info_missing: bool,
    pub(super) frames: FrameCounts,
    pub(super) walks: WalkCounts,
    pub(super) anomalies: Anomalies,
    pub(super) n_folded: u64,
}

impl Notes {
    /// The lines that have something to say; empty when all is well.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if self.allocator_missing {
            text += "dhat: No allocation came through this profiler. Is it installed? The program needs:\n\
                     dhat:     #[global_allocator]\n\
                     dhat:     static ALLOC: dhat::Alloc = dhat::Alloc;\n";
        }
        self.push_frames(&mut text);
        if self.debug_info_missing {
            text += "dhat: The executable has no debug info, so files, lines and inlined functions are missing. \
                     Cargo.toml gives it, if it does not strip it again, with:\n\
                     dhat:     [profile.release]\n\
                     dhat:     debug = 1\n";
        }
        self.push_walks(&mut text);
        self.push_anomalies(&mut text);
        if self.n_folded > 0 {
            let points = count_of(self.n_folded, "program point", "program points");
            text += &format!(
                "dhat: {points} differed from others in trimmed frames only and went into them; \
                 maxima of those are lower bounds\n"
            );
        }
        text
    }

    fn push_frames(&self, text: &mut String) {
        let FrameCounts {
            n_frames,
            n_no_symbol,
            n_module_only,
        } = self.frames;
        if n_no_symbol > 0 {
            let frames = count_of(n_frames, "frame", "frames");
            let (n_no_symbol, n_module_only) = (thousands(n_no_symbol), thousands(n_module_only));
            *text += &format!(
                "dhat: {n_no_symbol} of {frames} have no symbol; {n_module_only} of these show their module and offset\n"
            );
        }
    }

    fn push_walks(&self, text: &mut String) {
        let reasons = [
            (self.walks.n_no_rule, "no unwind information"),
            (
                self.walks.n_unsupported_rule,
                "unwind information of an unsupported kind",
            ),
            (
                self.walks.n_bad_stack,
                "an unreadable or inconsistent stack",
            ),
        ];
        let n_short: u64 = reasons.iter().map(|(count, _)| count).sum();
        if n_short > 0 {
            let parts: Vec<String> = reasons
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, reason)| format!("{reason} ({})", thousands(*count)))
                .collect();
            let captures = count_of(n_short, "capture was", "captures were");
            *text += &format!("dhat: {captures} cut short by {}\n", parts.join(", "));
        }
        if self.walks.n_guessed > 0 {
            let captures = count_of(self.walks.n_guessed, "capture went", "captures went");
            *text += &format!(
                "dhat: {captures} through code without unwind information; \
                 the frames behind it are guessed from frame pointers\n"
            );
        }
    }

    fn push_anomalies(&self, text: &mut String) {
        let Anomalies {
            n_freed_behind,
            n_unattributed,
            n_untracked,
            n_lost_deferred,
        } = self.anomalies;
        if n_freed_behind > 0 {
            let blocks = count_of(n_freed_behind, "block was", "blocks were");
            *text += &format!(
                "dhat: {blocks} freed behind the allocator's back; they count as freed when their address was used again\n"
            );
        }
        if n_unattributed > 0 {
            let blocks = count_of(n_unattributed, "block has", "blocks have");
            *text +=
                &format!("dhat: {blocks} no stack, because the table of program points was full\n");
        }
        if n_untracked > 0 {
            let blocks = count_of(n_untracked, "block was", "blocks were");
            *text += &format!("dhat: {blocks} not recorded for lack of memory\n");
        }
        if n_lost_deferred > 0 {
            let events = count_of(n_lost_deferred, "free was", "frees were");
            *text += &format!(
                "dhat: {events} lost: signal handlers made too many while recording was interrupted\n"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Totals;

    fn snapshot(mode: Mode) -> Snapshot {
        Snapshot {
            mode,
            totals: Totals {
                total_blocks: 1_006,
                total_bytes: 1_256_000,
                curr_blocks: 0,
                curr_bytes: 0,
                max_blocks: 6,
                max_bytes: 1_256,
            },
            end_ns: 0,
            gmax_ns: 0,
            points: Vec::new(),
            anomalies: Anomalies::default(),
        }
    }

    #[test]
    fn heap_totals_read_as_tools_expect() {
        std::assert_eq!(
            totals(&snapshot(Mode::Heap)),
            "dhat: Total:     1,256,000 bytes in 1,006 blocks\n\
             dhat: At t-gmax: 1,256 bytes in 6 blocks\n\
             dhat: At t-end:  0 bytes in 0 blocks\n"
        );
    }

    #[test]
    fn ad_hoc_totals_are_one_line_of_units_and_events() {
        std::assert_eq!(
            totals(&snapshot(Mode::AdHoc)),
            "dhat: Total:     1,256,000 units in 1,006 events\n"
        );
    }

    #[test]
    fn saved_line_names_the_file_or_the_error() {
        std::assert_eq!(
            saved(Path::new("dhat-heap.json"), &Ok(())),
            "dhat: The data has been saved to dhat-heap.json, and is viewable with dhat/dh_view.html\n"
        );
        let full = Err(std::io::Error::from_raw_os_error(28));
        std::assert_eq!(
            saved(Path::new("/dev/full"), &full),
            "dhat: error: Writing to /dev/full failed: No space left on device (os error 28)\n"
        );
        std::assert_eq!(
            saved(Path::new("a\u{1b}[2Jb"), &Ok(())),
            "dhat: The data has been saved to a\\u{1b}[2Jb, and is viewable with dhat/dh_view.html\n"
        );
    }

    #[test]
    fn nothing_to_say_is_silence() {
        let notes = Notes {
            frames: FrameCounts {
                n_frames: 12,
                ..FrameCounts::default()
            },
            ..Notes::default()
        };
        std::assert_eq!(notes.text(), "");
    }

    #[test]
    fn each_note_is_prefixed_and_names_its_figures() {
        let notes = Notes {
            allocator_missing: true,
            debug_info_missing: true,
            frames: FrameCounts {
                n_frames: 3_400,
                n_no_symbol: 1_201,
                n_module_only: 1_200,
            },
            walks: WalkCounts {
                n_no_rule: 1_000,
                n_unsupported_rule: 0,
                n_bad_stack: 2,
                n_guessed: 1,
            },
            anomalies: Anomalies {
                n_freed_behind: 1,
                n_unattributed: 5,
                n_untracked: 6_000,
                n_lost_deferred: 2,
            },
            n_folded: 7,
        };
        let text = notes.text();
        std::assert!(text.ends_with('\n'));
        std::assert!(text.lines().all(|line| line.starts_with("dhat: ")));
        for part in [
            "static ALLOC: dhat::Alloc = dhat::Alloc;\n",
            "dhat: 1,201 of 3,400 frames have no symbol; 1,200 of these show their module and offset\n",
            "dhat:     [profile.release]\ndhat:     debug = 1\n",
            "dhat: 1,002 captures were cut short by no unwind information (1,000), an unreadable or inconsistent stack (2)\n",
            "dhat: 1 capture went through code without unwind information",
            "dhat: 1 block was freed behind the allocator's back",
            "dhat: 5 blocks have no stack",
            "dhat: 6,000 blocks were not recorded",
            "dhat: 2 frees were lost",
            "dhat: 7 program points differed",
        ] {
            std::assert!(text.contains(part), "{part} not in {text}");
        }
    }
}
