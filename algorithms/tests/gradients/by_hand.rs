//! Rules with codecs that lose something, against the same steps in f64, with codecs written out here: signs, and the
//! largest elements. Nothing is shared with what is tested.

use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::deepsqueeze::DeepSqueeze;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::logical::codec::{Codec, Keep, Sign, TopK};
use hexagram_algorithms::logical::decentralized::Topology;
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::topk_ef::TopKEf;
use hexagram_algorithms::{AnyAlgorithm, Averaging};
use std::sync::Arc;

const RANKS: usize = 4;
const SHAPE: [usize; 2] = [3, 4];
const LEN: usize = 12;
const STEPS: usize = 15;
/// γ of each step.
const RATES: [f64; 3] = [0.1, 0.04, 0.07];

type Point = [f64; LEN];

/// Returns the gradient of one element, which differs between ranks in minimum and curvature.
fn slope(rank: usize, step: usize, at: usize, x: f64) -> f64 {
    let noise = ((at * 7 + rank * 31 + step * 13) as f64 * 0.7391).sin();
    (1.0 + 0.3 * rank as f64) * (x - rank as f64) + noise
}

fn gradient(rank: usize, step: usize, x: &Point) -> Point {
    std::array::from_fn(|at| slope(rank, step, at, x[at]))
}

/// Returns every rank's replica after all steps of an algorithm.
fn found(algorithm: &AnyAlgorithm) -> Vec<Vec<f32>> {
    let run = |comm: Communicator| {
        let initial = [(0..LEN).map(start).map(|x| x as f32).collect()];
        let mut trainer =
            Trainer::with_shapes(&comm, algorithm.clone(), Setup::default(), &initial, &[SHAPE.to_vec()])?;
        for step in 0..STEPS {
            trainer.engine().set_learning_rate(RATES[step % 3]);
            let slope = |(at, x): (usize, &f32)| slope(comm.rank(), step, at, f64::from(*x)) as f32;
            trainer.step(|_, x| x.iter().enumerate().map(slope).collect())?;
        }
        Ok(trainer.parameters()?.remove(0))
    };
    spawn(TransportKind::Thread, RANKS, run).unwrap()
}

fn start(at: usize) -> f64 {
    0.5 + at as f64 / 8.0
}

/// Compares what was found with what every rank's rule makes in f64.
fn check(algorithm: impl Into<AnyAlgorithm>, mut step: impl FnMut(usize, f64, &mut [Point; RANKS])) {
    let algorithm = algorithm.into();
    let mut expected = [std::array::from_fn(start); RANKS];
    for number in 0..STEPS {
        step(number, RATES[number % 3], &mut expected);
    }
    for (rank, (found, expected)) in found(&algorithm).iter().zip(expected).enumerate() {
        let error = found.iter().zip(expected).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max);
        assert!(error < 2e-5, "{algorithm:?}: rank {rank} is off by {error}");
    }
}

/// The codecs of this file, as the library has them, and by hand.
#[derive(Debug, Clone, Copy)]
enum Lossy {
    Sign,
    Largest(usize),
}

impl Lossy {
    fn codec(self) -> Arc<dyn Codec> {
        match self {
            Lossy::Sign => Arc::new(Sign::whole()),
            Lossy::Largest(k) => Arc::new(TopK::new(Keep::Count(k)).unwrap()),
        }
    }

    fn decoded(self, x: &Point) -> Point {
        match self {
            Lossy::Sign => {
                let scale = x.iter().map(|x| x.abs()).sum::<f64>() / LEN as f64;
                x.map(|x| scale.copysign(x))
            }
            Lossy::Largest(k) => {
                let mut order: [usize; LEN] = std::array::from_fn(|at| at);
                order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()));
                let mut kept = [0.0; LEN];
                order[..k].iter().for_each(|at| kept[*at] = x[*at]);
                kept
            }
        }
    }
}

/// Returns a + w b.
fn plus(a: &Point, w: f64, b: &Point) -> Point {
    std::array::from_fn(|at| a[at] + w * b[at])
}

fn mean(points: &[Point; RANKS]) -> Point {
    points.iter().fold([0.0; LEN], |sum, point| plus(&sum, 1.0 / RANKS as f64, point))
}

/// Returns Σⱼ wᵢⱼ pⱼ − pᵢ on a ring with thirds.
fn drift(points: &[Point; RANKS], rank: usize) -> Point {
    let left = &points[(rank + RANKS - 1) % RANKS];
    let right = &points[(rank + 1) % RANKS];
    std::array::from_fn(|at| (left[at] + right[at] - 2.0 * points[rank][at]) / 3.0)
}

