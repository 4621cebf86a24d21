//! Tensors that are encoded one by one: each as by its own codec, and every damage noticed.

use super::*;
use hexagram_logical::codec::{Exact, Keep, MinMax8, PerTensor, RandomK, TopK};
use std::sync::Arc;

/// A codec whose messages differ in size: zeros at the end are not sent.
#[derive(Debug)]
struct Trimmed;

impl Codec for Trimmed {
    fn name(&self) -> String {
        "trimmed".to_owned()
    }

    fn properties(&self) -> hexagram_logical::codec::Properties {
        Exact.properties()
    }

    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let len = from.iter().rposition(|x| *x != 0.0).map_or(0, |last| last + 1);
        Exact.encode(&from[..len], to, seed)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let kept = to.get_mut(..from.len() / 4).ok_or_else(|| CodecError::damaged("too many numbers"))?;
        Exact.decode_add(from, weight, kept)
    }
}

/// A codec whose messages are longer than it declares.
#[derive(Debug)]
struct Longer;

impl Codec for Longer {
    fn name(&self) -> String {
        "longer".to_owned()
    }

    fn properties(&self) -> hexagram_logical::codec::Properties {
        Exact.properties()
    }

    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }

    fn encode(&self, from: &[f32], _to: &mut [u8], _seed: u64) -> Result<usize, CodecError> {
        Ok(4 * from.len() + 1)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        Exact.decode_add(from, weight, to)
    }
}

#[test]
fn a_message_longer_than_its_codec_says_is_refused() {
    let exact: Arc<dyn Codec> = Arc::new(Exact);
    for tensors in [vec![(3, Arc::new(Longer) as Arc<dyn Codec>), (2, exact)], vec![(5, Arc::new(Longer))]] {
        let codec = PerTensor::new(tensors);
        let error = encoded(&codec, &plain(5, 1), 0).unwrap_err();
        assert!(error.to_string().contains("encoded_len of"), "{error}");
    }
}

fn codec() -> PerTensor {
    let top: Arc<dyn Codec> = Arc::new(TopK::new(Keep::Ratio(0.1)).unwrap());
    let parts: [(usize, Arc<dyn Codec>); 6] = [
        (30, top.clone()),
        (7, Arc::new(Exact)),
        (0, top.clone()),
        (20, Arc::new(Trimmed)),
        (1, top),
        (12, Arc::new(MinMax8::default())),
    ];
    PerTensor::new(parts)
}

#[test]
fn each_tensor_is_what_its_codec_makes_of_it() {
    let mut x = plain(70, 4);
    x[50..57].fill(0.0);
    let found = roundtrip(&codec(), &x, 3);
    assert_eq!(found[..30], roundtrip(&TopK::new(Keep::Count(3)).unwrap(), &x[..30], 0));
    assert_eq!(found[30..58], x[30..58]);
    assert_eq!(found[58..], roundtrip(&MinMax8::default(), &x[58..], 0));
    let top = |len| TopK::new(Keep::Ratio(0.1)).unwrap().encoded_len(len);
    let bytes = top(30) + 4 * 7 + (4 + 4 * 13) + top(1) + (12 + 8);
    assert_eq!(encoded(&codec(), &x, 3).unwrap().len(), bytes);
}

#[test]
fn its_properties_are_those_that_all_have() {
    let properties = codec().properties();
    assert!(!properties.unbiased && !properties.linear && !codec().has_fixed_size());
    assert_eq!(properties.contraction, Some(0.1));
    let random: Arc<dyn Codec> = Arc::new(RandomK::unbiased(Keep::Ratio(0.5)).unwrap());
    let unbiased = PerTensor::new([(5, random), (2, Arc::new(Exact) as Arc<dyn Codec>)]);
    assert!(unbiased.properties().unbiased && unbiased.properties().linear);
    let other = PerTensor::new([(3, Arc::new(Exact) as Arc<dyn Codec>), (4, Arc::new(Exact))]);
    assert_ne!(
        other.name(),
        PerTensor::new([(4, Arc::new(Exact) as Arc<dyn Codec>), (3, Arc::new(Exact))]).name()
    );
    let sizes: Vec<usize> = (0..90).map(|len| codec().encoded_len(len)).collect();
    assert!(sizes.is_sorted());
}

#[test]
fn what_is_no_number_is_counted_from_the_first_tensor() {
    for at in [0, 29, 33, 50, 57, 69] {
        let mut x = plain(70, 1);
        x[at] = f32::NAN;
        let refused = encoded(&codec(), &x, 0).unwrap_err();
        assert!(matches!(refused, CodecError::NotFinite { index, .. } if index == at), "{at}: {refused}");
    }
    encoded(&codec(), &plain(69, 1), 0).unwrap_err();
}

#[test]
fn cut_and_longer_messages_are_refused() {
    let message = encoded(&codec(), &plain(70, 1), 0).unwrap();
    let mut longer = message.clone();
    longer.push(0);
    for end in 0..=longer.len() {
        let outcome = codec().decode_add(&longer[..end], 1.0, &mut [0.0; 70]);
        assert_eq!(outcome.is_ok(), end == message.len(), "{end}");
    }
    codec().decode_add(&message, 1.0, &mut [0.0; 71]).unwrap_err();
}
