//! Algorithms that gossip: against closed forms, fixed points, reference implementations in these files, and the bytes
//! of their headers.

mod corrected;
mod d_psgd;
mod decentralized;
mod encoded;
mod gossip_pga;
mod gradient_tracking;
mod hosts;
mod low_precision_decentralized;
mod noloco;
mod qg_dsgdm;
mod relaysgd;
mod sgp;

use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::decentralized::Decentralized;
use hexagram_algorithms::deepsqueeze::DeepSqueeze;
use hexagram_algorithms::exact_diffusion::ExactDiffusion;
use hexagram_algorithms::extra::Extra;
use hexagram_algorithms::gossip::Gossip;
use hexagram_algorithms::gossip_pga::GossipPga;
use hexagram_algorithms::gradient_tracking::GradientTracking;
use hexagram_algorithms::logical::decentralized::Topology;
use hexagram_algorithms::logical::testing::{spawn, transports};
use hexagram_algorithms::logical::{Communicator, Element, Error, Result, TransportKind};
use hexagram_algorithms::low_precision_decentralized::LowPrecisionDecentralized;
use hexagram_algorithms::noloco::NoLoCo;
use hexagram_algorithms::qg_dsgdm::QgDsgdm;
use hexagram_algorithms::registry;
use hexagram_algorithms::relaysgd::RelaySgd;
use hexagram_algorithms::sgp::Sgp;
use hexagram_algorithms::testing::{Quadratic, Setup, Trainer, payload_per_step};
use std::sync::Arc;

type Algorithm = AnyAlgorithm;

/// Quadratics with different curvatures and minima, for up to 8 ranks; the first four are those of the reference
/// numbers.
fn problem() -> Quadratic {
    Quadratic {
        a: vec![1.0, 3.0, 0.5, 2.0, 1.5, 0.7, 2.5, 1.2],
        b: vec![0.0, 1.0, -2.0, 4.0, 3.0, -1.0, 0.5, 2.0],
    }
}

/// The minimum of the mean of the first `ranks` functions.
fn optimum(ranks: usize) -> f64 {
    let Quadratic { a, b } = problem();
    let weighted: f64 = a.iter().zip(&b).take(ranks).map(|(a, b)| a * b).sum();
    weighted / a.iter().take(ranks).sum::<f64>()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The replicas of one vector after `steps` steps, by rank; `gradient` gets rank, step and replica.
fn train<T: Element>(
    (transport, ranks): (TransportKind, usize),
    algorithm: &Algorithm,
    setup: &Setup,
    start: &[T],
    steps: usize,
    gradient: impl Fn(usize, usize, &[T]) -> Vec<T> + Sync,
) -> Result<Vec<Vec<T>>> {
    spawn(transport, ranks, |comm: Communicator| {
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup.clone(), &[start.to_vec()])?;
        for step in 0..steps {
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        trainer.engine().settle()?;
        Ok(trainer.parameters()?.remove(0))
    })
}

/// One parameter on the quadratics above, by rank.
fn train_quadratics(ranks: usize, algorithm: &Algorithm, rate: f64, steps: usize) -> Vec<f64> {
    let setup = Setup { learning_rate: rate, ..Setup::default() };
    let gradient = |rank: usize, _: usize, x: &[f64]| problem().gradient(rank, x);
    let found = train((TransportKind::Thread, ranks), algorithm, &setup, &[0.7], steps, gradient).unwrap();
    found.into_iter().map(|x| x[0]).collect()
}

fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (one, other) in found.iter().zip(expected) {
        assert!((one - other).abs() <= tolerance, "{found:?} and not {expected:?}");
    }
}

/// Bytes per rank and step, for parameters of 128 KiB: above the limit of small messages.
fn assert_sends(ranks: usize, steps: usize, algorithm: &Algorithm, of_size: f64) {
    let elements = 32768;
    let found = payload_per_step(ranks, elements, steps, || algorithm.clone()).unwrap();
    let expected = of_size * (4 * elements) as f64;
    assert!((found - expected).abs() < 1e-6, "{algorithm:?}: {found} and not {expected}");
}

