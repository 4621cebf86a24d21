//! Compressed all-reduce against the reference of each primitive, bit for bit; valid combinations of codec and
//! feedback; and the bytes in its header.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::logical::ReduceOp;
use hexagram_algorithms::logical::codec::{
    Codec, E4M3, Half, Keep, MinMax8, PerTensor, Qsgd, RandomK, Sign, TopK,
};
use hexagram_algorithms::logical::encoding::{Encoding, Feedback};
use hexagram_algorithms::logical::testing::{Reference, cases};
use hexagram_algorithms::testing::{payload_of_shapes, payload_per_step};
use hexagram_algorithms::{Averaging, GradientAllReduce, MeanCodec, Registry, registry};
use std::sync::Arc;

/// Elements of the test model: neither whole blocks nor equal chunks.
const ELEMENTS: usize = 3001;
/// γ of each step, a power of two, so that e in units of x is exact.
const RATES: [f64; 3] = [0.5, 0.125, 0.25];

fn made(averaging: &Averaging) -> Made {
    CompressedAllReduce::Any(averaging.clone()).into()
}

/// Returns codecs, each with a feedback that suits it.
fn dense() -> Vec<(Arc<dyn Codec>, Feedback)> {
    vec![
        (Arc::new(Half::BF16), Feedback::None),
        (Arc::new(Half::F16), Feedback::TwoLevel),
        (Arc::new(E4M3::in_blocks(256)), Feedback::None),
        (Arc::new(E4M3::default()), Feedback::Difference),
        (Arc::new(Qsgd::new(7).unwrap()), Feedback::None),
        (Arc::new(MinMax8::default()), Feedback::Decaying(0.5)),
        (Arc::new(Sign::in_blocks(512)), Feedback::Error),
        (Arc::new(Sign::in_blocks(512)), Feedback::TwoLevel),
    ]
}

fn sparse() -> Vec<(Arc<dyn Codec>, Feedback)> {
    vec![
        (Arc::new(TopK::new(Keep::Ratio(0.05)).unwrap()), Feedback::Error),
        (Arc::new(TopK::new(Keep::Ratio(0.05)).unwrap()), Feedback::Difference),
        (Arc::new(RandomK::unbiased(Keep::Ratio(0.3)).unwrap()), Feedback::None),
    ]
}

fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    (((at * 7 + rank * 31 + step * 13) % 101) as f32 - 50.0) * (1.0 + at as f32 / 1000.0)
}

/// Returns the parameters after all steps, where `mean` computes the averaged gradients by the formulas.
fn expected(
    ranks: usize,
    (codec, feedback): (Arc<dyn Codec>, Feedback),
    mean: impl Fn(&mut Reference, &dyn Fn(usize, usize) -> f32) -> Vec<f32>,
) -> Vec<f32> {
    let encoding = Encoding::new(codec).with_feedback(feedback);
    let mut reference = Reference::new(&encoding, ranks, ELEMENTS, ReduceOp::Mean);
    let mut x = vec![1.0f32; ELEMENTS];
    for (step, rate) in RATES.into_iter().enumerate() {
        let rate = rate as f32;
        let as_step = matches!(feedback, Feedback::Error | Feedback::Decaying(_) | Feedback::TwoLevel);
        let factor = if as_step { rate } else { 1.0 };
        let mean = mean(&mut reference, &|rank, at| factor * gradient(rank, step, at));
        x.iter_mut().zip(mean).for_each(|(x, mean)| *x -= rate * (mean / factor));
    }
    x
}

fn run(ranks: usize) -> Run<f32> {
    let steps = RATES.len();
    Run { ranks, shape: vec![ELEMENTS], initial: 1.0, rate: |step| RATES[step], steps, ..Run::default() }
}

fn given(rank: usize, step: usize, x: &[f32]) -> Vec<f32> {
    (0..x.len()).map(|at| gradient(rank, step, at)).collect()
}

#[test]
fn dense_codecs_are_those_of_the_reference_bit_for_bit() {
    for (transport, ranks) in cases(&[1, 3]) {
        for (codec, feedback) in dense() {
            let name = format!("{} with {feedback}, {transport} × {ranks}", codec.name());
            let averaging = Averaging { codec: MeanCodec::Encoded(codec.clone()), feedback };
            let found = Run { transport, ..run(ranks) }.train(|| made(&averaging), given);
            let expected = expected(ranks, (codec, feedback), |reference, numbers| {
                reference
                    .all_reduce_encoded(|rank, range| range.map(|at| numbers(rank, at)).collect())
                    .unwrap()
            });
            assert!(found.iter().all(|found| *found == expected), "{name}");
        }
    }
}

#[test]
fn sparse_codecs_are_those_of_the_reference_bit_for_bit() {
    for (codec, feedback) in sparse() {
        let name = format!("{} with {feedback}", codec.name());
        let averaging = Averaging { codec: MeanCodec::Encoded(codec.clone()), feedback };
        let found = run(3).train(|| made(&averaging), given);
        let whole: Arc<dyn Codec> = Arc::new(PerTensor::new([(ELEMENTS, codec)]));
        let expected = expected(3, (whole, feedback), |reference, numbers| {
            reference.all_reduce_sparse(|rank| (0..ELEMENTS).map(|at| numbers(rank, at)).collect()).unwrap()
        });
        assert!(found.iter().all(|found| *found == expected), "{name}");
    }
}

