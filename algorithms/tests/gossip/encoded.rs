//! CHOCO-SGD and DeepSqueeze: plain gossip if the codec is exact, the mean of all ranks with any codec, agreement
//! without gradients, and the bytes of their messages.

use super::*;
use hexagram_algorithms::d_psgd::Peers;
use hexagram_algorithms::logical::codec::{Codec, Keep, Sign, TopK};
use hexagram_algorithms::logical::decentralized::{Mixing, Schedule};

const LEN: usize = 3000;

/// Different on every rank and at every step, with a known mean over 4 ranks.
fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31 + step * 13) as f32 * 0.7391).sin()
}

/// The replicas after `steps` steps with gradients, and `quiet` ones without.
fn run(transport: TransportKind, algorithm: &Algorithm, steps: usize, quiet: usize) -> Vec<Vec<f32>> {
    let of_step = |rank: usize, step: usize, x: &[f32]| {
        let one = |at| if step < steps { gradient(rank, step, at) } else { 0.0 };
        (0..x.len()).map(one).collect()
    };
    train((transport, 4), algorithm, &Setup::default(), &[0.7; LEN], steps + quiet, of_step).unwrap()
}

/// The largest distance of a replica, or of the mean of all, from the result of the mean gradients.
fn off_course(replicas: &[Vec<f32>], steps: usize) -> (f64, f64) {
    let mut of_any = 0.0f64;
    let mut of_mean = 0.0f64;
    for at in 0..LEN {
        let all = || (0..4).flat_map(|rank| (0..steps).map(move |step| f64::from(gradient(rank, step, at))));
        let expected = 0.7 - 0.1 * all().sum::<f64>() / 4.0;
        let found: Vec<f64> = replicas.iter().map(|x| f64::from(x[at])).collect();
        of_mean = of_mean.max((mean(&found) - expected).abs());
        of_any = found.iter().fold(of_any, |most, x| most.max((x - expected).abs()));
    }
    (of_any, of_mean)
}

fn everything() -> Arc<dyn Codec> {
    Arc::new(TopK::new(Keep::Ratio(1.0)).unwrap())
}

/// γ W + (1 − γ) I on a ring of 4.
fn lazy_ring(gamma: f64) -> Mixing {
    let ring = Topology::Ring.mixing(4, 0).unwrap().dense();
    let weight = |at: usize| gamma * ring[at] + if at.is_multiple_of(5) { 1.0 - gamma } else { 0.0 };
    Mixing::of_matrix(4, &(0..16).map(weight).collect::<Vec<_>>()).unwrap()
}

fn choco(codec: Arc<dyn Codec>, consensus: f64) -> Algorithm {
    ChocoSgd { codec, consensus: Some(consensus), schedule: Arc::new(Topology::Ring) }.into()
}

fn squeeze(codec: Arc<dyn Codec>, consensus: f64, schedule: Topology) -> Algorithm {
    DeepSqueeze { codec, consensus, schedule: Arc::new(schedule) }.into()
}

#[test]
fn with_an_exact_codec_they_are_d_psgd() {
    for gamma in [1.0, 0.3] {
        let plain = DPsgd { adapt_then_combine: true, ..DPsgd::with(lazy_ring(gamma)) };
        let expected = run(TransportKind::Thread, &plain.into(), 12, 0);
        for algorithm in [choco(everything(), gamma), squeeze(everything(), gamma, Topology::Ring)] {
            let found = run(TransportKind::Thread, &algorithm, 12, 0);
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "{algorithm:?} is off by {off}");
        }
    }
}

#[test]
fn the_mean_follows_the_mean_gradient_and_choco_agrees_on_it() {
    let sign = || Arc::new(Sign::default());
    let runs: [(Algorithm, usize, f64); 6] = [
        (ChocoSgd::sign().into(), 150, 0.04),
        (ChocoSgd::top_k(0.1).unwrap().into(), 100, 1e-4),
        (ChocoSgd::min_max8().into(), 60, 2e-4),
        (DeepSqueeze::default().into(), 20, 0.01),
        (squeeze(sign(), 0.05, Topology::Ring), 0, f64::INFINITY),
        (squeeze(sign(), 0.05, Topology::RandomPairs { seed: 3, pairs: None }), 0, f64::INFINITY),
    ];
    for (algorithm, quiet, agreement) in runs {
        let found = run(TransportKind::Thread, &algorithm, 20, quiet);
        let (of_any, of_mean) = off_course(&found, 20);
        assert!(of_mean < 2e-4, "{algorithm:?}: the mean is off by {of_mean}");
        assert!(of_any < agreement, "{algorithm:?}: a replica is off by {of_any}");
    }
}

#[test]
fn all_transports_carry_them_alike() {
    for algorithm in [AnyAlgorithm::from(ChocoSgd::default()), DeepSqueeze::default().into()] {
        let expected = run(TransportKind::Thread, &algorithm, 5, 0);
        for transport in transports() {
            assert_eq!(run(transport, &algorithm, 5, 0), expected, "{algorithm:?} over {transport:?}");
        }
    }
}

