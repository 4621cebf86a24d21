//! Tensors with a codec each: refused elements count from the bucket's beginning, and messages follow each other at
//! any offset.

use super::{Comparisons, POLICIES, damaged};
use hexagram_logical::codec::{Codec, Keep, PerTensor, Qsgd, RandomK, TopK};
use std::sync::Arc;

/// Returns a codec of tensors of these lengths, whose codecs alternate.
fn codec(lengths: &[usize], turn: usize) -> PerTensor {
    let policy = POLICIES[turn % POLICIES.len()];
    let codecs: [Arc<dyn Codec>; 4] = [
        Arc::new(TopK::new(Keep::Ratio(0.2)).unwrap().with_not_finite(policy)),
        Arc::new(Qsgd::default().with_not_finite(policy)),
        Arc::new(RandomK::unbiased(Keep::Count(9)).unwrap().with_not_finite(policy)),
        Arc::new(TopK::new(Keep::Count(3)).unwrap().in_chunks(50).in_two_bits().with_not_finite(policy)),
    ];
    let codec = |number: usize| codecs[(number + turn / POLICIES.len()) % codecs.len()].clone();
    PerTensor::new(lengths.iter().enumerate().map(|(number, len)| (*len, codec(number))))
}

#[test]
fn messages_and_what_they_decode_to_are_the_hosts() {
    let mut comparisons = Comparisons::default();
    for turn in 0..12 {
        comparisons.compare(&codec(&[100], turn), 100, 3);
        comparisons.compare(&codec(&[7, 1000, 0, 33, 1, 530, 64], turn), 1635, 11);
        comparisons.compare(&PerTensor::new([(50, Arc::new(codec(&[20, 30], turn)) as _)]), 50, 3);
    }
}

#[test]
fn damage_in_one_part_is_found() {
    let codec = codec(&[600, 900, 80], 0);
    let x: Vec<f32> = (0..1580).map(|at| (at % 71) as f32).collect();
    let mut message = vec![0; codec.encoded_len(x.len())];
    codec.encode(&x, &mut message, 1).unwrap();
    let first = TopK::new(Keep::Ratio(0.2)).unwrap().encoded_len(600);
    message[first..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    damaged(&codec, &message, x.len(), "an infinite norm of the second tensor");
}
