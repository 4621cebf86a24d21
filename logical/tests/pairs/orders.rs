//! How fast pair averaging brings values together, in many random orders of events on simulated ranks: at the rate of
//! the expectation of its mixing matrix.
//!
//! ```text
//! W      = I − (eᵢ − eⱼ)(eᵢ − eⱼ)ᵀ / 2         one average of ranks i and j
//! E W    = I − (I − 11ᵀ/n) / (n − 1)           i and j drawn from all ranks, each pair as likely
//! E Σᵢ ‖xᵢ − x̄‖²  after k of them             = ((n − 2) / (n − 1))ᵏ · before, as WᵀW = W
//! ```

use super::Draws;
use hexagram_logical::asynchronous::{PairExchange, PairOptions, Service};
use hexagram_logical::runtime;
use hexagram_logical::testing::{self, spawn_in_order};
use hexagram_logical::{Communicator, Result};
use std::time::Duration;

/// Values of a rank.
const ELEMENTS: usize = 8;
/// Mean time between two averages that a rank begins: several run concurrently, and wait for each other's locks.
const PAUSE: f64 = 100e-6;

/// Number of random orders.
fn orders() -> u64 {
    if testing::is_deep() { 5000 } else { 400 }
}

/// Values of one rank before and after its averages, and how many it began.
struct Averaged {
    before: Vec<f64>,
    after: Vec<f64>,
    begun: i32,
}

/// Begins averages with random ranks at random times, by a Poisson process, for a given time.
fn average(comm: &Communicator, seed: u64, seconds: f64) -> Result<Averaged> {
    let mut draws = Draws((seed * 64 + comm.rank() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut uniform = move || (draws.below(1 << 20) as f64 + 0.5) / f64::from(1 << 20);
    let before: Vec<f64> = (0..ELEMENTS).map(|_| uniform() - 0.5).collect();
    let service = comm.block_on(Service::start(comm))?;
    let options = PairOptions { locked: true, encoding: None };
    let mut x = testing::buffer(&before);
    let pair = comm.block_on(PairExchange::create(comm, &service, &x, options))?;
    comm.blocking().barrier()?;
    let mut under_way = Vec::new();
    let mut at = 0.0;
    loop {
        let pause = -PAUSE * uniform().ln();
        at += pause;
        if at > seconds {
            break;
        }
        runtime::sleep(Duration::from_secs_f64(pause));
        let other = (uniform() * (comm.size() - 1) as f64) as usize;
        under_way.push(pair.exchange((comm.rank() + 1 + other) % comm.size()));
    }
    let begun = under_way.len() as i32;
    under_way.into_iter().try_for_each(|exchange| exchange.blocking().map(drop))?;
    service.blocking().close()?;
    pair.blocking().load(&mut x)?;
    let after = x.host::<f64>()?.to_vec();
    Ok(Averaged { before, after, begun })
}

/// Returns Σᵢ ‖xᵢ − x̄‖².
fn apart(ranks: &[Averaged], values: impl Fn(&Averaged) -> &[f64]) -> f64 {
    let squares = |at: usize| {
        let mean = ranks.iter().map(|rank| values(rank)[at]).sum::<f64>() / ranks.len() as f64;
        ranks.iter().map(|rank| (values(rank)[at] - mean).powi(2)).sum::<f64>()
    };
    (0..ELEMENTS).map(squares).sum()
}

#[test]
fn values_come_together_at_the_rate_of_the_mean_mixing_matrix() {
    for (ranks, seconds) in [(3, 150e-6), (4, 200e-6), (5, 300e-6)] {
        let rate = (ranks as f64 - 2.0) / (ranks as f64 - 1.0);
        let mut deviations = Vec::new();
        let mut mean = 0.0;
        for seed in 0..orders() {
            let found = spawn_in_order(seed, ranks, |comm| average(&comm, seed, seconds)).unwrap();
            let averages: i32 = found.iter().map(|rank| rank.begun).sum();
            let expected = rate.powi(averages);
            let contracted = apart(&found, |rank| &rank.after) / apart(&found, |rank| &rank.before);
            deviations.push(contracted - expected);
            mean += expected / orders() as f64;
        }
        let count = deviations.len() as f64;
        let deviation = deviations.iter().sum::<f64>() / count;
        let variance = deviations.iter().map(|x| (x - deviation).powi(2)).sum::<f64>() / (count - 1.0);
        let error = (variance / count).sqrt();
        assert!(error < 0.1 * mean, "{ranks} ranks: ± {error} says nothing about {mean}");
        assert!(deviation.abs() < 4.0 * error, "{ranks} ranks: {deviation} ± {error} off {mean}");
    }
}
