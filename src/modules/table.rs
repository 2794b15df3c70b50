//! The modules seen so far, in memory of the program's own image: rows are added under a lock, never removed, and read
//! without one.

use super::Module;
use super::elf::{self, Image};
use crate::sys::lock::Lock;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Whether a module may go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    /// It is never unloaded while this crate's code runs.
    Pinned,
    /// It may be unloaded.
    Unloadable,
}

const MAX_ROWS: usize = 2048;
/// Words for names and build IDs; a module takes about ten.
const MAX_TEXT_WORDS: usize = 32 << 10;
/// How often a busy table is asked for before the caller goes on without.
const N_TRIES: u32 = 1000;

const IS_EXECUTABLE: u64 = 1;
const HAS_FILE: u64 = 2;
const IS_PINNED: u64 = 4;

/// A row: plain words, complete before [`N_ROWS`] covers it. All but `last` never change afterwards.
struct Row {
    start: AtomicU64,
    end: AtomicU64,
    bias: AtomicU64,
    /// Where `.eh_frame_hdr` is, as a fingerprint.
    header: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    flags: AtomicU64,
    name: Text,
    build_id: Text,
}

/// Bytes in [`TEXT`].
struct Text {
    word_idx: AtomicU64,
    n_bytes: AtomicU64,
}

impl Row {
    const fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            bias: AtomicU64::new(0),
            header: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            name: Text::new(),
            build_id: Text::new(),
        }
    }
}

impl Text {
    const fn new() -> Self {
        Self {
            word_idx: AtomicU64::new(0),
            n_bytes: AtomicU64::new(0),
        }
    }
}

static ROWS: [Row; MAX_ROWS] = [const { Row::new() }; MAX_ROWS];
/// Written with Release after the row, read with Acquire before it.
static N_ROWS: AtomicUsize = AtomicUsize::new(0);
static TEXT: [AtomicU64; MAX_TEXT_WORDS] = [const { AtomicU64::new(0) }; MAX_TEXT_WORDS];

/// What the holder of the lock may add to.
struct Writer {
    n_text_words: usize,
}

static WRITER: Lock<Writer> = Lock::new(Writer { n_text_words: 0 });

/// Records that `image` was seen in `generation`. False when the table is full or busy for too long. Hook-safe.
pub(super) fn note(image: &Image<'_>, generation: u32, lasting: Lasting) -> bool {
    let generation = u64::from(generation);
    if rows()
        .iter()
        .rev()
        .any(|row| row.is_of(image) && row.is_fresh(generation, lasting))
    {
        return true;
    }
    note_slow(image, generation, lasting)
}

#[cold]
#[inline(never)]
fn note_slow(image: &Image<'_>, generation: u64, lasting: Lasting) -> bool {
    // A fork while another thread holds the lock leaves it held for ever, so there is no waiting without end.
    let mut tries = 0;
    let mut writer = loop {
        if let Some(writer) = WRITER.try_lock() {
            break writer;
        }
        tries += 1;
        if tries == N_TRIES {
            return false;
        }
        std::hint::spin_loop();
    };
    let rows = rows();
    let latest = rows.iter().rev().find(|row| row.overlaps(&image.range));
    if let Some(row) = latest.filter(|row| row.is_same_file(image)) {
        row.last.store(generation, Ordering::Relaxed);
        if lasting == Lasting::Pinned {
            row.flags.fetch_or(IS_PINNED, Ordering::Relaxed);
        }
        return true;
    }
    let n_rows = rows.len();
    let Some(row) = ROWS.get(n_rows) else {
        return false;
    };
    let is_executable = image.name.is_empty();
    let is_vdso = image.range.start == elf::vdso_start();
    let mut flags = 0;
    if is_executable {
        flags |= IS_EXECUTABLE;
    }
    if !is_vdso {
        flags |= HAS_FILE;
    }
    if lasting == Lasting::Pinned {
        flags |= IS_PINNED;
    }
    let name = if is_vdso { b"[vdso]" } else { image.name };
    let has_text = writer.write(&row.name, name)
        && writer.write(&row.build_id, image.build_id().unwrap_or_default());
    if !has_text {
        return false;
    }
    row.start.store(image.range.start as u64, Ordering::Relaxed);
    row.end.store(image.range.end as u64, Ordering::Relaxed);
    row.bias.store(image.bias as u64, Ordering::Relaxed);
    row.header.store(fingerprint(image), Ordering::Relaxed);
    row.first.store(generation, Ordering::Relaxed);
    row.last.store(generation, Ordering::Relaxed);
    row.flags.store(flags, Ordering::Relaxed);
    N_ROWS.store(n_rows + 1, Ordering::Release);
    true
}

