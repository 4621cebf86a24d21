//! SparseLoCo: its rule with selection and quantizer, and its equivalent without them.

use super::{Model, PERIOD, Sparse, assert_near, by_hand, gradient, train};
use hexagram_algorithms::diloco::{DiLoCo, Outer};
use hexagram_algorithms::logical::codec::{Keep, TopK};
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::sparse_loco::SparseLoCo;
use hexagram_algorithms::{AnyAlgorithm, Averaging};

const RATE: f64 = 0.1;

fn sgd(rank: usize, _: u64, x: &mut Model) {
    for (tensor, x) in x.iter_mut().enumerate() {
        x.iter_mut().enumerate().for_each(|(at, x)| *x -= RATE * gradient(rank, tensor, at, *x));
    }
}

/// Returns the mean of the bin of each value, of four bins that are 1.5 deviations wide, the third around the mean.
fn two_bits(values: &[f64]) -> Vec<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
    let bin = |x: f64| {
        if deviation == 0.0 { 2.0 } else { ((x - mean) / (1.5 * deviation) + 2.0).round().clamp(0.0, 3.0) }
    };
    let of = |number: f64| {
        let all: Vec<f64> = values.iter().copied().filter(|x| bin(*x) == number).collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    values.iter().map(|x| of(bin(*x))).collect()
}

fn algorithm(bits: bool, feedback: Feedback) -> SparseLoCo {
    let codec = TopK::new(Keep::Ratio(0.1)).unwrap().in_chunks(64);
    let codec = if bits { codec.in_two_bits() } else { codec };
    SparseLoCo { period: PERIOD, learning_rate: 0.7, averaging: Averaging::encoded(codec, feedback) }
}

#[test]
fn its_rounds_are_those_of_its_rule() {
    let outer = Outer { learning_rate: 0.7, momentum: 0.0 };
    for ranks in [1, 2, 4] {
        for (bits, feedback) in
            [(true, Feedback::Decaying(0.8)), (true, Feedback::Error), (false, Feedback::Decaying(0.5))]
        {
            let mut sparse = Sparse::new(ranks, feedback.error_kept().unwrap(), 0.1, 64);
            let quantize = |values: &[f64]| if bits { two_bits(values) } else { values.to_vec() };
            let expected = by_hand(ranks, outer, sgd, |rank, tensor, change| {
                sparse.send((rank, tensor), &change, quantize)
            });
            let found = train(ranks, RATE, &algorithm(bits, feedback).into(), |x| x as f32, f64::from);
            assert_near(&found, &expected, 1e-5, &format!("{ranks} ranks, {feedback}"));
        }
    }
}

#[test]
fn its_defaults_are_those_of_its_header() {
    let full = format!("{:#}", AnyAlgorithm::from(SparseLoCo::default()));
    let codec = "codec=top-k(1.5625%, chunk=4096, bits=2), feedback=error(decay=0.95)";
    assert_eq!(full, format!("sparse-loco(period=16, learning_rate=1, {codec})"));
}

#[test]
fn in_full_precision_it_is_diloco_with_plain_outer_sgd() {
    let exact = SparseLoCo { period: PERIOD, learning_rate: 0.7, averaging: Averaging::default() };
    let outer = Outer { learning_rate: 0.7, momentum: 0.0 };
    let diloco = DiLoCo { period: PERIOD, outer, ..DiLoCo::default() };
    let found = train(3, RATE, &exact.into(), |x| x, |x| x);
    assert_eq!(found, train(3, RATE, &diloco.into(), |x| x, |x| x));
    assert_near(&found, &by_hand(3, outer, sgd, |_, _, change| change), 1e-12, "all elements");
}
