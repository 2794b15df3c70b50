//! Sequential counters per program point and in all. Events are applied one after the other in time order, under one lock.
//!
//! t-gmax costs O(1) an event: an allocation that reaches the maximum opens a new peak epoch. A point that is touched for
//! the first time in an epoch first saves its current values; a point that was not touched since the epoch began still has
//! them. All counters are signed, because events of different threads that are very close may come in either order.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Scale;
use super::event::{Kind, NARROW_WORDS, RESIZE_WORDS, WIDE_WORDS, Wide, kind_of, ticks_of};
use super::live::unpack;
use super::words::Table;
use super::{LiveBlock, Mode, PpId, ProgramPoint, Totals};
use crate::sys::lock::{Lock, LockGuard};

/// Words of a point: two cache lines, of which a free touches the first alone unless a peak was just left.
const POINT_WORDS: usize = 16;

/// The words of a point.
const CURR_BLOCKS: usize = 0;
const CURR_BYTES: usize = 1;
const TOTAL_BLOCKS: usize = 2;
const TOTAL_BYTES: usize = 3;
/// Sum of the free times minus sum of the alloc times, in ticks since the session's start: an `i128` in two words.
const BALANCE_LOW: usize = 4;
const BALANCE_HIGH: usize = 5;
/// The last peak epoch in which the point was touched.
const EPOCH: usize = 6;
const MAX_BYTES: usize = 7;
const MAX_BLOCKS: usize = 8;
/// Values at the peak that opened `EPOCH`.
const PEAK_BYTES: usize = 9;
const PEAK_BLOCKS: usize = 10;

type Points = Table<POINT_WORDS>;

/// The counters of one recorder.
pub(super) struct Ledger {
    /// By number. Outside the lock only so that room for a new point can be made without it; the entries are read and
    /// written by the lock's holder, so Relaxed accesses suffice everywhere.
    points: Points,
    sums: Lock<Sums>,
}

/// The ledger, locked.
pub(super) struct OpenLedger<'a> {
    points: &'a Points,
    sums: LockGuard<'a, Sums>,
}

/// Counters of the whole session.
///
/// Counters that change together do not lie side by side: the compiler would join their stores into wide ones, and each such
/// store waits for narrow loads of the next event and the other way round.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sums {
    total_blocks: u64,
    start_ticks: u64,
    total_bytes: u64,
    /// The time of the last cut: no event that is applied from now on is earlier.
    cut_ticks: u64,
    curr_blocks: i64,
    max_blocks: i64,
    curr_bytes: i64,
    gmax_ticks: u64,
    max_bytes: i64,
    /// The session's lowest point, which stands for all that have no room of their own; events of lower ones are ignored.
    first: PpId,
    /// One past the highest point that recorded anything.
    end_id: u32,
    epoch: u64,
}

/// A point's counters at a cut, still without its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointFigures {
    /// Whose they are.
    pub(super) pp: PpId,
    words: [u64; POINT_WORDS],
    epoch: u64,
    end_ticks: u64,
}

impl Ledger {
    /// Makes an empty ledger without tables. All bytes are zero.
    pub(super) const fn new() -> Self {
        Self {
            points: Table::new(),
            sums: Lock::new(Sums::starting(PpId(0), 0)),
        }
    }

    /// Waits for the ledger.
    pub(super) fn open(&self) -> OpenLedger<'_> {
        OpenLedger {
            points: &self.points,
            sums: self.sums.lock(),
        }
    }

    /// Makes room for a point's counters; false without memory. Lock-free, hook-safe.
    pub(super) fn make_room(&self, pp: PpId) -> bool {
        self.points.reserve(pp.0 as usize).is_some()
    }
}