/// Whether `avma` lies in a pinned module that was noted. Hook-safe.
pub(super) fn is_pinned(avma: usize) -> bool {
    let avma = avma as u64;
    rows().iter().any(|row| {
        row.flags.load(Ordering::Relaxed) & IS_PINNED != 0
            && row.start.load(Ordering::Relaxed) <= avma
            && avma < row.end.load(Ordering::Relaxed)
    })
}

/// All rows as owned data, in the order of their first sight. Pinned modules count as seen up to `generation`.
pub(super) fn modules(generation: u32) -> Vec<Module> {
    rows().iter().map(|row| row.to_module(generation)).collect()
}

fn rows() -> &'static [Row] {
    let n_rows = N_ROWS.load(Ordering::Acquire);
    ROWS.get(..n_rows).unwrap_or_default()
}

fn fingerprint(image: &Image<'_>) -> u64 {
    image
        .unwind_header()
        .map_or(0, |header| header.start as u64)
}

impl Row {
    fn is_of(&self, image: &Image<'_>) -> bool {
        self.start.load(Ordering::Relaxed) == image.range.start as u64
            && self.end.load(Ordering::Relaxed) == image.range.end as u64
            && self.header.load(Ordering::Relaxed) == fingerprint(image)
    }

    fn is_fresh(&self, generation: u64, lasting: Lasting) -> bool {
        let is_pinned = self.flags.load(Ordering::Relaxed) & IS_PINNED != 0;
        let is_seen = self.last.load(Ordering::Relaxed) == generation;
        is_pinned || is_seen && lasting == Lasting::Unloadable
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.start.load(Ordering::Relaxed) < range.end as u64
            && (range.start as u64) < self.end.load(Ordering::Relaxed)
    }

    fn is_same_file(&self, image: &Image<'_>) -> bool {
        let is_vdso = image.range.start == elf::vdso_start();
        self.is_of(image)
            && self.build_id.equals(image.build_id().unwrap_or_default())
            && (is_vdso || self.name.equals(image.name))
    }

    fn to_module(&self, generation: u32) -> Module {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let flags = word(&self.flags);
        let is_executable = flags & IS_EXECUTABLE != 0;
        let name = PathBuf::from(std::ffi::OsString::from_vec(self.name.to_vec()));
        let path = if is_executable {
            std::env::current_exe().unwrap_or(name)
        } else {
            name
        };
        let last = if flags & IS_PINNED != 0 {
            generation
        } else {
            word(&self.last) as u32
        };
        let build_id = self.build_id.to_vec();
        Module {
            path,
            is_executable,
            has_file: flags & HAS_FILE != 0,
            build_id: (!build_id.is_empty()).then_some(build_id),
            range: word(&self.start) as usize..word(&self.end) as usize,
            bias: word(&self.bias) as usize,
            generations: (word(&self.first) as u32, last),
        }
    }
}

impl Writer {
    /// Appends `bytes` and makes `text` mean them. False when there is no room.
    fn write(&mut self, text: &Text, bytes: &[u8]) -> bool {
        let start = self.n_text_words;
        let end = start + bytes.len().div_ceil(size_of::<u64>());
        let Some(words) = TEXT.get(start..end) else {
            return false;
        };
        for (word, chunk) in words.iter().zip(bytes.chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            for (to, from) in padded.iter_mut().zip(chunk) {
                *to = *from;
            }
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.n_text_words = end;
        text.word_idx.store(start as u64, Ordering::Relaxed);
        text.n_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        true
    }
}

impl Text {
    fn bytes(&self) -> impl Iterator<Item = u8> {
        let start = self.word_idx.load(Ordering::Relaxed) as usize;
        let n_bytes = self.n_bytes.load(Ordering::Relaxed) as usize;
        let words = TEXT.get(start..).unwrap_or_default();
        words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take(n_bytes)
    }

    fn equals(&self, bytes: &[u8]) -> bool {
        self.bytes().eq(bytes.iter().copied())
    }

    fn to_vec(&self) -> Vec<u8> {
        self.bytes().collect()
    }
}
