//! The format, hostile messages, and the codec in a collective and in an algorithm.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::Registry;
use hexagram::codec::{Codec, CodecError};
use hexagram::encoding::{Encoding, Feedback};
use hexagram::{Buffer, ReduceOp, TransportKind, testing};
use hexagram_own_codec::Ternary;
use std::sync::Arc;

const CODEC: Ternary = Ternary { threshold: 0.5 };

#[test]
fn the_message_is_as_documented() {
    let mut message = [0; 6];
    assert_eq!(CODEC.encode(&[4.0, -2.0, 1.0, 0.0, 3.0], &mut message, 0), Ok(6));
    assert_eq!(message, [[0, 0, 64, 64].as_slice(), &[0b00_00_10_01, 0b01]].concat()[..]);
    let mut decoded = [f32::NAN; 5];
    CODEC.decode(&message, &mut decoded).unwrap();
    assert_eq!(decoded, [3.0, -3.0, 0.0, 0.0, 3.0]);
}

#[test]
fn what_it_cannot_encode_or_decode_is_refused() {
    let refused = CODEC.encode(&[1.0, f32::INFINITY], &mut [0; 5], 0);
    assert_eq!(refused, Err(CodecError::NotFinite { index: 1, value: f32::INFINITY }));
    for message in [[].as_slice(), &[0; 4], &[0; 6]] {
        assert!(CODEC.decode(message, &mut [0.0; 2]).is_err(), "{message:?}");
    }
}

#[test]
fn replicas_are_equal_after_an_all_reduce() {
    let results = testing::spawn(TransportKind::Thread, 3, |comm| {
        let mut encoding = Encoding::new(Arc::new(CODEC)).with_feedback(Feedback::Error);
        let mut x = Buffer::from_slice(&[comm.rank() as f32, 1.0, -2.0, 0.5, 0.0, 7.0])?;
        comm.block_on(comm.all_reduce_encoded(&mut x, ReduceOp::Mean, &mut encoding))?;
        Ok(x.host::<f32>()?.to_vec())
    });
    let replicas = results.unwrap();
    assert!(replicas.iter().all(|replica| *replica == replicas[0]));
}

#[test]
fn every_algorithm_with_a_codec_takes_it_by_name() {
    let registry = Registry::built_in().with_codec(CODEC, "ternary numbers");
    let name = "compressed-allreduce(codec=ternary(threshold=0.25))";
    assert!(registry.named(name).unwrap().spelling().to_string().contains("ternary(threshold=0.25)"));
    assert!(registry.named("compressed-allreduce(codec=ternary(threshold=0))").is_err());
}