impl OpenLedger<'_> {
    /// Starts from zero. Room for `first` was made.
    pub(super) fn restart(&mut self, first: PpId, start_ticks: u64) {
        self.points.clear();
        *self.sums = Sums::starting(first, start_ticks);
    }

    /// Gives the memory back to the system.
    pub(super) fn clear(&mut self) {
        self.points.clear();
    }

    /// The time of the last cut.
    pub(super) fn cut_ticks(&self) -> u64 {
        self.sums.cut_ticks
    }

    /// Tells when the cut is that is merged next; never before the last.
    pub(super) fn set_cut_ticks(&mut self, ticks: u64) {
        self.sums.cut_ticks = ticks;
    }

    /// Applies the run of events at the start of `words` that come before `bound_ticks`. Returns how many words they take.
    #[inline(never)]
    pub(super) fn apply_until(&mut self, words: &[AtomicU64], bound_ticks: u64) -> usize {
        // A copy on the stack: no store to a point can change it, so the compiler keeps it in registers.
        let mut sums = *self.sums;
        let mut next_idx = 0;
        while let Some([first, second, ..]) = words.get(next_idx..) {
            let first = first.load(Ordering::Relaxed);
            let ticks = ticks_of(first);
            if ticks >= bound_ticks {
                break;
            }
            let second = second.load(Ordering::Relaxed);
            next_idx += match kind_of(first) {
                Kind::Alloc => {
                    sums.alloc(self.points, ticks, unpack(second));
                    NARROW_WORDS
                }
                Kind::Free => {
                    sums.free(self.points, ticks, unpack(second));
                    NARROW_WORDS
                }
                Kind::Resize => {
                    if let Some(after) = words.get(next_idx + 2) {
                        let after = unpack(after.load(Ordering::Relaxed));
                        sums.realloc(self.points, ticks, unpack(second), after.size);
                    }
                    RESIZE_WORDS
                }
                Kind::Wide => {
                    let rest = [2, 3].map(|offset| words.get(next_idx + offset));
                    if let [Some(old), Some(new)] = rest {
                        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
                        sums.apply_wide(
                            self.points,
                            ticks,
                            Wide::of([second, load(old), load(new)]),
                        );
                    }
                    WIDE_WORDS
                }
            };
        }
        *self.sums = sums;
        next_idx
    }

    /// The counters of the whole session.
    pub(super) fn totals(&self) -> Totals {
        let sums = &*self.sums;
        Totals {
            total_blocks: sums.total_blocks,
            total_bytes: sums.total_bytes,
            curr_blocks: not_negative(sums.curr_blocks),
            curr_bytes: not_negative(sums.curr_bytes),
            max_blocks: not_negative(sums.max_blocks),
            max_bytes: not_negative(sums.max_bytes),
        }
    }

    /// From the session's start to the last cut, and to t-gmax, in ticks.
    pub(super) fn elapsed_at_end_and_gmax(&self) -> (u64, u64) {
        let sums = &*self.sums;
        let since_start = |ticks: u64| ticks.saturating_sub(sums.start_ticks);
        let gmax_ticks = sums.gmax_ticks.min(sums.cut_ticks);
        (since_start(sums.cut_ticks), since_start(gmax_ticks))
    }

    /// How many points there may be at most in [`OpenLedger::copy_points`].
    pub(super) fn n_points_bound(&self) -> usize {
        self.sums.end_id.saturating_sub(self.sums.first.0) as usize
    }

    /// Copies the points that recorded at least one block, in the order of their numbers, without growing `out`.
    pub(super) fn copy_points(&self, out: &mut Vec<PointFigures>) {
        let sums = &*self.sums;
        for id in sums.first.0..sums.end_id {
            let Some(point) = self.points.get(id as usize).map(Point) else {
                continue;
            };
            if point.get(TOTAL_BLOCKS) == 0 || out.len() == out.capacity() {
                continue;
            }
            out.push(PointFigures {
                pp: PpId(id),
                words: std::array::from_fn(|word_idx| point.get(word_idx) as u64),
                epoch: sums.epoch,
                end_ticks: sums.cut_ticks.saturating_sub(sums.start_ticks),
            });
        }
    }

    /// Allocations that the unattributed point stands for.
    pub(super) fn n_unattributed(&self) -> u64 {
        let point = self.sums.point(self.points, self.sums.first);
        point.map_or(0, |point| point.get(TOTAL_BLOCKS) as u64)
    }
}

