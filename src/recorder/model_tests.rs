//! The recorder against a naive eager tracker, over seeded random traces and over real threads.

use std::collections::HashMap;
use std::sync::Mutex;

use super::journal::{BUFFER_WORDS, N_SHARDS};
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

/// A stack as the model identifies it.
type Stack = (Vec<usize>, u32);

/// What happened, in terms of the order in which blocks and stacks were first seen.
#[derive(Clone, Copy)]
enum What {
    Alloc { block_no: usize, size: usize },
    Free { block_no: usize, size: usize },
    Realloc { old_size: usize, size: usize },
    AdHoc { weight: usize },
}

#[derive(Clone, Copy)]
struct Event {
    /// Time, cut, shard and place: what the ledger's order is made of.
    order: (u64, usize, usize, usize),
    stack_no: usize,
    what: What,
}

/// The shard number that the model gives to deferred events: after all shards.
const DEFERRED: usize = N_SHARDS;

/// Keeps every event of a session and computes every figure anew when asked.
struct Model {
    mode: Mode,
    start_ticks: u64,
    stacks: Vec<Stack>,
    events: Vec<Event>,
    n_blocks: usize,
    n_freed_behind: u64,
    /// The shards' buffers as the journal's header describes them.
    shard_words: [usize; N_SHARDS],
    shard_ticks: [u64; N_SHARDS],
    cut_no: usize,
    cut_ticks: u64,
    n_deferred: usize,
    /// Cuts that a full buffer made.
    n_fills: usize,
}

/// One stack's figures while the model replays a session.
#[derive(Clone, Copy, Default)]
struct Tally {
    n_total: u64,
    total_bytes: u64,
    blocks: i128,
    bytes: i128,
    max_bytes: i128,
    max_blocks: i128,
    gmax_bytes: i128,
    gmax_blocks: i128,
    lifetimes: i128,
}

fn clamped(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap()
}

impl Model {
    fn new(mode: Mode, start_ticks: u64) -> Self {
        Self {
            mode,
            start_ticks,
            stacks: Vec::new(),
            events: Vec::new(),
            n_blocks: 0,
            n_freed_behind: 0,
            shard_words: [0; N_SHARDS],
            shard_ticks: [start_ticks; N_SHARDS],
            cut_no: 0,
            cut_ticks: start_ticks,
            n_deferred: 0,
            n_fills: 0,
        }
    }

    fn stack_no(&mut self, stack: &Stack) -> usize {
        let known = self.stacks.iter().position(|known| known == stack);
        known.unwrap_or_else(|| {
            self.stacks.push(stack.clone());
            self.stacks.len() - 1
        })
    }

    /// An event takes its place in a shard's buffer; a full buffer makes a cut first.
    fn place(&mut self, shard: usize, now: u64, n_words: usize) -> (u64, usize, usize, usize) {
        if self.shard_words[shard] + n_words > BUFFER_WORDS {
            self.cut(now);
            self.n_fills += 1;
        }
        self.shard_words[shard] += n_words;
        self.shard_ticks[shard] = self.shard_ticks[shard].max(now);
        let place = self.events.len();
        (self.shard_ticks[shard], self.cut_no, shard, place)
    }

    fn append(&mut self, shard: usize, now: u64, n_words: usize, stack_no: usize, what: What) {
        let order = self.place(shard, now, n_words);
        self.events.push(Event {
            order,
            stack_no,
            what,
        });
    }

    fn defer(&mut self, now: u64, stack_no: usize, what: What) {
        let ticks = now.max(self.cut_ticks);
        self.n_deferred += 1;
        let order = (ticks, self.cut_no, DEFERRED, self.events.len());
        self.events.push(Event {
            order,
            stack_no,
            what,
        });
    }

    fn cut(&mut self, now: u64) {
        let latest = self.shard_ticks.iter().copied().max().unwrap();
        self.cut_ticks = self.cut_ticks.max(now).max(latest);
        self.shard_ticks = [self.cut_ticks; N_SHARDS];
        self.shard_words = [0; N_SHARDS];
        self.n_deferred = 0;
        self.cut_no += 1;
    }

