//! Real threads against what each of them counted.

use std::sync::Mutex;

use super::super::{Anomalies, Mode, Recorder, ShardId};
use super::Random;

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
    // Every other thread has the first shard, so that some share one and some do not.
    let joined = recorder.join();
    let shard = match thread_no % 2 {
        0 => joined,
        _ => ShardId(0),
    };
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
    recorder.leave(joined);
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
