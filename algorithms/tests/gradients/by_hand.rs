//! Rules on ranks that differ in minimum and curvature, against the same steps in f64, with lossy codecs implemented in
//! this file: signs, and the largest elements. No code is shared with the implementation under test.

use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::deepsqueeze::DeepSqueeze;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::gossip::Gossip;
use hexagram_algorithms::gossip_pga::GossipPga;
use hexagram_algorithms::gradient_tracking::GradientTracking;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::codec::{Codec, Keep, Sign, TopK};
use hexagram_algorithms::logical::decentralized::Topology;
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::signsgd_vote::SignSgdVote;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, Averaging, GradientAllReduce};
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

/// Returns the replica of every rank after all steps of an algorithm.
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

/// Compares the result with the rule of every rank in f64.
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

/// The codecs of this file, from the library and by hand.
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

/// Returns Σⱼ wᵢⱼ pⱼ − pᵢ on a ring with weights 1/3.
fn drift(points: &[Point; RANKS], rank: usize) -> Point {
    let left = &points[(rank + RANKS - 1) % RANKS];
    let right = &points[(rank + 1) % RANKS];
    std::array::from_fn(|at| (left[at] + right[at] - 2.0 * points[rank][at]) / 3.0)
}

#[test]
fn top_k_with_error_feedback() {
    let averaging = Averaging::encoded(TopK::new(Keep::Count(3)).unwrap(), Feedback::Error);
    for algorithm in [
        AnyAlgorithm::from(CompressedAllReduce::TopK { fraction: 0.25 }),
        CompressedAllReduce::Any(averaging).into(),
    ] {
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
        // The estimates of all ranks start at their parameters.
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

/// Returns the gradients of all ranks, each at its own replica.
fn gradients(number: usize, x: &[Point; RANKS]) -> [Point; RANKS] {
    std::array::from_fn(|rank| gradient(rank, number, &x[rank]))
}

/// Returns Σⱼ wᵢⱼ pⱼ on a ring with weights 1/3.
fn mixed(points: &[Point; RANKS]) -> [Point; RANKS] {
    std::array::from_fn(|rank| plus(&points[rank], 1.0, &drift(points, rank)))
}

#[test]
fn means_of_gradients_and_of_parameters() {
    check(GradientAllReduce, |number, rate, x| {
        let mean = mean(&gradients(number, x));
        *x = x.map(|x| plus(&x, -rate, &mean));
    });
    let averaging = Averaging::default;
    let local = |start: usize| {
        move |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            let all = gradients(number, x);
            let mean_gradient = mean(&all);
            let all = if number < start { [mean_gradient; RANKS] } else { all };
            *x = std::array::from_fn(|rank| plus(&x[rank], -rate, &all[rank]));
            if number >= start && (number + 1).is_multiple_of(3) {
                *x = [mean(x); RANKS];
            }
        }
    };
    check(LocalSgd { start: None, period: 3, averaging: averaging() }, local(0));
    check(LocalSgd { start: Some(4), period: 3, averaging: averaging() }, local(4));
}

#[test]
fn majority_of_signs() {
    let mut m = [[0.0; LEN]; RANKS];
    check(SignSgdVote { momentum: 0.6 }, |number, rate, x| {
        for (m, g) in m.iter_mut().zip(gradients(number, x)) {
            *m = plus(&m.map(|m| 0.6 * m), 0.4, &g);
        }
        let votes: Point = std::array::from_fn(|at| m.iter().map(|m| m[at].signum()).sum());
        let tie = if number.is_multiple_of(2) { 1.0 } else { -1.0 };
        let sign = votes.map(|votes| if votes == 0.0 { tie } else { votes.signum() });
        *x = x.map(|x| plus(&x, -rate, &sign));
    });
}

#[test]
fn gossip_on_a_ring() {
    check(DPsgd::default(), |number, rate, x| {
        let all = gradients(number, x);
        let mixture = mixed(x);
        *x = std::array::from_fn(|rank| plus(&mixture[rank], -rate, &all[rank]));
    });
    let combine = |period: usize| {
        move |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            let all = gradients(number, x);
            let stepped = std::array::from_fn(|rank| plus(&x[rank], -rate, &all[rank]));
            *x = if (number + 1).is_multiple_of(period) { [mean(&stepped); RANKS] } else { mixed(&stepped) };
        }
    };
    check(DPsgd { adapt_then_combine: true, ..DPsgd::default() }, combine(usize::MAX));
    check(GossipPga { gossip: Gossip::over(Topology::Ring), period: 4 }, combine(4));
}

/// Mixing of one buffer; with a codec, of encoded differences to the estimates of the ranks.
struct Mixer {
    known: [Point; RANKS],
    codec: Option<(Lossy, f64)>,
}

impl Mixer {
    fn mix(&mut self, x: &[Point; RANKS]) -> [Point; RANKS] {
        let Some((lossy, consensus)) = self.codec else { return mixed(x) };
        for (known, x) in self.known.iter_mut().zip(x) {
            *known = plus(known, 1.0, &lossy.decoded(&plus(x, -1.0, known)));
        }
        std::array::from_fn(|rank| plus(&x[rank], consensus, &drift(&self.known, rank)))
    }
}

#[test]
fn gradient_tracking_in_full_precision_and_encoded() {
    for codec in [None, Some((Lossy::Sign, 0.3)), Some((Lossy::Largest(4), 0.4))] {
        let mut directions = Mixer { known: [[0.0; LEN]; RANKS], codec };
        let mut parameters = Mixer { known: [std::array::from_fn(start); RANKS], codec };
        let mut y = [[0.0; LEN]; RANKS];
        let mut last = y;
        let rule = |number: usize, rate: f64, x: &mut [Point; RANKS]| {
            let all = gradients(number, x);
            let kept = directions.mix(&y);
            y = std::array::from_fn(|rank| plus(&plus(&kept[rank], 1.0, &all[rank]), -1.0, &last[rank]));
            last = all;
            *x = parameters.mix(&std::array::from_fn(|rank| plus(&x[rank], -rate, &y[rank])));
        };
        let consensus = codec.map(|(_, consensus)| consensus);
        let codec = codec.map(|(lossy, _)| lossy.codec());
        check(GradientTracking { gossip: Gossip { codec, consensus, ..Gossip::over(Topology::Ring) } }, rule);
    }
}
