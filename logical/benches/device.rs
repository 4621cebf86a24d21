//! Costs of arithmetic and codecs on a device relative to a copy: `cargo bench -p hexagram-logical --features cuda
//! --bench device -- cuda 1,32,1024`, with the name of a device and sizes in MiB of f32. A part of the names of
//! codecs may follow, and then the number of rounds: `all 1` tries every line once.
//!
//! Speeds count the bytes that must move: each input and each output once; single numbers count as the 32 bytes of
//! memory around them. Every measurement copies as many f32 right before, so that other work of the machine slows
//! both. The table has the medians of both speeds, and of their ratios. Work is enqueued several times before the
//! wait for the queue, so that the wait counts little. The last column has the target of a GPU at 1 GiB, if any.

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
/// Bytes of f32 that work is enqueued for before the queue is waited for, and the least and the largest number of times.
const BATCH_BYTES: usize = 10 << 30;
const BATCHES: [usize; 2] = [10, 100];

/// Least bytes that a GPU's memory moves.
const SECTOR: usize = 32;

/// Work with a target, by the beginning of its name, and its target share of a copy's speed.
const TARGETS: &[(&str, f64)] = &[
    ("reduce", 0.85),
    ("f16: ", 0.85),
    ("bf16: ", 0.85),
    ("min-max8: ", 0.85),
    ("sign: ", 0.85),
    ("top-k: ", 0.25),
];

/// Forms of codecs that are of interest in addition to those of the catalogue.
const FORMS: &[&str] = &["min-max8(block=whole)", "sign(block=whole)", "qsgd(levels=127)"];

fn main() {
    // Cargo passes `--bench` to a program without its harness.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let device: DeviceChoice = words.next().as_deref().unwrap_or("auto").parse().unwrap();
    let sizes = words.next().unwrap_or_else(|| "64".to_owned());
    let part = words.next().filter(|part| part != "all").unwrap_or_default();
    let rounds: usize = words.next().as_deref().map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let queue = device.queue(0).unwrap();
    println!("{}, medians of {rounds} rounds", queue.name());
    println!("\n| work | MiB | GB/s | copy GB/s | of a copy | target |\n|---|---|---|---|---|---|");
    for size in sizes.split(',') {
        let mebibytes: f64 = size.parse().unwrap();
        let bench = Bench::new(&queue, mebibytes, rounds).unwrap();
        if part.is_empty() {
            bench.arithmetic().unwrap();
            bench.halves().unwrap();
            bench.transfers().unwrap();
        }
        for name in codec::names().iter().chain(FORMS).filter(|name| name.contains(&part)) {
            bench.codec(name, &*codec::named(name).unwrap()).unwrap();
        }
    }
}

/// Buffers of one queue.
struct Bench {
    queue: Queue,
    mebibytes: f64,
    rounds: usize,
    from: Buffer,
    to: Buffer,
}

impl Bench {
    fn new(queue: &Queue, mebibytes: f64, rounds: usize) -> Result<Self> {
        let len = (mebibytes * f64::from(1 << 18)) as usize;
        let mut word = 1u32;
        let mut draw = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let from: Vec<f32> = (0..len).map(|_| draw() + draw() + draw()).collect();
        Ok(Bench {
            queue: queue.clone(),
            mebibytes,
            rounds,
            from: Buffer::from_slice_on(queue, &from)?,
            to: Buffer::from_slice_on(queue, &from)?,
        })
    }

    /// Prints the lines of the computation in collectives and algorithms.
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

    /// Prints the lines of work on the host, in memory that the device accesses.
    fn transfers(&self) -> Result<()> {
        let bytes = 4 * self.from.len();
        self.line("copy down", bytes, || self.from.host::<f32>().map(drop))?;
        let mut both = Buffer::zeroed_on(&self.queue, DType::F32, self.from.len())?;
        self.line("copy down and up", 2 * bytes, || both.host_mut::<f32>().map(drop))
    }

    /// Prints the lines of 16-bit floats, twice as many as of f32.
    fn halves(&self) -> Result<()> {
        for dtype in [DType::F16, DType::BF16] {
            let len = 2 * self.from.len();
            let from = Buffer::zeroed_on(&self.queue, dtype, len)?;
            let to = Buffer::zeroed_on(&self.queue, dtype, len)?;
            for (name, op) in [("sum", ReduceOp::Sum), ("min", ReduceOp::Min)] {
                let what = format!("reduce: {name} of {dtype}");
                self.line(&what, 6 * len, || to.write_all()?.reduce(op, &from.read_all()?))?;
            }
        }
        Ok(())
    }

    /// Prints the lines of a codec: encoding, and decoding into a sum.
    fn codec(&self, name: &str, codec: &dyn Codec) -> Result<()> {
        let len = self.from.len();
        let message = Buffer::zeroed_on(&self.queue, DType::U8, codec.encoded_len(len))?;
        let mut used = 0;
        let mut encode = || {
            used = message.write_all()?.encode(codec, &self.from.read_all()?, 1)?.unwrap();
            Ok(())
        };
        encode()?;
        let bytes = 4 * len + message.len();
        self.line(&format!("{name}: encode"), bytes, encode)?;
        // Sparse messages need not touch the whole sum.
        let sum = if codec.is_sparse() { 2 * SECTOR * self.sectors(codec, &message, used)? } else { 8 * len };
        self.line(&format!("{name}: decode-add"), message.len() + sum, || {
            self.to.write_all()?.decode(codec, &message.read(0..used)?, Some(1e-3))?.unwrap();
            Ok(())
        })
    }

    /// Returns how many of the sum's sectors a sparse message touches.
    fn sectors(&self, codec: &dyn Codec, message: &Buffer, used: usize) -> Result<usize> {
        let sum = Buffer::zeroed_on(&self.queue, DType::F32, self.from.len())?;
        sum.write_all()?.decode(codec, &message.read(0..used)?, None)?.unwrap();
        let touched = |sector: &&[f32]| sector.iter().any(|x| *x != 0.0);
        Ok(sum.host::<f32>()?.chunks(SECTOR / 4).filter(touched).count())
    }

    /// Prints the line of work that must move this many bytes.
    fn line(&self, what: &str, bytes: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        let copied = Buffer::zeroed_on(&self.queue, DType::F32, self.from.len())?;
        let mut copy = || copied.write_all()?.copy_from(&self.from.read_all()?);
        self.clock(&mut copy)?;
        self.clock(&mut work)?;
        let mut speeds = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..self.rounds {
            let copy = speed(8 * self.from.len(), self.clock(&mut copy)?);
            let work = speed(bytes, self.clock(&mut work)?);
            for (all, one) in speeds.iter_mut().zip([work, copy, work / copy]) {
                all.push(one);
            }
        }
        let [work, copy, ratio] = speeds.map(median);
        let target = TARGETS.iter().find(|(name, _)| what.starts_with(name));
        let target = target.map_or(String::new(), |(_, target)| target.to_string());
        let mebibytes = self.mebibytes;
        println!("| {what} | {mebibytes} | {work:.1} | {copy:.1} | {ratio:.2} | {target} |");
        Ok(())
    }

    /// Returns the time of work, enqueued several times.
    fn clock(&self, work: &mut impl FnMut() -> Result<()>) -> Result<Duration> {
        let [least, most] = BATCHES;
        let times = (BATCH_BYTES / (4 * self.from.len()).max(1)).clamp(least, most);
        let times = if self.rounds == 1 { 1 } else { times };
        self.queue.check()?;
        let start = Instant::now();
        (0..times).try_for_each(|_| work())?;
        self.queue.check()?;
        Ok(start.elapsed() / times as u32)
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
