//! The asynchronous algorithms, in full and in low precision, in many random orders of events: the invariants of every
//! order. For those in low precision: replicas converge; and their options.

use crate::virtual_ranks::in_virtual_time;
use hexagram_algorithms::ad_psgd::AdPsgd;
use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::logical::codec::{Codec, Keep, TopK};
use hexagram_algorithms::logical::encoding::mix;
use hexagram_algorithms::logical::runtime;
use hexagram_algorithms::logical::testing::{is_deep, spawn};
use hexagram_algorithms::logical::{Communicator, Element, Result, TransportKind};
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::testing::{Setup, Trainer, resumes_exactly};
use hexagram_algorithms::{AnyAlgorithm, registry};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const RANKS: usize = 3;
const ELEMENTS: usize = 24;
const RATE: f64 = 0.0625;

/// Number of random orders: 1,000 under `./test deep`.
fn orders() -> u64 {
    if is_deep() { 1000 } else { 20 }
}

/// Draws a number below `below`, the same for the same words.
pub(crate) fn draw(words: &[u64], below: u64) -> u64 {
    words.iter().fold(0, |hash, word| mix(hash ^ word)) % below
}

/// Gradient of a rank in a step. It does not depend on the replica, so the final mean of the replicas is known.
fn gradient(rank: usize, order: u64, step: u64) -> Vec<f32> {
    let of = |at| draw(&[rank as u64, order, step, at], 257) as f32 / 128.0 - 1.0;
    (0..ELEMENTS as u64).map(of).collect()
}

/// Means over the ranks.
fn means(comm: &Communicator, own: &[f32]) -> Vec<f64> {
    let mut all = vec![0.0f32; own.len() * comm.size()];
    comm.blocking().all_gather(own, &mut all).unwrap();
    let rows: Vec<&[f32]> = all.chunks(own.len()).collect();
    let mean = |at| rows.iter().map(|row| f64::from(row[at])).sum::<f64>() / rows.len() as f64;
    (0..own.len()).map(mean).collect()
}

/// Returns the replica of this rank, including the error of its pushes so far, if its algorithm stores it.
fn owned(trainer: &mut Trainer<f32>) -> Result<Vec<f32>> {
    let mut replica = trainer.parameters()?.remove(0);
    if trainer.engine().algorithm().name() == "compressed-ssp" {
        let record = trainer.engine().checkpoint().save()?;
        let error = record.tensors().find(|(name, _)| name.ends_with("error.pushed"));
        if let Some((_, error)) = error {
            replica.iter_mut().zip(error.values.host::<f32>()?.iter()).for_each(|(x, e)| *x += e);
        }
    }
    Ok(replica)
}

/// Trains in random orders, one after another: in each, ranks make one to four steps that take random times, and
/// settle. After each order the mean of the replicas, including unsent pushes, equals that of all steps, computed in
/// f64.
pub(crate) fn train(
    comm: &Communicator,
    algorithm: AnyAlgorithm,
    orders: Range<u64>,
    tolerance: f64,
) -> Result<()> {
    let setup = Setup { learning_rate: RATE, ..Setup::default() };
    let begin: Vec<f32> = (0..ELEMENTS).map(|at| at as f32 / 8.0 - 1.0).collect();
    let mut expected: Vec<f64> = begin.iter().map(|x| f64::from(*x)).collect();
    let mut trainer = Trainer::new(comm, algorithm.clone(), setup, &[begin])?;
    for order in orders {
        let steps = |rank: usize| 1 + draw(&[order, rank as u64], 4);
        for step in 0..steps(comm.rank()) {
            runtime::sleep(Duration::from_micros(draw(&[7, order, step, comm.rank() as u64], 300)));
            // Signs change with the order, so that values stay small, and so does rounding.
            let sign = if order % 2 == 0 { 1.0 } else { -1.0 };
            trainer.step(|_, _| gradient(comm.rank(), order / 2, step).iter().map(|g| sign * g).collect())?;
        }
        trainer.engine().settle()?;
        for rank in 0..comm.size() {
            for step in 0..steps(rank) {
                let sign = if order % 2 == 0 { 1.0 } else { -1.0 };
                let all = expected.iter_mut().zip(gradient(rank, order / 2, step));
                all.for_each(|(x, g)| *x -= RATE * sign * f64::from(g) / comm.size() as f64);
            }
        }
        for (found, expected) in means(comm, &owned(&mut trainer)?).iter().zip(&expected) {
            let far = (found - expected).abs();
            assert!(far < tolerance, "{}, order {order}: {far} off", algorithm.name());
        }
    }
    Ok(())
}

/// Runs [`train`] in virtual time, where the order of events depends only on the random times.
fn in_random_orders(algorithm: impl Into<AnyAlgorithm>, tolerance: f64) {
    let algorithm = algorithm.into();
    in_virtual_time(RANKS, move |comm| train(comm, algorithm.clone(), 0..orders(), tolerance));
}