/// The error on rank 0 for an algorithm that must be refused.
fn refusal(ranks: usize, algorithm: &Algorithm) -> Error {
    let gradient = |_: usize, _: usize, x: &[f32]| x.to_vec();
    let start = [1.0f32; 4];
    train((TransportKind::Thread, ranks), algorithm, &Setup::default(), &start, 2, gradient).unwrap_err()
}

/// Every algorithm here, with its defaults.
fn all() -> [Algorithm; 13] {
    [
        DPsgd::default().into(),
        Decentralized::default().into(),
        LowPrecisionDecentralized::default().into(),
        GradientTracking::default().into(),
        Sgp::default().into(),
        ChocoSgd::default().into(),
        DeepSqueeze::default().into(),
        GossipPga { gossip: Gossip::over(Topology::OnePeerExponential), ..GossipPga::default() }.into(),
        ExactDiffusion::default().into(),
        Extra::default().into(),
        NoLoCo { period: 2, ..NoLoCo::default() }.into(),
        QgDsgdm::default().into(),
        RelaySgd::default().into(),
    ]
}

#[test]
fn the_final_average_is_the_mean_of_all_replicas_and_training_goes_on_from_it() {
    for algorithm in all() {
        let runs = spawn(TransportKind::Thread, 3, |comm| {
            let mut trainer = Trainer::new(&comm, algorithm.clone(), Setup::default(), &[vec![0.5f32; 40]])?;
            let step = |trainer: &mut Trainer<f32>| {
                trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())
            };
            (0..7).try_for_each(|_| step(&mut trainer))?;
            trainer.engine().settle()?;
            let own = trainer.parameters()?[0][0];
            trainer.engine().average()?;
            let averaged = trainer.parameters()?[0][0];
            (0..150).try_for_each(|_| step(&mut trainer))?;
            trainer.engine().average()?;
            Ok((own, averaged, trainer.parameters()?[0][0]))
        });
        let runs = runs.unwrap();
        let mean = runs.iter().map(|(own, ..)| own).sum::<f32>() / 3.0;
        for (_, averaged, last) in &runs {
            assert!((averaged - mean).abs() < 1e-6 && runs[0].0 != runs[2].0, "{algorithm:?}: {runs:?}");
            assert!((last - 1.0).abs() < 1e-3, "{algorithm:?}: {runs:?}");
            assert_eq!((averaged, last), (&runs[0].1, &runs[0].2), "{algorithm:?}");
        }
    }
}

#[test]
fn what_is_typed_is_what_is_made_and_printed() {
    for text in [
        "d-psgd(graph=torus, interval=2, codec=top-k(5%), consensus=auto)",
        "d-psgd(graph=all, adapt-then-combine=true)",
        "decentralized(graph=xor-pairs, interval=4)",
        "gradient-tracking(graph=ring, codec=sign, consensus=0.3)",
        "gossip-pga(graph=base(peers=2), period=12)",
        "exact-diffusion(graph=star)",
        "extra(graph=hypercube)",
        "noloco(graph=base(peers=2), period=12, pull=0.5)",
        "qg-dsgdm(momentum=0.8, decay=0.5)",
        "relaysgd(tree=chain)",
        "sgp(graph=equi-one-peer)",
        "low-precision-decentralized(interval=3, codec=qsgd(levels=127), graph=torus)",
    ] {
        let made = registry::named(text).unwrap();
        let printed = made.to_string();
        let again = registry::named(&printed).unwrap();
        assert_eq!(format!("{made:?}"), format!("{again:?}"), "{text} and {printed}");
        let plain = registry::named(made.name()).unwrap();
        assert_ne!(format!("{made:?}"), format!("{plain:?}"), "{text}");
    }
}
