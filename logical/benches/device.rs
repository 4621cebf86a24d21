//! What arithmetic and codecs cost on a device beside a copy: `cargo bench -p hexagram-logical --features cuda --bench
//! device -- cuda 1024`, with the name of a device and the MiB of f32, and if you like a part of the names of codecs.
//!
//! Speeds are of the bytes that must move: what is read and what is written, once each. Every measurement copies as
//! many f32 right before, so that a machine with other work slows both; the table has the medians of both speeds, and
//! of their ratios. Work is enqueued several times before the queue is waited for, so that the wait counts little.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "no interface; a measurement that cannot go on has failed"
)]

use hexagram_logical::codec::{self, Codec};
use hexagram_logical::{Buffer, DType, Queue, ReduceOp, Result};
use hexagram_physical::device::DeviceChoice;
use std::time::{Duration, Instant};

/// Rounds of copy and work, of which the medians are printed.
const ROUNDS: usize = 11;
/// Times that work is enqueued before the queue is waited for.
const BATCH: usize = 10;

/// Codecs, as they are spelled.
const CODECS: &[&str] = &[
    "f16",
    "bf16",
    "min-max8",
    "min-max8(block=whole)",
    "e4m3",
    "e3m0",
    "int4",
    "sign",
    "sign(block=whole)",
    "qsgd(levels=7)",
    "qsgd(levels=127)",
    "top-k(1%)",
    "random-k(1%)",
];

fn main() {
    // Cargo says `--bench` to a program without a harness of its own.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let device: DeviceChoice = words.next().as_deref().unwrap_or("auto").parse().unwrap();
    let mebibytes: usize = words.next().as_deref().unwrap_or("64").parse().unwrap();
    let queue = device.queue(0).unwrap();
    println!("{}, {mebibytes} MiB of f32, medians of {ROUNDS} rounds of {BATCH}", queue.name());
    println!("\n| work | GB/s | copy GB/s | of a copy |\n|---|---|---|---|");
    let bench = Bench::new(&queue, mebibytes << 18).unwrap();
    let part = words.next().unwrap_or_default();
    if part.is_empty() {
        bench.arithmetic().unwrap();
    }
    for name in CODECS.iter().filter(|name| name.contains(&part)) {
        bench.codec(&*codec::named(name).unwrap()).unwrap();
    }
}

/// Buffers of one queue.
struct Bench {
    queue: Queue,
    from: Buffer,
    to: Buffer,
}

impl Bench {
    fn new(queue: &Queue, len: usize) -> Result<Self> {
        let mut word = 1u32;
        let mut draw = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let from: Vec<f32> = (0..len).map(|_| draw() + draw() + draw()).collect();
        Ok(Bench {
            queue: queue.clone(),
            from: Buffer::from_slice_on(queue, &from)?,
            to: Buffer::from_slice_on(queue, &from)?,
        })
    }

    /// Prints the lines of what collectives and algorithms compute.
    fn arithmetic(&self) -> Result<()> {
        let bytes = 4 * self.from.len();
        let from = || self.from.read_all();
        let to = || self.to.write_all();
        self.line("clear", bytes, || {
            to()?.clear();
            Ok(())
        })?;
        self.line("reduce: sum", 3 * bytes, || to()?.reduce(ReduceOp::Sum, &from()?))?;
        self.line("scale", 2 * bytes, || to()?.scale(0.999))?;
        self.line("add scaled", 3 * bytes, || to()?.add_scaled(1e-3, &from()?))?;
        self.line("weighted sum of 2", 3 * bytes, || {
            to()?.weighted_sum(&[(0.5, None), (0.5, Some(&from()?))])
        })
    }

    /// Prints the lines of a codec: encoding, and decoding into a sum.
    fn codec(&self, codec: &dyn Codec) -> Result<()> {
        let len = self.from.len();
        let message = Buffer::zeroed_on(&self.queue, DType::U8, codec.encoded_len(len))?;
        let mut used = 0;
        let mut encode = || {
            used = message.write_all()?.encode(codec, &self.from.read_all()?, 1)?.unwrap();
            Ok(())
        };
        encode()?;
        let bytes = 4 * len + message.len();
        self.line(&format!("{}: encode", codec.name()), bytes, encode)?;
        // What is sparse need not touch all of the sum.
        let sum = if codec.is_sparse() { 2 * message.len() } else { 8 * len };
        self.line(&format!("{}: decode-add", codec.name()), message.len() + sum, || {
            self.to.write_all()?.decode(codec, &message.read(0..used)?, Some(1e-3))?.unwrap();
            Ok(())
        })
    }

    /// Prints the line of work that has to move so many bytes.
    fn line(&self, what: &str, bytes: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        let copied = Buffer::zeroed_on(&self.queue, DType::F32, self.from.len())?;
        let mut copy = || copied.write_all()?.copy_from(&self.from.read_all()?);
        self.clock(&mut copy)?;
        self.clock(&mut work)?;
        let mut speeds = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let copy = speed(8 * self.from.len(), self.clock(&mut copy)?);
            let work = speed(bytes, self.clock(&mut work)?);
            for (all, one) in speeds.iter_mut().zip([work, copy, work / copy]) {
                all.push(one);
            }
        }
        let [work, copy, ratio] = speeds.map(median);
        println!("| {what} | {work:.1} | {copy:.1} | {ratio:.2} |");
        Ok(())
    }

    /// Returns the time of work, enqueued several times.
    fn clock(&self, work: &mut impl FnMut() -> Result<()>) -> Result<Duration> {
        self.queue.check()?;
        let start = Instant::now();
        (0..BATCH).try_for_each(|_| work())?;
        self.queue.check()?;
        Ok(start.elapsed() / BATCH as u32)
    }
}

/// Returns GB per second.
fn speed(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64() / 1e9
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