fn top_k() -> Arc<dyn Codec> {
    Arc::new(TopK::new(Keep::Ratio(0.1)).unwrap())
}

#[test]
fn async_model_average_keeps_the_mean_in_any_order() {
    in_random_orders(AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::default() }, 1e-4);
}

#[test]
fn compressed_async_model_average_keeps_the_mean_in_any_order() {
    // 8.7e-5 after 100 and 2.3e-3 after 1,000, where the sums of an owner and of the ranks drift apart.
    let tolerance = (2e-7 * orders() as f64).min(1e-4);
    in_random_orders(AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::compressed() }, tolerance);
    let coarse = AsyncModelAverage { codec: Some(top_k()), approach: 0.1, interval: 0.0, warm_up: 0 };
    in_random_orders(coarse, 1e-3);
}

#[test]
fn ssp_loses_no_push_in_any_order() {
    in_random_orders(Ssp::default(), 1e-4);
}

#[test]
fn compressed_ssp_owes_what_its_pushes_lost_in_any_order() {
    // The error of a pull is not pushed: the change is that of the optimizer, relative to the pulled values.
    in_random_orders(Ssp { codec: Some(top_k()), ..Ssp::default() }, 1e-4);
    in_random_orders(Ssp::compressed(), 1e-4);
}

#[test]
fn ad_psgd_keeps_the_mean_in_any_order() {
    in_random_orders(AdPsgd::default(), 1e-4);
}

#[test]
fn compressed_ad_psgd_keeps_the_mean_in_any_order() {
    in_random_orders(AdPsgd::compressed(), 1e-4);
}

fn compressed() -> [AnyAlgorithm; 3] {
    [
        AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::compressed() }.into(),
        Ssp::compressed().into(),
        AdPsgd::compressed().into(),
    ]
}

#[test]
fn replicas_come_near_the_common_minimum_and_each_other() {
    for algorithm in compressed() {
        let name = algorithm.name();
        let distances = in_virtual_time(4, move |comm| {
            let setup = Setup { learning_rate: 0.05, ..Setup::default() };
            let mut trainer = Trainer::new(comm, algorithm.clone(), setup, &[vec![7.0f32; 50]])?;
            for step in 0..400 {
                runtime::sleep(Duration::from_micros(draw(&[step, comm.rank() as u64], 300)));
                trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
            }
            let evaluation = trainer.engine().with_mean(|engine| engine.values::<f32>(0).unwrap())?;
            let worst = evaluation.result.iter().map(|x| (x - 1.5).abs()).fold(0.0, f32::max);
            Ok((worst, evaluation.consensus_distance))
        });
        for (worst, apart) in distances {
            assert!(worst < 0.5, "{name}: the mean is {worst} from the minimum");
            // Without communication, they would be √(1.25 · 50) = 7.9 apart.
            assert!(apart < 4.0, "{name}: {apart} apart");
        }
    }
}

#[test]
fn a_checkpoint_has_what_they_remember() {
    for algorithm in compressed() {
        resumes_exactly(3, 7, 5, &Setup::default, || algorithm.clone()).unwrap();
    }
}

#[test]
fn a_codec_of_either_form_is_spelled() {
    for (text, name) in [
        ("ssp(codec=top-k(5%))", "compressed-ssp"),
        ("ssp(pulled=bf16)", "compressed-ssp"),
        ("compressed-ssp(codec=none, pulled=none)", "ssp"),
        ("async-model-average(codec=sign, approach=0.3)", "compressed-async-model-average"),
        ("ad-psgd(codec=qsgd, interval=2)", "compressed-ad-psgd"),
    ] {
        let algorithm = registry::named(text).unwrap();
        assert_eq!(algorithm.name(), name, "{text}");
        assert_eq!(algorithm.trigram().full_precision, !name.starts_with("compressed"), "{text}");
        let spelled = format!("{algorithm:#}");
        assert_eq!(format!("{:#}", registry::named(&spelled).unwrap()), spelled);
    }
}

#[test]
fn options_and_elements_that_do_not_fit_are_refused_in_a_line() {
    fn refused<T: Element>(algorithm: &AnyAlgorithm, zero: T) -> String {
        let outcome = spawn(TransportKind::Thread, 2, |comm| {
            let mut trainer = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![zero]])?;
            trainer.engine().initial().prepare()
        });
        let error = outcome.unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }
    // Error feedback would accumulate the error of such a codec, which can exceed the input.
    let error = refused(&registry::named("ssp(codec=qsgd(levels=1))").unwrap(), 0.0f32);
    assert!(
        error.starts_with("codec of ssp is qsgd") && error.contains("would add up the errors"),
        "{error}"
    );
    for algorithm in compressed() {
        let error = refused(&algorithm, 0.0f64);
        assert!(error.contains("f64"), "{error}");
    }
}
