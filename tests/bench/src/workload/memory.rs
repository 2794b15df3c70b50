//! Workloads about what happens to blocks: they stay, they grow, they are freed elsewhere, they are large.

use crate::Prepared;
use crate::random::Random;
use std::hint::black_box;
use std::sync::mpsc::sync_channel;

/// `n` blocks of 32 bytes that all stay. The list that holds them is made beforehand.
pub fn growth(n: usize) -> Prepared {
    let mut live: Vec<Box<[u8; 32]>> = Vec::with_capacity(n);
    Box::new(move || {
        for i in 0..n / 4 {
            let byte = i as u8;
            live.push(block_below_two(byte));
            live.push(block_below_two(byte + (live.len() & 1) as u8));
            live.push(block_below_one(byte));
            live.push(Box::new([byte; 32]));
        }
        Box::new(live)
    })
}

#[inline(never)]
fn block_below_two(byte: u8) -> Box<[u8; 32]> {
    black_box(block_below_one(byte))
}

#[inline(never)]
fn block_below_one(byte: u8) -> Box<[u8; 32]> {
    black_box(Box::new([byte; 32]))
}

/// Blocks that go over at once, so that the channel's own cost is small beside theirs.
const BLOCKS_A_BATCH: usize = 256;

/// `n` blocks, each allocated on one thread and freed on another. The batches they travel in are used again.
pub fn handoff(n: usize) -> Prepared {
    Box::new(move || {
        let (full_in, full_out) = sync_channel::<Vec<Box<[u8; 48]>>>(16);
        let (empty_in, empty_out) = sync_channel(16);
        for _ in 0..16 {
            empty_in
                .send(Vec::with_capacity(BLOCKS_A_BATCH))
                .expect("the channel is open");
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for mut batch in full_out {
                    batch.clear();
                    // The producer may have gone already.
                    let _ = empty_in.send(batch);
                }
            });
            for _ in 0..n / BLOCKS_A_BATCH {
                let mut batch = empty_out.recv().expect("batches come back");
                while batch.len() < BLOCKS_A_BATCH {
                    batch.push(Box::new([batch.len() as u8; 48]));
                }
                full_in.send(batch).expect("the consumer listens");
            }
            drop(full_in);
        });
        Box::new(())
    })
}

/// `n` strings, each grown from nothing to at least 512 bytes piece by piece.
pub fn realloc(n: usize) -> Prepared {
    const WORDS: &str = "the quick brown fox jumps over a lazy dog";
    Box::new(move || {
        let mut random = Random::new(7);
        for _ in 0..n {
            let mut text = String::new();
            while text.len() < 512 {
                text.push_str(&WORDS[..7 + random.below(16) as usize]);
            }
            black_box(text);
        }
        Box::new(())
    })
}

/// `n` buffers of 1 MiB, of which the first and the last byte are written.
pub fn large(n: usize) -> Prepared {
    const SIZE: usize = 1 << 20;
    Box::new(move || {
        for i in 0..n {
            let mut buffer: Vec<u8> = black_box(Vec::with_capacity(SIZE));
            let room = buffer.spare_capacity_mut();
            room[0].write(i as u8);
            room[SIZE - 1].write(i as u8);
            black_box(&buffer);
        }
        Box::new(())
    })
}
