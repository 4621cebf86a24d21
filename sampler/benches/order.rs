//! How long the orders of an epoch take, on one thread: `cargo bench -p hexagram-sampler`. `bench/samplers.py` runs
//! this and the same in PyTorch. With `-- billion`, instead, a billion samples in an order that takes no memory.
#![allow(clippy::unwrap_used)]

use hexagram_sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    ElasticOptions, ElasticSampler, LoadBalancingDistributedSampler, LoadBalancingOptions, Mersenne, Sampler,
};
use std::hint::black_box;
use std::time::Instant;

const SAMPLES: usize = 1_000_000;
const RUNS: usize = 11;

fn main() {
    if std::env::args().any(|argument| argument == "billion") {
        return billion();
    }
    let options = DistributedOptions { len: SAMPLES, replicas: 8, ..Default::default() };
    let distributed = DistributedSampler::new(options).unwrap();
    median("DistributedSampler", || distributed.indices().len());

    let mut generator = Mersenne::new(7);
    let complexities = (0..SAMPLES).map(|_| generator.below(10_000) as f64).collect();
    let complexities = Complexities::new(complexities).unwrap();
    let options = LoadBalancingOptions { replicas: 8, random_level: 0.1, ..Default::default() };
    median("LoadBalancingDistributedSampler", || {
        let sampler = LoadBalancingDistributedSampler::new(complexities.clone(), options).unwrap();
        sampler.iter().collect::<Vec<_>>().len()
    });

    let options = CostBalancedOptions { replicas: 8, global_batch: 256, ..Default::default() };
    let balanced = CostBalancedSampler::new(complexities, options).unwrap();
    median("CostBalancedSampler", || balanced.iter().map(|batch| batch.len()).sum());

    let options = ElasticOptions { len: SAMPLES, replicas: 8, global_batch: 256, ..Default::default() };
    let elastic = ElasticSampler::new(options).unwrap();
    median("ElasticSampler", || elastic.iter().map(|batch| batch.len()).sum());
}

/// Prints the time of one rank of eight for an epoch.
fn median(name: &str, order: impl Fn() -> usize) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            black_box(order());
            began.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name} {:.2} ms", 1e3 * times[RUNS / 2]);
}

/// All batches of a single rank, and their memory.
fn billion() {
    let options =
        ElasticOptions { len: 1_000_000_000, replicas: 1, global_batch: 1000, ..Default::default() };
    let sampler = ElasticSampler::new(options).unwrap();
    let before = resident();
    let began = Instant::now();
    let sum: usize = sampler.iter().map(|batch| batch.iter().sum::<usize>()).sum();
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(sum, options.len / 2 * (options.len - 1), "every sample once");
    println!(
        "1000000000 samples in {seconds:.1} s, {before} KiB resident before and {} KiB after",
        resident()
    );
}

/// KiB of memory this process has, 0 where that cannot be read.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
