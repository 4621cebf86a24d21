//! Costs of codecs relative to a copy: `cargo bench -p hexagram-logical --bench codecs`, on one thread.
//!
//! Every measurement copies the same f32 right before, so that a machine with other work slows both; the table at the
//! end has the medians of all, and of the ratios. "Of memcpy" above 1 is faster than copying.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "no interface; a measurement that cannot go on has failed"
)]

use criterion::{Criterion, Throughput};
use hexagram_logical::codec::{Codec, named, names};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of f32: in memory, and in the second-level cache.
const SIZES: [usize; 2] = [256 << 20, 64 << 10];

/// Bytes between two looks at the clock, at least.
const BATCH: usize = 4 << 20;

/// Those of the catalogue, and forms of them that are of interest.
fn codecs() -> Vec<Arc<dyn Codec>> {
    let forms = ["min-max8(block=whole)", "sign(block=whole)", "qsgd(levels=127)"];
    names().into_iter().chain(forms).map(|form| named(form).unwrap()).collect()
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    criterion =
        criterion.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_millis(1500));
    let mut lines = Vec::new();
    for bytes in SIZES {
        let mut bench = Bench::new(&mut criterion, bytes);
        codecs().iter().for_each(|codec| lines.extend(bench.codec(&**codec)));
    }
    criterion.final_summary();
    println!(
        "\n| codec | f32 bytes | operation | GB/s | memcpy GB/s | of memcpy |\n|---|---|---|---|---|---|"
    );
    lines.iter().for_each(|line| println!("{line}"));
}

/// Buffers of one size, all of them touched.
struct Bench<'a> {
    criterion: &'a mut Criterion,
    bytes: usize,
    from: Vec<f32>,
    copy: Vec<f32>,
    sum: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(criterion: &'a mut Criterion, bytes: usize) -> Self {
        let mut word = 1u32;
        let mut draw = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let from: Vec<f32> = (0..bytes / 4).map(|_| draw() + draw() + draw()).collect();
        Bench { criterion, bytes, copy: from.clone(), sum: from.clone(), from }
    }

    /// Lines of the table: encoding, and decoding into a sum.
    fn codec(&mut self, codec: &dyn Codec) -> Vec<String> {
        let mut message = vec![1; codec.encoded_len(self.from.len())];
        let used = codec.encode(&self.from, &mut message, 1).unwrap();
        let from = std::mem::take(&mut self.from);
        let mut sum = std::mem::take(&mut self.sum);
        let encode = self.measure(&from, codec, "encode", |x| {
            codec.encode(black_box(x), black_box(&mut message), 1).unwrap();
        });
        let add = self.measure(&from, codec, "decode-add", |_| {
            codec.decode_add(black_box(&message[..used]), 1e-3, black_box(&mut sum)).unwrap();
        });
        self.from = from;
        self.sum = sum;
        encode.into_iter().chain(add).collect()
    }

    /// The line of one operation, unless the command line left it out.
    fn measure(
        &mut self,
        from: &[f32],
        codec: &dyn Codec,
        operation: &str,
        mut work: impl FnMut(&[f32]),
    ) -> Option<String> {
        let mut copies = Vec::new();
        let mut works = Vec::new();
        let times = (BATCH / self.bytes).max(1);
        let mut group = self.criterion.benchmark_group(format!("{} KiB", self.bytes >> 10));
        group.throughput(Throughput::Bytes((self.bytes * times) as u64));
        group.bench_function(format!("{} {operation}", codec.name()), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    copies.push(clock(times, || black_box(&mut self.copy).copy_from_slice(black_box(from))));
                    let took = clock(times, || work(from));
                    works.push(took);
                    total += took;
                }
                total
            });
        });
        group.finish();
        let speed = |took: f64| (self.bytes * times) as f64 / took / 1e9;
        let ratios =
            copies.iter().zip(&works).map(|(copy, work)| copy.as_secs_f64() / work.as_secs_f64()).collect();
        let median_of = |all: &[Duration]| median(all.iter().map(Duration::as_secs_f64).collect());
        Some(format!(
            "| {} | {} KiB | {operation} | {:.1} | {:.1} | {:.2} |",
            codec.name(),
            self.bytes >> 10,
            speed(median_of(&works)?),
            speed(median_of(&copies)?),
            median(ratios)?
        ))
    }
}

fn clock(times: usize, mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..times).for_each(|_| work());
    start.elapsed()
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}
