//! The recorder against a naive eager tracker, over seeded random traces and over real threads.

mod oracle;
mod threads;

use std::collections::HashMap;

use oracle::{Model, Stack, What};

use super::*;

/// SplitMix64 (S. Vigna, public domain).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn assert_same(real: &Snapshot, expected: &Snapshot) {
    std::assert_eq!(real.mode, expected.mode);
    std::assert_eq!(real.totals, expected.totals);
    std::assert_eq!(real.anomalies, expected.anomalies);
    std::assert_eq!(
        (real.end_ns, real.gmax_ns),
        (expected.end_ns, expected.gmax_ns)
    );
    std::assert_eq!(real.points.len(), expected.points.len());
    for (real, expected) in real.points.iter().zip(&expected.points) {
        std::assert_eq!(real, expected);
    }
}

/// A live block as the model knows it.
#[derive(Clone, Copy)]
struct ModelBlock {
    block_no: usize,
    stack_no: usize,
    size: usize,
}

impl ModelBlock {
    fn freed(self) -> What {
        What::Free {
            block_no: self.block_no,
            size: self.size,
        }
    }
}

/// A session driven at random, with its model.
struct Trace<'a> {
    recorder: &'a Recorder,
    random: Random,
    model: Model,
    live: HashMap<usize, ModelBlock>,
    now: u64,
    n_shards: usize,
    /// Without huge blocks peaks are frequent; with them rare.
    has_huge_blocks: bool,
}

/// The largest size whose events are short, plus one.
const WIDE: usize = (1 << 36) - 1;

fn n_words(size: usize) -> usize {
    if size < WIDE { 2 } else { 4 }
}