impl Sums {
    const fn starting(first: PpId, start_ticks: u64) -> Self {
        Self {
            first,
            end_id: 0,
            start_ticks,
            cut_ticks: start_ticks,
            gmax_ticks: start_ticks,
            epoch: 0,
            total_blocks: 0,
            total_bytes: 0,
            curr_blocks: 0,
            curr_bytes: 0,
            max_blocks: 0,
            max_bytes: 0,
        }
    }

    /// A block was allocated.
    #[inline(always)]
    fn alloc(&mut self, points: &Points, ticks: u64, block: LiveBlock) {
        let Some(point) = self.point(points, block.pp) else {
            return;
        };
        self.add_to_totals(point, block.pp, block.size);
        point.add_to_balance(-self.elapsed(ticks));
        self.grow(point, ticks, 1, block.size as i64);
    }

    /// A block was freed.
    #[inline(always)]
    fn free(&mut self, points: &Points, ticks: u64, block: LiveBlock) {
        let Some(point) = self.point(points, block.pp) else {
            return;
        };
        let size = block.size as i64;
        point.keep_peak(self.epoch);
        point.add_to_balance(self.elapsed(ticks));
        point.add(CURR_BLOCKS, -1);
        point.add(CURR_BYTES, size.wrapping_neg());
        self.curr_blocks -= 1;
        self.curr_bytes = self.curr_bytes.wrapping_sub(size);
    }

    #[cold]
    #[inline(never)]
    fn apply_wide(&mut self, points: &Points, ticks: u64, event: Wide) {
        match event {
            Wide::Alloc(block) => self.alloc(points, ticks, block),
            Wide::Free(block) => self.free(points, ticks, block),
            Wide::Realloc { block, new_size } => self.realloc(points, ticks, block, new_size),
            Wide::AdHoc { pp, weight } => {
                if let Some(point) = self.point(points, pp) {
                    self.add_to_totals(point, pp, weight);
                }
            }
        }
    }

    /// A block changed its size. It counts as one more block in the totals only.
    #[inline(always)]
    fn realloc(&mut self, points: &Points, ticks: u64, block: LiveBlock, new_size: usize) {
        let Some(point) = self.point(points, block.pp) else {
            return;
        };
        self.add_to_totals(point, block.pp, new_size);
        self.grow(point, ticks, 0, new_size.wrapping_sub(block.size) as i64);
    }

    /// The counters of a point of this session.
    #[inline(always)]
    fn point(&self, points: &Points, pp: PpId) -> Option<Point> {
        if pp < self.first {
            return None;
        }
        points.get(pp.0 as usize).map(Point)
    }

    /// Ticks since the session's start.
    #[inline(always)]
    fn elapsed(&self, ticks: u64) -> i128 {
        i128::from(ticks.saturating_sub(self.start_ticks))
    }

    #[inline(always)]
    fn add_to_totals(&mut self, point: Point, pp: PpId, size: usize) {
        point.add(TOTAL_BLOCKS, 1);
        point.add(TOTAL_BYTES, size as i64);
        self.end_id = self.end_id.max(pp.0 + 1);
        self.total_blocks += 1;
        self.total_bytes = self.total_bytes.wrapping_add(size as u64);
    }

    /// Applies an allocation's or reallocation's effect on what is live, and the peaks that it may reach.
    #[inline(always)]
    fn grow(&mut self, point: Point, ticks: u64, n_blocks: i64, n_bytes: i64) {
        self.curr_blocks += n_blocks;
        self.curr_bytes = self.curr_bytes.wrapping_add(n_bytes);
        if self.curr_bytes >= self.max_bytes {
            self.max_bytes = self.curr_bytes;
            self.max_blocks = self.curr_blocks;
            self.gmax_ticks = ticks;
            self.epoch += 1;
        } else {
            point.keep_peak(self.epoch);
        }
        let curr_blocks = point.add(CURR_BLOCKS, n_blocks);
        let curr_bytes = point.add(CURR_BYTES, n_bytes);
        if curr_bytes >= point.get(MAX_BYTES) {
            point.set(MAX_BYTES, curr_bytes);
            point.set(MAX_BLOCKS, curr_blocks);
        }
    }
}