#[test]
fn all_of_them_come_to_the_minimum() {
    let all = dense().into_iter().map(|(codec, feedback)| (MeanCodec::Encoded(codec), feedback));
    let random: MeanCodec = MeanCodec::Reduced(Arc::new(RandomK::new(Keep::Ratio(0.3)).unwrap()));
    let low_rank = MeanCodec::LowRank { rank: 1, saving: 1.0 };
    let others = [(MeanCodec::Exact, Feedback::None), (random, Feedback::Error), (low_rank, Feedback::Error)];
    for (codec, feedback) in all.chain(others) {
        let averaging = Averaging { codec, feedback };
        let rate = |step: usize| 0.2 / (1.0 + step as f64 / 20.0);
        let run = Run { ranks: 3, shape: vec![10, 6], rate, steps: 150, ..Run::default() };
        let found = run.train(|| made(&averaging), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{averaging:?}");
        let error = furthest(&found[0], &optimum(3, 60));
        assert!(error < 0.5, "{averaging:?}: {error}");
    }
}

#[test]
fn without_a_codec_it_is_an_all_reduce() {
    let averaging = Averaging::default();
    assert_eq!(run(3).train(|| made(&averaging), given), run(3).train(|| GradientAllReduce.into(), given));
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let elements = 32768;
    let blocks = |size: usize, header: usize| (elements / size * header) as f64;
    let d = elements as f64;
    let expected: [(Averaging, f64); 6] = [
        (Averaging::encoded(Half::BF16, Feedback::None), 2.0 * d),
        (Averaging::encoded(Half::F16, Feedback::None), 2.0 * d),
        (Averaging::encoded(E4M3::default(), Feedback::None), d + blocks(2048, 4)),
        (Averaging::encoded(MinMax8::default(), Feedback::None), d + blocks(2048, 8)),
        (Averaging::encoded(Qsgd::new(7).unwrap(), Feedback::None), d * 4.0 / 8.0 + blocks(512, 4)),
        (Averaging::encoded(Sign::in_blocks(2048), Feedback::TwoLevel), d / 8.0 + blocks(2048, 4)),
    ];
    for (averaging, message) in expected {
        let found = payload_per_step(4, elements, 2, || made(&averaging)).unwrap();
        assert_eq!(found, 2.0 * 3.0 / 4.0 * message, "{averaging:?}");
    }
    let largest = Averaging::encoded(TopK::new(Keep::Ratio(0.05)).unwrap(), Feedback::Error);
    let found = payload_of_shapes(4, &[vec![30, 7], vec![7]], 2, || made(&largest)).unwrap();
    let message = crate::replicas::top_k_bytes(210, 0.05) + crate::replicas::top_k_bytes(7, 0.05);
    assert_eq!(found, 3.0 * message as f64);
}

#[test]
fn what_does_not_go_together_is_refused_with_the_reason() {
    let top = TopK::new(Keep::Ratio(0.01)).unwrap();
    let wrong = [
        (Averaging { codec: MeanCodec::Exact, feedback: Feedback::Error }, "they lose nothing"),
        (Averaging::encoded(top, Feedback::None), "may not converge"),
        (Averaging::encoded(Sign::in_blocks(64), Feedback::None), "may not converge"),
        (Averaging::encoded(top, Feedback::TwoLevel), "it is encoded once"),
        (Averaging::encoded(Qsgd::new(7).unwrap(), Feedback::Error), "larger than its input"),
        (
            Averaging { codec: MeanCodec::LowRank { rank: 1, saving: 2.0 }, feedback: Feedback::Difference },
            "or estimated",
        ),
    ];
    for (averaging, reason) in wrong {
        let error = averaging.check().unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("choose"), "{error}");
        let refused = Run { ranks: 2, ..Run::default() }.refused(|| made(&averaging), |_| 1.0f32);
        assert!(refused.iter().all(|error| error.contains(reason)), "{refused:?}");
    }
    let error = Averaging::encoded(Half::F16, Feedback::Extrapolation).check().unwrap_err().to_string();
    assert!(error.contains("extrapolation is for neighbours"), "{error}");
}

#[test]
fn codec_and_feedback_have_spellings() {
    let texts = [
        "compressed-allreduce(codec=sign, feedback=two-level)",
        "compressed-allreduce(codec=top-k(5%), feedback=error)",
        "compressed-allreduce(codec=low-rank(rank=1, saving=2), feedback=error)",
        "compressed-allreduce(codec=exact)",
    ];
    for text in texts {
        let algorithm = registry::named(text).unwrap();
        assert_eq!(Registry::built_in().short(&algorithm).to_string(), text);
    }
    let wrong = [
        ("compressed-allreduce(feedback=extrapolation)", "feedback"),
        ("compressed-allreduce(codec=low-rank(rank=0))", "rank"),
        ("compressed-allreduce(codec=zip)", "zip"),
    ];
    for (text, what) in wrong {
        let error = registry::named(text).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
