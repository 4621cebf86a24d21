//! MuLoCo: its rule with Muon and AdamW by hand, with and without a codec.

use super::{Model, PERIOD, Sparse, assert_near, by_hand, gradient, shapes, train};
use hexagram_algorithms::Averaging;
use hexagram_algorithms::diloco::DiLoCo;
use hexagram_algorithms::diloco::Outer;
use hexagram_algorithms::logical::codec::{Keep, TopK};
use hexagram_algorithms::logical::encoding::Feedback;

const RATE: f64 = 0.02;
const OUTER: Outer = Outer { learning_rate: 0.9, momentum: 0.8 };

/// Returns five rounds of X ← 3.4445 X − 4.775 (X Xᵀ) X + 2.0315 (X Xᵀ)² X from X / ‖X‖.
fn orthogonal(x: &[f64], (rows, columns): (usize, usize)) -> Vec<f64> {
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-7);
    let mut x: Vec<f64> = x.iter().map(|x| x / norm).collect();
    let times = |left: &[f64], right: &[f64], inner: usize, columns: usize| -> Vec<f64> {
        let element = |at: usize| {
            (0..inner).map(|k| left[at / columns * inner + k] * right[k * columns + at % columns]).sum()
        };
        (0..left.len() / inner * columns).map(element).collect()
    };
    for _ in 0..5 {
        let turned: Vec<f64> = (0..x.len()).map(|at| x[at % rows * columns + at / rows]).collect();
        let gram = times(&x, &turned, columns, rows);
        let third = times(&gram, &x, rows, columns);
        let fifth = times(&gram, &third, rows, columns);
        x = (0..x.len()).map(|at| 3.4445 * x[at] - 4.775 * third[at] + 2.0315 * fifth[at]).collect();
    }
    x
}

/// Momentum of every tensor, and the second moment of AdamW.
struct Muon {
    first: Model,
    second: Model,
}

impl Muon {
    fn of_all(ranks: usize) -> Vec<Muon> {
        let zeros = || shapes().iter().map(|shape| vec![0.0; shape.iter().product()]).collect();
        (0..ranks).map(|_| Muon { first: zeros(), second: zeros() }).collect()
    }

    fn step(&mut self, rank: usize, step: u64, x: &mut Model) {
        for (tensor, (x, shape)) in x.iter_mut().zip(shapes()).enumerate() {
            let g: Vec<f64> = x.iter().enumerate().map(|(at, x)| gradient(rank, tensor, at, *x)).collect();
            let m = &mut self.first[tensor];
            m.iter_mut().zip(&g).for_each(|(m, g)| *m = 0.9 * *m + 0.1 * g);
            if let [rows, columns] = shape[..] {
                let scale = 0.2 * (rows.max(columns) as f64).sqrt();
                let direction = orthogonal(m, (rows, columns));
                x.iter_mut().zip(direction).for_each(|(x, d)| *x -= RATE * (0.1 * *x + scale * d));
                continue;
            }
            let v = &mut self.second[tensor];
            v.iter_mut().zip(&g).for_each(|(v, g)| *v = 0.95 * *v + 0.05 * g * g);
            let steps = step as i32 + 1;
            for (x, (m, v)) in x.iter_mut().zip(m.iter().zip(v)) {
                let mean = *m / (1.0 - 0.9f64.powi(steps));
                let size = (*v / (1.0 - 0.95f64.powi(steps))).sqrt();
                *x -= RATE * (0.1 * *x + mean / (size + 1e-8));
            }
        }
    }
}

#[test]
fn its_rounds_are_those_of_its_rule() {
    for ranks in [1, 2, 4] {
        let mut muon = Muon::of_all(ranks);
        let expected =
            by_hand(ranks, OUTER, |rank, step, x| muon[rank].step(rank, step, x), |_, _, change| change);
        let exact = DiLoCo { period: PERIOD, ..DiLoCo::muon() };
        let found = train(ranks, RATE, &exact.into(), |x| x, |x| x);
        assert_near(&found, &expected, 1e-11, &format!("{ranks} ranks"));
    }
}

#[test]
fn changes_are_encoded_with_a_feedback_that_decays() {
    let averaging = Averaging::encoded(TopK::new(Keep::Ratio(0.1)).unwrap(), Feedback::Decaying(0.9));
    let ranks = 3;
    let mut muon = Muon::of_all(ranks);
    let mut sparse = Sparse::new(ranks, 0.9, 0.1, usize::MAX);
    let send = |rank, tensor, change: Vec<f64>| sparse.send((rank, tensor), &change, <[f64]>::to_vec);
    let expected = by_hand(ranks, OUTER, |rank, step, x| muon[rank].step(rank, step, x), send);
    let encoded = DiLoCo { period: PERIOD, averaging, ..DiLoCo::muon() };
    let found = train(ranks, RATE, &encoded.into(), |x| x as f32, f64::from);
    assert_near(&found, &expected, 1e-4, "the largest tenth");
}