impl Trace<'_> {
    fn start(recorder: &Recorder, seed: u64, mode: Mode, start_ticks: u64) -> Trace<'_> {
        recorder.journal.clock.set(start_ticks);
        std::assert!(recorder.start(mode));
        let mut random = Random(seed);
        Trace {
            recorder,
            n_shards: 1 + random.below(6),
            has_huge_blocks: random.one_in(2),
            random,
            model: Model::new(mode, start_ticks),
            live: HashMap::new(),
            now: start_ticks,
        }
    }

    fn stack(&mut self) -> Stack {
        let n_frames = self.random.below(6);
        let frames = (0..n_frames).map(|_| 1 + self.random.below(2)).collect();
        (frames, self.random.below(2) as u32)
    }

    fn addr(&mut self) -> usize {
        let nth = self.random.below(300);
        match self.random.below(12) {
            0 => (1 << 40) + 8 + 16 * nth,
            1 => (1 << 40) + 3 + 16 * nth,
            2 => (1 << 52) + 16 * nth,
            3 => (1 << 47) - 16 - 16 * nth,
            _ => (1 << 40) + 16 * nth,
        }
    }

    fn size(&mut self) -> usize {
        match self.random.below(40) {
            0 => 0,
            1..4 if !self.has_huge_blocks => self.random.below(5_000),
            1 => WIDE - 1,
            2 => WIDE + self.random.below(2),
            3 => 1 << 44,
            _ => self.random.below(500),
        }
    }

    /// Mostly the clock stands; sometimes it runs, rarely it goes back.
    fn tick(&mut self) {
        match self.random.below(100) {
            0..30 => self.now += self.random.below(10) as u64,
            30 => self.now -= self.random.below(5) as u64,
            _ => {}
        }
        self.recorder.journal.clock.set(self.now);
    }

    fn shard(&mut self) -> usize {
        self.random.below(self.n_shards)
    }

    fn intern(&mut self) -> (PpId, usize) {
        let stack = self.stack();
        let pp = self.recorder.intern(&stack.0, stack.1);
        (pp, self.model.stack_no(&stack))
    }

    /// The model's side of a block that appears at `addr`: what was there is retired.
    fn retire(&mut self, shard: usize, addr: usize) {
        if let Some(over) = self.live.remove(&addr) {
            self.model.n_freed_behind += 1;
            self.model_free(shard, over);
        }
    }

    fn model_free(&mut self, shard: usize, block: ModelBlock) {
        let what = block.freed();
        let n_words = n_words(block.size);
        self.model
            .append(shard, self.now, n_words, block.stack_no, what);
    }

    fn alloc(&mut self) {
        let (shard, addr, size) = (self.shard(), self.addr(), self.size());
        if self.live.contains_key(&addr) && !self.random.one_in(8) {
            return;
        }
        let (pp, stack_no) = self.intern();
        let id = ShardId(shard as u32);
        self.recorder.record_alloc(id, addr, size, pp);
        self.retire(shard, addr);
        let block_no = self.model.n_blocks;
        self.model.n_blocks += 1;
        self.model.append(
            shard,
            self.now,
            n_words(size),
            stack_no,
            What::Alloc { block_no, size },
        );
        let block = ModelBlock {
            block_no,
            stack_no,
            size,
        };
        self.live.insert(addr, block);
    }

    /// Takes the block at a random address out of both sides; they agree on whether there is one and on its size.
    fn take(&mut self) -> Option<(usize, LiveBlock, ModelBlock)> {
        let addr = self.addr();
        let real = self.recorder.take(addr);
        let modeled = self.live.remove(&addr);
        std::assert_eq!(
            real.map(|block| block.size),
            modeled.map(|block| block.size)
        );
        Some((addr, real?, modeled?))
    }

    fn free(&mut self) {
        let Some((_, real, modeled)) = self.take() else {
            return;
        };
        if self.random.one_in(50) && self.model.n_deferred < 200 {
            self.recorder.defer_free(real);
            self.model
                .defer(self.now, modeled.stack_no, modeled.freed());
            return;
        }
        let shard = self.shard();
        self.recorder.record_free(ShardId(shard as u32), real);
        self.model_free(shard, modeled);
    }

    fn realloc(&mut self) {
        let Some((old_addr, real, modeled)) = self.take() else {
            return;
        };
        if self.random.one_in(10) {
            self.recorder.put_back(old_addr, real);
            self.live.insert(old_addr, modeled);
            return;
        }
        let (shard, size) = (self.shard(), self.size());
        let (old_size, stack_no) = (modeled.size, modeled.stack_no);
        let what = What::Realloc { old_size, size };
        if self.random.one_in(50) && self.model.n_deferred < 200 {
            self.recorder.defer_realloc(real, old_addr, size);
            self.model.defer(self.now, stack_no, what);
            self.live.insert(old_addr, ModelBlock { size, ..modeled });
            return;
        }
        let addr = match self.random.one_in(2) {
            true => old_addr,
            false => self.addr(),
        };
        let id = ShardId(shard as u32);
        self.recorder.record_realloc(id, real, addr, size);
        self.retire(shard, addr);
        self.model.append(shard, self.now, 4, stack_no, what);
        self.live.insert(addr, ModelBlock { size, ..modeled });
    }

    fn ad_hoc(&mut self) {
        let (shard, weight) = (self.shard(), self.size());
        let (pp, stack_no) = self.intern();
        let id = ShardId(shard as u32);
        self.recorder.record_event(id, weight, pp);
        let what = What::AdHoc { weight };
        self.model.append(shard, self.now, 4, stack_no, what);
    }

    /// A block of an earlier session is freed and moved in this one: its events take room and mean nothing.
    fn straggle(&mut self, stale: LiveBlock) {
        let shard = self.shard();
        let id = ShardId(shard as u32);
        self.recorder.record_free(id, stale);
        self.model.place(shard, self.now, n_words(stale.size));
        let addr = (1 << 41) + 16 * self.random.below(300);
        self.recorder.record_realloc(id, stale, addr, 7);
        self.model.place(shard, self.now, 4);
        self.recorder.defer_free(stale);
        self.model.n_deferred += 1;
        std::assert_eq!(self.recorder.take(addr), None);
    }

    fn step(&mut self) {
        self.tick();
        if self.random.one_in(12_000) {
            self.model.cut(self.now);
            // A first snapshot finds no room for its points and makes a second cut at the same time.
            self.model.cut(self.now);
            assert_same(&self.recorder.snapshot(), &self.model.snapshot());
        } else if self.random.one_in(12_000) {
            self.model.cut(self.now);
            std::assert_eq!(self.recorder.totals(), self.model.snapshot().totals);
        }
        match self.model.mode {
            Mode::AdHoc => self.ad_hoc(),
            Mode::Heap => match self.random.below(10) {
                0..5 => self.alloc(),
                5..8 => self.free(),
                _ => self.realloc(),
            },
        }
    }

    /// Ends the session; returns its end and how often a buffer was full.
    fn stop(mut self) -> (u64, usize) {
        self.model.cut(self.now);
        let snapshot = self.recorder.snapshot();
        assert_same(&snapshot, &self.model.snapshot());
        assert_same(&self.recorder.stop(), &self.model.snapshot());
        std::assert!(
            self.live
                .keys()
                .all(|&addr| self.recorder.take(addr).is_none())
        );
        (self.model.cut_ticks, self.model.n_fills)
    }
}

const N_STEPS: usize = if cfg!(miri) { 300 } else { 20_000 };
const N_SEEDS: u64 = if cfg!(miri) {
    1
} else if cfg!(debug_assertions) {
    5
} else {
    40
};

#[test]
fn random_traces_agree_with_the_model_over_several_sessions() {
    let mut n_all_fills = 0;
    for seed in 0..N_SEEDS {
        let recorder = Box::new(Recorder::new());
        let mut start_ticks = 1_000_000;
        let mut stale = None;
        for session in 0..3 {
            let mut trace = Trace::start(&recorder, seed << 8 | session, Mode::Heap, start_ticks);
            for step in 0..N_STEPS {
                trace.step();
                if let (Some(stale), 0) = (stale, step % 1_000) {
                    trace.straggle(stale);
                }
            }
            let addr = trace.live.keys().copied().next();
            let kept = addr.and_then(|addr| {
                let block = recorder.take(addr)?;
                recorder.put_back(addr, block);
                Some(block)
            });
            stale = kept;
            let (end_ticks, n_fills) = trace.stop();
            start_ticks = end_ticks + 50;
            n_all_fills += n_fills;
        }
    }
    std::assert!(n_all_fills > 0 || cfg!(miri));
}

#[test]
fn random_ad_hoc_traces_agree_with_the_model() {
    for seed in 0..N_SEEDS {
        let recorder = Box::new(Recorder::new());
        let mut trace = Trace::start(&recorder, seed, Mode::AdHoc, 77);
        (0..N_STEPS).for_each(|_| trace.step());
        trace.stop();
    }
}
