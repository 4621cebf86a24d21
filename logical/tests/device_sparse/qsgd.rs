//! Quantized SGD: levels of every width, buckets of one piece and of several, whole or not.

use super::numbers::Kind;
use super::{Comparisons, POLICIES, damaged, device};
use hexagram_logical::codec::{Codec, Qsgd};
use hexagram_logical::testing::lengths;

#[test]
fn messages_and_what_they_decode_to_are_the_hosts() {
    let mut comparisons = Comparisons::default();
    let mut turn = 0;
    for levels in lengths(&[1, 7, 100, 1 << 15]) {
        for bucket in lengths(&[512, 1, 77, 511, 513, 1024, 2500, 1 << 40]) {
            for len in lengths(&[0, 1, 15, 17, 63, 511, 512, 513, 1030, 6000]) {
                let policy = POLICIES[turn % 3];
                let codec = Qsgd::new(levels).unwrap().with_bucket(bucket).unwrap().with_not_finite(policy);
                comparisons.compare(&codec, len, if len < 1000 { 3 } else { 1 });
                turn += 1;
            }
        }
    }
    for policy in POLICIES {
        for bucket in [512, 1500] {
            let codec = Qsgd::default().with_bucket(bucket).unwrap().with_not_finite(policy);
            comparisons.compare(&codec, 2700, Kind::ALL.len());
        }
    }
}

#[test]
fn norms_and_levels_that_cannot_be_are_damage() {
    for bucket in [512, 100, 1024] {
        let codec = Qsgd::new(5).unwrap().with_bucket(bucket).unwrap();
        let x: Vec<f32> = (0..1300).map(|x| x as f32 - 640.0).collect();
        let mut message = vec![0; codec.encoded_len(x.len())];
        codec.encode(&x, &mut message, 1).unwrap();
        assert!(device::decode(&codec, &message, 0, None, &x).is_none_or(|decoded| decoded.is_ok()));
        for norm in [-1.0f32, -0.0, f32::INFINITY, -f32::NAN] {
            let mut message = message.clone();
            message[..4].copy_from_slice(&norm.to_le_bytes());
            damaged(&codec, &message, x.len(), &format!("a norm of {norm}"));
        }
        for place in [4, message.len() - 3] {
            let mut message = message.clone();
            message[place] = 0x66;
            damaged(&codec, &message, x.len(), &format!("levels above the largest at {place}"));
        }
    }
}
