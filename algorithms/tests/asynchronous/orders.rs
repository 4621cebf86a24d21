//! Asynchronous algorithms in many orders of events, on simulated ranks: the contraction of AD-PSGD, the staleness of
//! SSP, and the mean that all of them preserve. A seed determines the order of steps and messages.

use super::compressed_asynchronous::{draw, train};
use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::logical::testing::{is_deep, spawn_in_order};
use hexagram_algorithms::logical::{Communicator, Result, runtime};
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, Sgd};
use std::sync::Arc;
use std::time::Duration;

/// Number of orders: more under `./test deep`.
fn orders(few: u64, many: u64) -> u64 {
    if is_deep() { many } else { few }
}

/// Draws from (0, 1), the same for the same words.
fn uniform(words: &[u64]) -> f64 {
    (draw(words, 1 << 40) as f64 + 0.5) / (1u64 << 40) as f64
}

/// Trainer of one parameter, with plain SGD and learning rate 1.
fn trainer(comm: &Communicator, algorithm: impl Into<AnyAlgorithm>, begin: Vec<f32>) -> Result<Trainer<f32>> {
    let setup = Setup { learning_rate: 1.0, optimizer: Arc::new(Sgd::default()), ..Setup::default() };
    Trainer::new(comm, algorithm, setup, &[begin])
}

/// Replica of one rank before and after its averages, and the number of averages that it began.
struct Averaged {
    before: Vec<f32>,
    after: Vec<f32>,
    begun: i32,
}

/// Makes the replica of a rank different from the others; then only averages change it: at random times, by a Poisson
/// process with a mean interval of 10 ms, for `seconds`.
fn average(comm: &Communicator, seed: u64, seconds: f64) -> Result<Averaged> {
    let rank = comm.rank() as u64;
    // Replicas become different in a step without an average, and are opened again in another step.
    let mut trainer = trainer(comm, AdPsgd { interval: 3, seed, codec: None }, vec![0.0; 8])?;
    trainer.step(|_, x| vec![0.0; x.len()])?;
    trainer.step(|_, x| (0..x.len() as u64).map(|at| uniform(&[seed, rank, at]) as f32 - 0.5).collect())?;
    trainer.engine().settle()?;
    let before = trainer.parameters()?.remove(0);
    trainer.step(|_, x| vec![0.0; x.len()])?;
    let mut begun = 0;
    let mut at = 0.0;
    loop {
        let pause = -10e-3 * uniform(&[7, seed, rank, begun as u64]).ln();
        at += pause;
        if at > seconds {
            break;
        }
        runtime::sleep(Duration::from_secs_f64(pause));
        for _ in 0..3 {
            trainer.step(|_, x| vec![0.0; x.len()])?;
        }
        begun += 1;
    }
    trainer.engine().settle()?;
    Ok(Averaged { before, after: trainer.parameters()?.remove(0), begun })
}

/// Returns Σᵢ ‖xᵢ − x̄‖².
fn apart(ranks: &[Averaged], replica: impl Fn(&Averaged) -> &[f32]) -> f64 {
    let at = |rank: &Averaged, element: usize| f64::from(replica(rank)[element]);
    let squares = |element: usize| {
        let mean = ranks.iter().map(|rank| at(rank, element)).sum::<f64>() / ranks.len() as f64;
        ranks.iter().map(|rank| (at(rank, element) - mean).powi(2)).sum::<f64>()
    };
    (0..replica(&ranks[0]).len()).map(squares).sum()
}

/// The mixing matrix W of an average of two ranks has E WᵀW = E W = I − (I − 11ᵀ/n) / (n − 1), if all pairs are equally
/// likely.
#[test]
fn ad_psgd_contracts_as_its_mixing_matrix_does_in_the_mean() {
    const RANKS: usize = 4;
    let rate = (RANKS as f64 - 2.0) / (RANKS as f64 - 1.0);
    let orders = orders(200, 3000);
    let found = (0..orders).map(|seed| {
        let ranks = spawn_in_order(seed, RANKS, |comm| average(&comm, seed, 15e-3)).unwrap();
        let expected = rate.powi(ranks.iter().map(|rank| rank.begun).sum());
        let contracted = apart(&ranks, |rank| &rank.after) / apart(&ranks, |rank| &rank.before);
        (expected, contracted - expected)
    });
    let (expected, deviations): (Vec<f64>, Vec<f64>) = found.unzip();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / orders as f64;
    let deviation = mean(&deviations);
    let variance = deviations.iter().map(|x| (x - deviation).powi(2)).sum::<f64>() / (orders as f64 - 1.0);
    let error = (variance / orders as f64).sqrt();
    assert!(error < 0.1 * mean(&expected), "± {error} says nothing about {}", mean(&expected));
    assert!(deviation.abs() < 4.0 * error, "{deviation} ± {error} off {}", mean(&expected));
}

/// Makes steps in which element r of rank r grows by 1, so that pulled values show the progress of all ranks; returns
/// by how many steps this rank was ahead of the slowest one it saw.
fn steps_ahead(comm: &Communicator, staleness: u64, order: u64) -> Result<u64> {
    const STEPS: u64 = 12;
    let rank = comm.rank();
    let ranks = comm.size();
    // Some orders have a slow rank.
    let slowness = if draw(&[order], 2 * ranks as u64) == rank as u64 { 5 } else { 1 };
    let mut trainer = trainer(comm, Ssp { staleness, ..Ssp::default() }, vec![0.0; ranks])?;
    let mut furthest = 0;
    for step in 0..STEPS {
        runtime::sleep(Duration::from_micros(slowness * draw(&[order, rank as u64, step], 400)));
        trainer.step(|_, x| {
            let known: Vec<u64> = x.iter().map(|steps| *steps as u64).collect();
            assert_eq!(known[rank], step, "a rank's own steps: {known:?}");
            let slowest = known.iter().copied().min().unwrap_or_default();
            assert!(known.iter().all(|steps| *steps <= STEPS), "{known:?} in step {step}");
            assert!(
                step <= slowest + staleness,
                "step {step}, {known:?}, staleness {staleness}, order {order}"
            );
            furthest = furthest.max(step - slowest);
            (0..ranks).map(|element| if element == rank { -(ranks as f32) } else { 0.0 }).collect()
        })?;
    }
    trainer.engine().settle()?;
    let all = trainer.parameters()?.remove(0);
    assert_eq!(all, vec![STEPS as f32; ranks], "no push is lost");
    Ok(furthest)
}

#[test]
fn under_ssp_no_rank_is_further_ahead_than_the_staleness_in_any_order() {
    for staleness in 0..4 {
        let orders = orders(8, 400);
        let ahead = |order| spawn_in_order(order, 4, |comm| steps_ahead(&comm, staleness, order)).unwrap();
        let furthest = (0..orders).flat_map(ahead).max();
        assert_eq!(furthest, Some(staleness), "the bound is reached, and no more");
    }
}

#[test]
fn every_average_and_push_keeps_the_mean_in_any_order() {
    let algorithms: [AnyAlgorithm; 6] = [
        AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::default() }.into(),
        AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::compressed() }.into(),
        Ssp::default().into(),
        Ssp::compressed().into(),
        AdPsgd::default().into(),
        AdPsgd::compressed().into(),
    ];
    for algorithm in algorithms {
        for seed in 0..orders(2, 200) {
            spawn_in_order(seed, 3, |comm| {
                train(&comm, algorithm.clone(), seed * 1000..seed * 1000 + 10, 2e-5)
            })
            .unwrap_or_else(|error| panic!("{}, seed {seed}: {error}", algorithm.name()));
        }
    }
}