/// One point's words.
#[derive(Clone, Copy)]
struct Point(&'static [AtomicU64; POINT_WORDS]);

impl Point {
    #[inline]
    fn get(self, word_idx: usize) -> i64 {
        self.0[word_idx].load(Ordering::Relaxed) as i64
    }

    #[inline]
    fn set(self, word_idx: usize, value: i64) {
        self.0[word_idx].store(value as u64, Ordering::Relaxed);
    }

    #[inline]
    fn add(self, word_idx: usize, delta: i64) -> i64 {
        let value = self.get(word_idx).wrapping_add(delta);
        self.set(word_idx, value);
        value
    }

    #[inline]
    fn add_to_balance(self, ticks: i128) {
        let low = self.get(BALANCE_LOW) as u64;
        let sum = join(low, self.get(BALANCE_HIGH) as u64).wrapping_add(ticks);
        self.set(BALANCE_LOW, sum as i64);
        self.set(BALANCE_HIGH, (sum >> 64) as i64);
    }

    /// Saves the current values as those at the peak, unless the point was touched since.
    #[inline]
    fn keep_peak(self, epoch: u64) {
        if self.get(EPOCH) as u64 != epoch {
            self.set(EPOCH, epoch as i64);
            self.set(PEAK_BYTES, self.get(CURR_BYTES));
            self.set(PEAK_BLOCKS, self.get(CURR_BLOCKS));
        }
    }
}

impl PointFigures {
    /// The point as the report gets it.
    pub(super) fn with_frames(
        &self,
        (frames, tag): (Box<[usize]>, u32),
        mode: Mode,
        scale: Scale,
    ) -> ProgramPoint {
        let value = |word_idx: usize| not_negative(self.words[word_idx] as i64);
        let is_at_peak = self.words[EPOCH] != self.epoch;
        let (peak_bytes, peak_blocks) = match is_at_peak {
            true => (CURR_BYTES, CURR_BLOCKS),
            false => (PEAK_BYTES, PEAK_BLOCKS),
        };
        let lifetimes_ns = match mode {
            Mode::Heap => scale.ns(self.live_ticks()),
            Mode::AdHoc => 0,
        };
        ProgramPoint {
            frames,
            tag,
            total_blocks: self.words[TOTAL_BLOCKS],
            total_bytes: self.words[TOTAL_BYTES],
            max_bytes: value(MAX_BYTES),
            max_blocks: value(MAX_BLOCKS),
            at_gmax_bytes: value(peak_bytes),
            at_gmax_blocks: value(peak_blocks),
            at_end_bytes: value(CURR_BYTES),
            at_end_blocks: value(CURR_BLOCKS),
            lifetimes_ns,
        }
    }

    /// The time that the point's blocks were live: those that still are, until now.
    fn live_ticks(&self) -> u128 {
        let balance = join(self.words[BALANCE_LOW], self.words[BALANCE_HIGH]);
        let n_live = i128::from(self.words[CURR_BLOCKS] as i64);
        let sum = balance + n_live * i128::from(self.end_ticks);
        u128::try_from(sum).unwrap_or(0)
    }
}

fn join(low: u64, high: u64) -> i128 {
    i128::from(high as i64) << 64 | i128::from(low)
}

fn not_negative(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::clock::Moment;
    use super::super::event::first_word;
    use super::*;

    const A: PpId = PpId(1);
    const B: PpId = PpId(2);

    fn ledger() -> Box<Ledger> {
        let ledger = Box::new(Ledger::new());
        std::assert!(ledger.make_room(A) && ledger.make_room(B));
        ledger.open().restart(A, 100);
        ledger
    }

    fn block(pp: PpId, size: usize) -> LiveBlock {
        LiveBlock { pp, size }
    }

    impl OpenLedger<'_> {
        /// Applies one event as the journal would hold it.
        fn apply(&mut self, ticks: u64, event: Wide) {
            let [point, old, new] = event.words();
            let words = [first_word(Kind::Wide, ticks), point, old, new].map(AtomicU64::new);
            std::assert_eq!(self.apply_until(&words, ticks + 1), words.len());
        }

        fn alloc(&mut self, ticks: u64, block: LiveBlock) {
            self.apply(ticks, Wide::Alloc(block));
        }

        fn free(&mut self, ticks: u64, block: LiveBlock) {
            self.apply(ticks, Wide::Free(block));
        }

        fn realloc(&mut self, ticks: u64, block: LiveBlock, new_size: usize) {
            self.apply(ticks, Wide::Realloc { block, new_size });
        }
    }

    fn points(open: &mut OpenLedger<'_>, end_ticks: u64) -> Vec<ProgramPoint> {
        open.set_cut_ticks(end_ticks);
        let mut figures = Vec::with_capacity(open.n_points_bound());
        open.copy_points(&mut figures);
        let scale = Scale::between(Moment::default(), Moment::default());
        let named = figures
            .iter()
            .map(|figures| figures.with_frames(Default::default(), Mode::Heap, scale));
        named.collect()
    }

    #[test]
    fn later_of_two_equal_peaks_gives_the_values_at_gmax() {
        let ledger = ledger();
        let mut open = ledger.open();
        open.alloc(110, block(A, 30));
        open.free(120, block(A, 30));
        open.alloc(130, block(B, 10));
        open.alloc(140, block(B, 20));
        open.free(150, block(B, 20));
        let totals = open.totals();
        std::assert_eq!((totals.max_bytes, totals.max_blocks), (30, 2));
        let [a, b] = <[_; 2]>::try_from(points(&mut open, 200)).unwrap();
        std::assert_eq!(open.elapsed_at_end_and_gmax(), (100, 40));
        std::assert_eq!((a.at_gmax_bytes, a.max_bytes, a.lifetimes_ns), (0, 30, 10));
        std::assert_eq!((b.at_gmax_bytes, b.at_gmax_blocks), (30, 2));
        std::assert_eq!((b.at_end_bytes, b.at_end_blocks), (10, 1));
        std::assert_eq!(b.lifetimes_ns, 10 + 70);
    }

    #[test]
    fn shrinking_leaves_a_peak_and_keeps_its_values() {
        let ledger = ledger();
        let mut open = ledger.open();
        open.alloc(100, block(A, 50));
        open.realloc(110, block(A, 50), 20);
        let totals = open.totals();
        std::assert_eq!((totals.max_bytes, totals.curr_bytes), (50, 20));
        std::assert_eq!((totals.total_blocks, totals.total_bytes), (2, 70));
        std::assert_eq!((totals.curr_blocks, totals.max_blocks), (1, 1));
        let points = points(&mut open, 160);
        std::assert_eq!((points[0].at_gmax_bytes, points[0].max_bytes), (50, 50));
        std::assert_eq!(points[0].lifetimes_ns, 60);
    }

    #[test]
    fn a_free_that_comes_before_its_alloc_leaves_nothing() {
        let ledger = ledger();
        let mut open = ledger.open();
        open.free(120, block(A, 8));
        open.alloc(120, block(A, 8));
        let totals = open.totals();
        std::assert_eq!((totals.curr_blocks, totals.curr_bytes), (0, 0));
        std::assert_eq!(points(&mut open, 160)[0].lifetimes_ns, 0);
    }

    #[test]
    fn events_of_stale_points_are_ignored() {
        let ledger = ledger();
        let mut open = ledger.open();
        open.restart(B, 0);
        open.alloc(1, block(A, 8));
        open.realloc(1, block(A, 8), 9);
        open.free(1, block(A, 8));
        open.apply(110, Wide::AdHoc { pp: A, weight: 5 });
        std::assert_eq!(open.totals(), Totals::default());
        std::assert!(points(&mut open, 2).is_empty());
    }
}