    /// Replays the session, copying every stack's values at every new peak.
    fn snapshot(&self) -> Snapshot {
        let mut sorted = self.events.clone();
        sorted.sort_by_key(|event| (event.order.1, event.order));
        let mut all = Tally::default();
        let mut gmax_ticks = self.start_ticks;
        let mut of_stacks = vec![Tally::default(); self.stacks.len()];
        for event in &sorted {
            let (n_blocks, n_bytes, n_allocated) = match event.what {
                What::Alloc { size, .. } => (1, size as i128, Some(size)),
                What::Free { size, .. } => (-1, -(size as i128), None),
                What::Realloc { old_size, size } => {
                    (0, size as i128 - old_size as i128, Some(size))
                }
                What::AdHoc { weight } => (0, 0, Some(weight)),
            };
            let of_stack = &mut of_stacks[event.stack_no];
            for tally in [&mut all, &mut *of_stack] {
                tally.blocks += n_blocks;
                tally.bytes += n_bytes;
                if let Some(size) = n_allocated {
                    tally.n_total += 1;
                    tally.total_bytes += size as u64;
                }
                let is_heap = self.mode == Mode::Heap;
                if is_heap && n_allocated.is_some() && tally.bytes >= tally.max_bytes {
                    tally.max_bytes = tally.bytes;
                    tally.max_blocks = tally.blocks;
                }
            }
            let is_peak = all.bytes == all.max_bytes && n_allocated.is_some();
            if self.mode == Mode::Heap && is_peak {
                gmax_ticks = event.order.0;
                for tally in &mut of_stacks {
                    tally.gmax_bytes = tally.bytes;
                    tally.gmax_blocks = tally.blocks;
                }
            }
        }
        self.add_lifetimes(&mut of_stacks);
        self.snapshot_of(all, &of_stacks, gmax_ticks)
    }

    /// Adds the life of each block on its own: from its allocation to its free or to the end.
    fn add_lifetimes(&self, of_stacks: &mut [Tally]) {
        let mut born: HashMap<usize, (usize, u64)> = HashMap::new();
        let mut died: HashMap<usize, u64> = HashMap::new();
        for event in &self.events {
            match event.what {
                What::Alloc { block_no, .. } => {
                    born.insert(block_no, (event.stack_no, event.order.0));
                }
                What::Free { block_no, .. } => {
                    died.insert(block_no, event.order.0);
                }
                What::Realloc { .. } | What::AdHoc { .. } => {}
            }
        }
        for (block_no, (stack_no, birth)) in born {
            let death = died.get(&block_no).copied().unwrap_or(self.cut_ticks);
            of_stacks[stack_no].lifetimes += i128::from(death) - i128::from(birth);
        }
    }