#[test]
fn top_k_with_error_feedback() {
    let averaging = Averaging::encoded(TopK::new(Keep::Count(3)).unwrap(), Feedback::Error);
    for algorithm in [AnyAlgorithm::from(TopKEf { fraction: 0.25 }), CompressedAllReduce { averaging }.into()]
    {
        let mut e = [[0.0; LEN]; RANKS];
        let rule = |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            let sent = std::array::from_fn(|rank| {
                let sum = plus(&e[rank], rate, &gradient(rank, number, &x[rank]));
                let sent = Lossy::Largest(3).decoded(&sum);
                e[rank] = plus(&sum, -1.0, &sent);
                sent
            });
            *x = x.map(|x| plus(&x, -1.0, &mean(&sent)));
        };
        check(algorithm, rule);
    }
}

#[test]
fn deep_gradient_compression() {
    for (nesterov, masking, weight_decay) in
        [(false, false, 0.0), (false, true, 0.0), (true, true, 0.0), (true, false, 0.2), (false, true, 0.2)]
    {
        let momentum = 0.6;
        let mut u = [[0.0; LEN]; RANKS];
        let mut v = [[0.0; LEN]; RANKS];
        let mut w = [0.0; LEN];
        let rule = |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            let sent = std::array::from_fn(|rank| {
                let g = gradient(rank, number, &x[rank]);
                u[rank] = u[rank].map(|u| momentum * u);
                u[rank] = plus(&u[rank], if nesterov { momentum } else { 1.0 }, &g);
                let growth = if nesterov { plus(&u[rank], 1.0, &g) } else { u[rank] };
                v[rank] = plus(&v[rank], rate, &growth);
                let sent = Lossy::Largest(3).decoded(&v[rank]);
                v[rank] = plus(&v[rank], -1.0, &sent);
                let cleared = |at: usize| if masking && sent[at] != 0.0 { 0.0 } else { u[rank][at] };
                u[rank] = std::array::from_fn(cleared);
                sent
            });
            w = plus(&w.map(|w| momentum * w), weight_decay, &x[0]);
            let decay = if nesterov { plus(&w.map(|w| momentum * w), weight_decay, &x[0]) } else { w };
            *x = x.map(|x| plus(&plus(&x, -1.0, &mean(&sent)), -rate, &decay));
        };
        let dgc =
            Dgc { fraction: 0.25, warm_up: 0, momentum, nesterov, masking, weight_decay, vectors: false };
        check(dgc, rule);
    }
}

#[test]
fn choco_sgd_on_a_ring() {
    let consensus = 0.4;
    for lossy in [Lossy::Sign, Lossy::Largest(4)] {
        // What is known of all ranks begins where they are.
        let mut known = [std::array::from_fn(start); RANKS];
        let rule = |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            *x = std::array::from_fn(|rank| plus(&x[rank], -rate, &gradient(rank, number, &x[rank])));
            known = std::array::from_fn(|rank| {
                let difference = plus(&x[rank], -1.0, &known[rank]);
                plus(&known[rank], 1.0, &lossy.decoded(&difference))
            });
            *x = std::array::from_fn(|rank| plus(&x[rank], consensus, &drift(&known, rank)));
        };
        let codec = lossy.codec();
        check(ChocoSgd { codec, consensus: Some(consensus), schedule: Arc::new(Topology::Ring) }, rule);
    }
}

#[test]
fn deepsqueeze_on_a_ring() {
    let consensus = 0.1;
    for lossy in [Lossy::Sign, Lossy::Largest(8)] {
        let mut e = [[0.0; LEN]; RANKS];
        let rule = |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            *x = std::array::from_fn(|rank| plus(&x[rank], -rate, &gradient(rank, number, &x[rank])));
            let sent = std::array::from_fn(|rank| {
                let sum = plus(&x[rank], 1.0, &e[rank]);
                let sent = lossy.decoded(&sum);
                e[rank] = plus(&sum, -1.0, &sent);
                sent
            });
            *x = std::array::from_fn(|rank| plus(&x[rank], consensus, &drift(&sent, rank)));
        };
        check(DeepSqueeze { codec: lossy.codec(), consensus, schedule: Arc::new(Topology::Ring) }, rule);
    }
}