#[test]
fn the_bytes_are_those_of_their_headers() {
    let d = 32768.0f64;
    let size = 4.0 * 32768.0;
    let sign = (d / 8.0 + 4.0 * 16.0) / size;
    let eight = (d + 8.0 * 16.0) / size;
    assert_sends(4, 3, &ChocoSgd::sign().into(), 2.0 * sign);
    assert_sends(2, 3, &ChocoSgd::min_max8().into(), eight);
    let top_k = ChocoSgd::top_k(0.01).unwrap();
    let message = top_k.codec.encoded_len(32768) as f64;
    let kept = 328.0;
    assert!(message <= 4.0 * kept + kept * (2.0 + (d / kept).log2().ceil()) / 8.0 + 2.0);
    assert_sends(3, 3, &top_k.into(), 2.0 * message / size);
    assert_sends(4, 4, &DeepSqueeze::default().into(), eight);
    assert_sends(3, 4, &DeepSqueeze::default().into(), eight);
}

#[test]
fn graphs_that_change_are_refused_with_graphs_that_do_not() {
    let schedule = Arc::new(Topology::OnePeerExponential);
    let codec: Option<Arc<dyn Codec>> = Some(Arc::new(Sign::default()));
    let gossip = Gossip { codec: codec.clone(), ..Gossip::over(Topology::XorPairs) };
    let algorithms: [Algorithm; 4] = [
        ChocoSgd { schedule: schedule.clone(), ..ChocoSgd::default() }.into(),
        LowPrecisionDecentralized { schedule, ..LowPrecisionDecentralized::default() }.into(),
        DPsgd { codec, ..DPsgd::with(Topology::RandomPairs { seed: 1, pairs: None }) }.into(),
        GradientTracking { gossip }.into(),
    ];
    for algorithm in algorithms {
        let error = refusal(4, &algorithm).to_string();
        assert!(error.contains("changes from step to step") && error.contains("graph=torus"), "{error}");
        // Two ranks have only one partner.
        let found =
            train((TransportKind::Thread, 2), &algorithm, &Setup::default(), &[1.0f32; 4], 2, |_, _, x| {
                x.to_vec()
            });
        found.unwrap();
    }
}

/// Gradients that differ between ranks: a (x − b), element by element.
fn uneven(rank: usize, x: &[f32]) -> Vec<f32> {
    let Quadratic { a, b } = problem();
    let one = |(at, x): (usize, &f32)| a[(rank + at) % 4] as f32 * (x - b[(rank + 3 * at) % 8] as f32);
    x.iter().enumerate().map(one).collect()
}

/// The point at which the mean of the gradients of 4 ranks is 0.
fn balanced(len: usize) -> Vec<f64> {
    let Quadratic { a, b } = problem();
    let one = |at: usize| {
        let weights = (0..4).map(|rank| a[(rank + at) % 4]).sum::<f64>();
        (0..4).map(|rank| a[(rank + at) % 4] * b[(rank + 3 * at) % 8]).sum::<f64>() / weights
    };
    (0..len).map(one).collect()
}

/// The largest distance of a replica from the global optimum.
fn off_optimum(algorithm: &Algorithm, steps: usize) -> f64 {
    let setup = Setup { learning_rate: 0.05, ..Setup::default() };
    let gradient = |rank: usize, _: usize, x: &[f32]| uneven(rank, x);
    let found = train((TransportKind::Thread, 4), algorithm, &setup, &[0.7; 40], steps, gradient).unwrap();
    let off = |x: &Vec<f32>| {
        x.iter().zip(balanced(40)).map(|(x, at)| (f64::from(*x) - at).abs()).fold(0.0, f64::max)
    };
    found.iter().map(off).fold(0.0, f64::max)
}

#[test]
fn gradient_tracking_reaches_the_optimum_with_a_codec_and_a_measured_step() {
    let top_k: Arc<dyn Codec> = Arc::new(TopK::new(Keep::Ratio(0.25)).unwrap());
    let sign: Arc<dyn Codec> = Arc::new(Sign::default());
    for codec in [sign, Arc::clone(&top_k)] {
        let gossip = Gossip { codec: Some(codec.clone()), ..Gossip::over(Topology::Ring) };
        let off = off_optimum(&GradientTracking { gossip }.into(), 500);
        assert!(off < 5e-3, "{codec:?}: {off}");
    }
    let missed = off_optimum(&DPsgd { codec: Some(top_k), ..DPsgd::default() }.into(), 200);
    assert!(missed > 0.05, "{missed}");
}

#[test]
fn d_psgd_with_a_codec_is_choco_in_one_order_and_follows_the_mean_in_both() {
    let codec = || Arc::new(TopK::new(Keep::Ratio(0.1)).unwrap());
    for consensus in [None, Some(0.2)] {
        let made = |adapt_then_combine| -> Algorithm {
            DPsgd { codec: Some(codec()), consensus, adapt_then_combine, ..DPsgd::default() }.into()
        };
        let choco = ChocoSgd { codec: codec(), consensus, schedule: Arc::new(Topology::Ring) };
        let after = run(TransportKind::Thread, &made(true), 8, 0);
        assert_eq!(after, run(TransportKind::Thread, &choco.into(), 8, 0));
        let beside = run(TransportKind::Thread, &made(false), 20, 100);
        let (of_any, of_mean) = off_course(&beside, 20);
        assert!(of_mean < 2e-4 && of_any < 0.1, "{of_any} and {of_mean}");
    }
    let all = DPsgd { codec: Some(codec()), ..DPsgd::with(Peers::All) };
    let error = refusal(2, &all.into()).to_string();
    assert!(error.contains("peers are all"), "{error}");
}
