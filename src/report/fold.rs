//! Program points whose shown frames are equal become one.

use super::dhat::{HeapEntry, PpEntry};
use super::micros_at_least_one;
use crate::recorder::{Mode, ProgramPoint};
use std::collections::HashMap;

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Amount {
    bytes: u64,
    blocks: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64, blocks: u64) {
        self.bytes += bytes;
        self.blocks += blocks;
    }
}

/// The sum of the program points with one list of frames.
#[derive(Debug, Default)]
struct Folded {
    n_points: u64,
    total: Amount,
    /// The largest of the points' maxima.
    max: Amount,
    at_gmax: Amount,
    at_end: Amount,
    lifetimes_ns: u128,
}

impl Folded {
    fn add(&mut self, point: &ProgramPoint) {
        self.n_points += 1;
        self.total.add(point.total_bytes, point.total_blocks);
        self.max = self.max.max(Amount {
            bytes: point.max_bytes,
            blocks: point.max_blocks,
        });
        self.at_gmax.add(point.at_gmax_bytes, point.at_gmax_blocks);
        self.at_end.add(point.at_end_bytes, point.at_end_blocks);
        self.lifetimes_ns += point.lifetimes_ns;
    }

    /// A lower bound when points were folded: when their sum was highest is not known.
    fn max(&self) -> Amount {
        match self.n_points {
            1 => self.max,
            _ => self.max.max(self.at_gmax).max(self.at_end),
        }
    }

    fn entry(&self, mode: Mode) -> PpEntry {
        let max = self.max();
        let heap = HeapEntry {
            tl: micros_at_least_one(self.lifetimes_ns.max(1)),
            mb: max.bytes,
            mbk: max.blocks,
            gb: self.at_gmax.bytes,
            gbk: self.at_gmax.blocks,
            eb: self.at_end.bytes,
            ebk: self.at_end.blocks,
        };
        PpEntry {
            tb: self.total.bytes,
            tbk: self.total.blocks,
            heap: (mode == Mode::Heap).then_some(heap),
            fs: Box::default(),
        }
    }
}

/// Collects program points by their shown frames.
#[derive(Debug, Default)]
pub(super) struct Folds {
    by_frames: HashMap<Box<[u32]>, usize>,
    points: Vec<Folded>,
}

impl Folds {
    /// Adds a point that is shown with `frames`, indices into the frame table.
    pub(super) fn add(&mut self, frames: &[u32], point: &ProgramPoint) {
        let idx = match self.by_frames.get(frames) {
            Some(&idx) => idx,
            None => {
                self.by_frames.insert(frames.into(), self.points.len());
                self.points.push(Folded::default());
                self.points.len() - 1
            }
        };
        self.points[idx].add(point);
    }

    /// The entries of the file in the order of their first point, and how many points went into others.
    pub(super) fn finish(self, mode: Mode) -> (Vec<PpEntry>, u64) {
        let mut entries: Vec<PpEntry> = self.points.iter().map(|point| point.entry(mode)).collect();
        for (frames, idx) in self.by_frames {
            entries[idx].fs = frames;
        }
        let n_folded = self.points.iter().map(|point| point.n_points - 1).sum();
        (entries, n_folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(max: (u64, u64), at_gmax: (u64, u64), at_end: (u64, u64)) -> ProgramPoint {
        ProgramPoint {
            frames: Box::default(),
            tag: 0,
            total_blocks: 3,
            total_bytes: 100,
            max_bytes: max.0,
            max_blocks: max.1,
            at_gmax_bytes: at_gmax.0,
            at_gmax_blocks: at_gmax.1,
            at_end_bytes: at_end.0,
            at_end_blocks: at_end.1,
            lifetimes_ns: 1_600,
        }
    }

    fn fold(points: &[ProgramPoint]) -> (Vec<PpEntry>, u64) {
        let mut folds = Folds::default();
        points.iter().for_each(|point| folds.add(&[7, 3], point));
        folds.finish(Mode::Heap)
    }

    #[test]
    fn totals_peaks_ends_and_lifetimes_are_summed() {
        let (entries, n_folded) = fold(&[
            point((50, 2), (10, 1), (4, 2)),
            point((40, 1), (20, 1), (5, 3)),
        ]);
        std::assert_eq!(n_folded, 1);
        let heap = HeapEntry {
            tl: 3, // 3,200 ns
            mb: 50,
            mbk: 2,
            gb: 30,
            gbk: 2,
            eb: 9,
            ebk: 5,
        };
        let expected = PpEntry {
            tb: 200,
            tbk: 6,
            heap: Some(heap),
            fs: [7, 3].into(),
        };
        std::assert_eq!(entries, [expected]);
    }

    #[test]
    fn summed_peak_is_a_maximum_when_it_is_the_largest() {
        let (entries, _) = fold(&[
            point((50, 2), (50, 2), (1, 1)),
            point((40, 1), (40, 1), (1, 1)),
        ]);
        let heap = entries[0].heap.as_ref().unwrap();
        std::assert_eq!((heap.mb, heap.mbk), (90, 3));
    }

    #[test]
    fn summed_end_is_a_maximum_when_it_is_the_largest() {
        let (entries, _) = fold(&[
            point((50, 2), (1, 1), (30, 4)),
            point((40, 1), (1, 1), (31, 5)),
        ]);
        let heap = entries[0].heap.as_ref().unwrap();
        std::assert_eq!((heap.mb, heap.mbk), (61, 9));
    }

    #[test]
    fn single_point_keeps_its_own_maximum() {
        // The latest moment of the highest bytes may have fewer blocks than t-gmax had.
        let (entries, n_folded) = fold(&[point((50, 1), (50, 2), (0, 0))]);
        let heap = entries[0].heap.as_ref().unwrap();
        std::assert_eq!((heap.mb, heap.mbk, n_folded), (50, 1, 0));
    }

    #[test]
    fn different_frames_stay_apart_in_the_order_of_their_first_point() {
        let mut folds = Folds::default();
        for frames in [[2, 1], [1, 2], [2, 1], [9, 9]] {
            folds.add(&frames, &point((1, 1), (1, 1), (0, 0)));
        }
        let (entries, n_folded) = folds.finish(Mode::AdHoc);
        let frames: Vec<&[u32]> = entries.iter().map(|entry| &*entry.fs).collect();
        std::assert_eq!(frames, [[2, 1], [1, 2], [9, 9]]);
        std::assert_eq!(n_folded, 1);
        std::assert!(entries.iter().all(|entry| entry.heap.is_none()));
    }
}
