//! The cost of one slow rank to the others, by algorithm. Prints results; asserts no speed. On a quiet machine, run
//!
//! ```text
//! cargo test --release -p hexagram-algorithms --test tests -- --ignored --nocapture measured
//! ```

use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const STEPS: usize = 100;
/// Duration of the computation of a step. It sleeps, so that there can be more ranks than processors.
const STEP: Duration = Duration::from_millis(20);
const SLOWER: u32 = 5;
/// 256 KiB of f32.
const ELEMENTS: usize = 1 << 16;

/// Steps per second of the slowest rank except rank 1, which is [`SLOWER`].
fn speed(algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)) -> f64 {
    let done = AtomicUsize::new(0);
    let keeps_step = algorithm().name() == "gradient-allreduce";
    let run = |comm: Communicator| -> Result<f64> {
        let mut trainer = Trainer::new(&comm, algorithm(), Setup::default(), &[vec![1.0f32; ELEMENTS]])?;
        let slow = comm.rank() == 1;
        let work = if slow { STEP * SLOWER } else { STEP };
        let step = |trainer: &mut Trainer<f32>| {
            trainer.step(|_, x| {
                std::thread::sleep(work);
                vec![1e-3; x.len()]
            })
        };
        // The first step creates the states of the algorithm, and all ranks begin the next one together.
        step(&mut trainer)?;
        comm.blocking().barrier()?;
        let started = Instant::now();
        let mut steps = 0;
        while steps < STEPS && !(slow && !keeps_step && done.load(Ordering::SeqCst) == RANKS - 1) {
            step(&mut trainer)?;
            steps += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        done.fetch_add(1, Ordering::SeqCst);
        trainer.engine().settle()?;
        Ok(steps as f64 / seconds)
    };
    let speeds = spawn(TransportKind::Tcp, RANKS, run).unwrap();
    (0..RANKS).filter(|rank| *rank != 1).map(|rank| speeds[rank]).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "it measures for a minute"]
fn what_a_slow_rank_costs_the_others() {
    println!("{RANKS} ranks over tcp, {STEP:?} a step, rank 1 {SLOWER} times as long, {ELEMENTS} × f32");
    println!("steps/s of the slowest other rank, and of one without communication, measured just before");
    let show = |name: &str, algorithm: &(dyn Fn() -> AnyAlgorithm + Sync)| {
        let alone = speed(&|| LocalSgd { period: u64::MAX, ..LocalSgd::default() }.into());
        let speed = speed(algorithm);
        println!("{name:30} {speed:6.1} {alone:6.1}  {:5.1} %", 100.0 * speed / alone);
    };
    show("async-model-average", &|| AsyncModelAverage::default().into());
    show("async-model-average, no pause", &|| {
        AsyncModelAverage { interval: 0.0, warm_up: 0, ..AsyncModelAverage::default() }.into()
    });
    show("ad-psgd", &|| AdPsgd::default().into());
    show("ad-psgd, every 4 steps", &|| AdPsgd { interval: 4, ..AdPsgd::default() }.into());
    show("ssp, s above all steps", &|| Ssp { staleness: 2 * STEPS as u64, ..Ssp::default() }.into());
    show("ssp, s = 3", &|| Ssp::default().into());
    show("gradient-allreduce", &|| GradientAllReduce.into());
}