    fn snapshot_of(&self, all: Tally, of_stacks: &[Tally], gmax_ticks: u64) -> Snapshot {
        let points = of_stacks.iter().zip(&self.stacks);
        let points = points.filter(|(tally, _)| tally.n_total != 0);
        Snapshot {
            mode: self.mode,
            totals: Totals {
                total_blocks: all.n_total,
                total_bytes: all.total_bytes,
                curr_blocks: clamped(all.blocks),
                curr_bytes: clamped(all.bytes),
                max_blocks: clamped(all.max_blocks),
                max_bytes: clamped(all.max_bytes),
            },
            end_ns: self.cut_ticks - self.start_ticks,
            gmax_ns: gmax_ticks - self.start_ticks,
            points: points
                .map(|(tally, (frames, tag))| ProgramPoint {
                    frames: frames.clone().into(),
                    tag: *tag,
                    total_blocks: tally.n_total,
                    total_bytes: tally.total_bytes,
                    max_bytes: clamped(tally.max_bytes),
                    max_blocks: clamped(tally.max_blocks),
                    at_gmax_bytes: clamped(tally.gmax_bytes),
                    at_gmax_blocks: clamped(tally.gmax_blocks),
                    at_end_bytes: clamped(tally.bytes),
                    at_end_blocks: clamped(tally.blocks),
                    lifetimes_ns: clamped(tally.lifetimes).into(),
                })
                .collect(),
            anomalies: Anomalies {
                n_freed_behind: self.n_freed_behind,
                ..Anomalies::default()
            },
        }
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
const N_SEEDS: u64 = if cfg!(miri) { 1 } else { 12 };

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

/// What one thread of the stress test counted.
#[derive(Default)]
struct Counted {
    blocks: u64,
    bytes: u64,
    /// The most that its own blocks, freed by itself, held at once.
    own_peak: u64,
}

const N_THREADS: usize = 8;

fn churn(recorder: &Recorder, thread_no: usize, handed: &Mutex<Vec<usize>>) -> Counted {
    let shard = recorder.join();
    let mut random = Random(thread_no as u64);
    let mut counted = Counted::default();
    let mut own: Vec<(usize, u64)> = Vec::new();
    let mut own_bytes = 0;
    let free = |addr: usize| {
        let block = recorder.take(addr).expect("live block");
        recorder.record_free(shard, block);
        block.size as u64
    };
    for nth in 0..if cfg!(miri) { 100 } else { 30_000 } {
        let addr = (thread_no + 1) << 32 | nth << 4;
        let size = random.below(1_000);
        let pp = recorder.intern(&[thread_no % 3, random.below(50)], 0);
        recorder.record_alloc(shard, addr, size, pp);
        counted.blocks += 1;
        counted.bytes += size as u64;
        match random.below(4) {
            0 => handed.lock().unwrap().push(addr),
            1 => {
                let block = recorder.take(addr).expect("live block");
                let new_size = random.below(1_000);
                recorder.record_realloc(shard, block, addr, new_size);
                counted.blocks += 1;
                counted.bytes += new_size as u64;
                own.push((addr, new_size as u64));
                own_bytes += new_size as u64;
            }
            _ => {
                own.push((addr, size as u64));
                own_bytes += size as u64;
            }
        }
        counted.own_peak = counted.own_peak.max(own_bytes);
        let given = random.one_in(3).then(|| handed.lock().unwrap().pop());
        if let Some(addr) = given.flatten() {
            free(addr);
        }
        if own.len() > 100 {
            let (addr, size) = own.swap_remove(random.below(100));
            std::assert_eq!(free(addr), size);
            own_bytes -= size;
        }
    }
    own.iter().for_each(|(addr, _)| _ = free(*addr));
    recorder.leave(shard);
    counted
}

#[test]
fn eight_threads_lose_nothing() {
    let recorder = Box::new(Recorder::new());
    std::assert!(recorder.start(Mode::Heap));
    let handed = Mutex::new(Vec::new());
    let counted: Vec<Counted> = std::thread::scope(|scope| {
        let (recorder, handed) = (&*recorder, &handed);
        let churn = |thread_no| scope.spawn(move || churn(recorder, thread_no, handed));
        let threads: Vec<_> = (0..N_THREADS).map(churn).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            let snapshot = recorder.snapshot();
            let at_end = snapshot.points.iter().map(|point| point.at_end_bytes);
            std::assert_eq!(at_end.sum::<u64>(), snapshot.totals.curr_bytes);
        }
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    let shard = recorder.join();
    for addr in handed.into_inner().unwrap() {
        recorder.record_free(shard, recorder.take(addr).unwrap());
    }
    let snapshot = recorder.stop();
    let totals = snapshot.totals;
    let n_blocks: u64 = counted.iter().map(|counted| counted.blocks).sum();
    let n_bytes: u64 = counted.iter().map(|counted| counted.bytes).sum();
    std::assert_eq!(
        (totals.total_blocks, totals.total_bytes),
        (n_blocks, n_bytes)
    );
    std::assert_eq!((totals.curr_blocks, totals.curr_bytes), (0, 0));
    let largest_own_peak = counted.iter().map(|counted| counted.own_peak).max();
    std::assert!(totals.max_bytes >= largest_own_peak.unwrap());
    std::assert!(totals.max_bytes <= n_bytes);
    let at_gmax = snapshot.points.iter().map(|point| point.at_gmax_bytes);
    std::assert_eq!(at_gmax.sum::<u64>(), totals.max_bytes);
    std::assert!(snapshot.points.iter().all(|point| point.at_end_blocks == 0));
    std::assert_eq!(snapshot.anomalies, Anomalies::default());
}
