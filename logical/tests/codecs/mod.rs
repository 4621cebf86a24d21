//! Properties of every codec of the catalogue, for any input.

mod numbers;
mod oracles;

use hexagram_logical::codec::{Codec, CodecError, Half, MinMax8, NotFinite, Sign, named, names};
use numbers::{bits, run};
use proptest::prelude::*;
use std::sync::Arc;

/// Other forms of the codecs in the catalogue that do not encode in blocks.
const FORMS: [&str; 8] = [
    "qsgd(levels=1)",
    "qsgd(levels=6, bucket=100)",
    "qsgd(levels=32768)",
    "top-k(5%)",
    "top-k(9)",
    "top-k(5%, chunk=64, bits=2)",
    "random-k(10%)",
    "random-k(3, unbiased=true)",
];

/// Every codec of the catalogue with that policy, and other forms of them: those that encode in blocks with small blocks
/// and with one block.
pub(crate) fn all(policy: NotFinite) -> Vec<Arc<dyn Codec>> {
    let policy = format!("not_finite={policy:?}").to_lowercase();
    let spelled = |form: &str| match form.strip_suffix(')') {
        Some(options) => format!("{options}, {policy})"),
        None => format!("{form}({policy})"),
    };
    let plain = names().into_iter().chain(FORMS).map(|form| named(&spelled(form)).unwrap());
    let in_blocks = |name| ["7", "whole"].map(|size| named(&spelled(&format!("{name}(block={size})"))).ok());
    // A codec without the option `block` refuses it.
    plain.chain(names().into_iter().flat_map(in_blocks).flatten()).collect()
}

/// Those that leave no number out.
fn dense(policy: NotFinite) -> Vec<Arc<dyn Codec>> {
    all(policy).into_iter().filter(|codec| !codec.is_sparse()).collect()
}

/// The message for `x`; encoding must not change the bytes behind it.
fn encode(codec: &dyn Codec, x: &[f32], seed: u64) -> Result<Vec<u8>, CodecError> {
    let largest = codec.encoded_len(x.len());
    let mut room = vec![0xa5; largest + 9];
    let used = codec.encode(x, &mut room, seed)?;
    assert!(used <= largest, "{} said {largest} bytes at most, and took {used}", codec.name());
    assert!(room[largest..].iter().all(|byte| *byte == 0xa5), "{} wrote behind its message", codec.name());
    room.truncate(used);
    Ok(room)
}

fn decode(codec: &dyn Codec, message: &[u8], len: usize) -> Vec<f32> {
    let mut x = vec![f32::NAN; len];
    codec.decode(message, &mut x).unwrap();
    x
}

fn square(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|x| x * x).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_runs_make_equal_messages_and_decode_alike(x in run(), weight in -2.0f32..2.0, shift in 0usize..4) {
        // The largest numbers are infinite in f16.
        for codec in all(NotFinite::Saturate) {
            let codec = &*codec;
            let message = encode(codec, &x, 5).unwrap();
            prop_assert_eq!(&message, &encode(codec, &x, 5).unwrap(), "{}", codec.name());
            let plain = decode(codec, &message, x.len());

            let mut shifted = vec![0; shift];
            shifted.extend_from_slice(&message);
            prop_assert_eq!(bits(&plain), bits(&decode(codec, &shifted[shift..], x.len())), "{}", codec.name());

            let mut sum = x.clone();
            codec.decode_add(&message, weight, &mut sum).unwrap();
            for ((sum, x), plain) in sum.iter().zip(&x).zip(&plain) {
                let product = f64::from(weight) * f64::from(*plain);
                let exact = f64::from(*x) + product;
                // Denormal units are multiplied by up to 2¹⁵ levels.
                let least = if codec.name().starts_with("qsgd") { 1e-39 } else { 1e-44 };
                let place = (f64::from(x.abs()) + product.abs()) * 1e-6 + least;
                // Also 0 times infinity.
                let overflows = product.is_nan() || product.abs().max(exact.abs()) > 3.4e38;
                prop_assert!(
                    overflows || (f64::from(*sum) - exact).abs() <= place,
                    "{}: {} + {} × {} became {}", codec.name(), x, weight, plain, sum
                );
            }
        }
    }

    #[test]
    fn the_declared_contraction_holds(x in run()) {
        for codec in dense(NotFinite::Refuse) {
            let Some(delta) = codec.properties().contraction else { continue };
            // Denormal numbers have fewer places than the proofs assume.
            let x: Vec<f32> = x.iter().map(|x| if x.abs() < 1e-30 { 0.0 } else { x.clamp(-1e38, 1e38) }).collect();
            let back = decode(&*codec, &encode(&*codec, &x, 0).unwrap(), x.len());
            let error = square(x.iter().zip(&back).map(|(x, back)| f64::from(*x) - f64::from(*back)));
            let norm = square(x.iter().map(|x| f64::from(*x)));
            prop_assert!(error <= ((1.0 - delta) + 1e-6) * norm, "{}: {} of {}", codec.name(), error, norm);
        }
    }

    #[test]
    fn no_garbage_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), len in 0usize..300) {
        for codec in all(NotFinite::Refuse) {
            let mut x = vec![0.5; len];
            let _ = codec.decode(&bytes, &mut x);
            let _ = codec.decode_add(&bytes, 0.5, &mut x);
            // And of the right size.
            let mut fitting = bytes.repeat(20 + 9 * len);
            fitting.truncate(if bytes.is_empty() { 0 } else { codec.encoded_len(len) });
            let _ = codec.decode(&fitting, &mut x);
            let _ = codec.decode_add(&fitting, 0.5, &mut x);
        }
    }

    #[test]
    fn sizes_grow_and_never_overflow(len in 0usize..=isize::MAX as usize / 4, more in 0usize..5000) {
        for codec in dense(NotFinite::Refuse) {
            let size = codec.encoded_len(len);
            let larger = codec.encoded_len(len.saturating_add(more));
            prop_assert!(size <= larger, "{}: {} and {} more", codec.name(), len, more);
            prop_assert!(size >= len / 8 || size == usize::MAX, "{}: {} bytes for {}", codec.name(), size, len);
        }
    }
}

#[test]
fn sizes_are_what_is_declared() {
    let big = (1 << 32) + 1;
    assert_eq!(Half::F16.encoded_len(big), (1 << 33) + 2);
    assert_eq!(MinMax8::default().encoded_len(big), big + 8 * ((1 << 21) + 1));
    assert_eq!(MinMax8::whole().encoded_len(big), big + 8);
    assert_eq!(Sign::default().encoded_len(big), (1 << 21) * (256 + 4) + 4 + 1);
    assert_eq!(Sign::whole().encoded_len(big), (1 << 29) + 1 + 4);
    for codec in dense(NotFinite::Refuse) {
        assert_eq!(encode(&*codec, &[], 0).unwrap(), [0; 0], "{}", codec.name());
    }
}

#[test]
fn messages_cut_short_or_continued_are_refused() {
    for (codec, len) in
        all(NotFinite::Refuse).iter().flat_map(|codec| [0, 1, 50, 700].map(|len| (codec, len)))
    {
        let x: Vec<f32> = (0..len).map(|i| i as f32 - 20.0).collect();
        let mut message = encode(&**codec, &x, 0).unwrap();
        message.push(0);
        let mut to = vec![0.0; len];
        for end in (0..=message.len()).filter(|end| end + 1 != message.len()) {
            for error in
                [codec.decode(&message[..end], &mut to), codec.decode_add(&message[..end], 0.5, &mut to)]
            {
                assert!(matches!(error, Err(CodecError::Damaged { .. })), "{}, {end} of {len}", codec.name());
            }
        }
    }
}

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// A run of several blocks whose elements 2500 and 4000 are bad.
fn spoilt(bad: f32) -> Vec<f32> {
    let mut x: Vec<f32> = (0..5000).map(|i| (i % 17) as f32 - 8.0).collect();
    x[2500] = bad;
    x[4000] = f32::NAN;
    x
}

#[test]
fn who_refuses_names_the_first() {
    for (codec, bad) in all(NotFinite::Refuse).iter().flat_map(|codec| BAD.map(|bad| (codec, bad))) {
        match encode(&**codec, &spoilt(bad), 0) {
            Err(CodecError::NotFinite { index: 2500, value }) => assert_eq!(value.to_bits(), bad.to_bits()),
            other => panic!("{}: {other:?}", codec.name()),
        }
    }
    let beyond = encode(&Half::F16, &[1.0, 65519.0, 65520.0], 0);
    assert_eq!(beyond, Err(CodecError::NotFinite { index: 2, value: 65520.0 }));
}

#[test]
fn who_propagates_makes_nothing_bad_finite() {
    // Random places miss the bad elements.
    let codecs = all(NotFinite::Propagate).into_iter().filter(|codec| !codec.name().starts_with("random-k"));
    for (codec, bad) in codecs.collect::<Vec<_>>().iter().flat_map(|codec| BAD.map(|bad| (codec, bad))) {
        let x = spoilt(bad);
        let message = encode(&**codec, &x, 0).unwrap();
        let mut sum = vec![0.0; x.len()];
        codec.decode_add(&message, 1.0, &mut sum).unwrap();
        for back in [decode(&**codec, &message, x.len()), sum] {
            assert!(!back[2500].is_finite() && back[4000].is_nan(), "{}, {bad}", codec.name());
            assert!(!bad.is_nan() || back[2500].is_nan(), "{}", codec.name());
        }
    }
    let beyond = Half::F16.with_not_finite(NotFinite::Propagate);
    assert_eq!(decode(&beyond, &encode(&beyond, &[-1e6], 0).unwrap(), 1), [f32::NEG_INFINITY]);
}

#[test]
fn who_saturates_makes_everything_finite() {
    for (codec, bad) in all(NotFinite::Saturate).iter().flat_map(|codec| BAD.map(|bad| (codec, bad))) {
        let x = spoilt(bad);
        let mut clean = x.clone();
        let message = encode(&**codec, &x, 0).unwrap();
        let back = decode(&**codec, &message, x.len());
        assert!(back.iter().all(|x| x.is_finite()), "{}, {bad}", codec.name());
        // NaN counts as 0.
        clean.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0);
        assert_eq!(message, encode(&**codec, &clean, 0).unwrap(), "{}", codec.name());
    }
    let beyond = Half::F16.with_not_finite(NotFinite::Saturate);
    let message = encode(&beyond, &[-1e6, f32::INFINITY, 3.0], 0).unwrap();
    assert_eq!(decode(&beyond, &message, 3), [-65504.0, 65504.0, 3.0]);
}

#[test]
fn names_tell_all_parameters() {
    let mut names: Vec<String> = [NotFinite::Refuse, NotFinite::Propagate]
        .into_iter()
        .flat_map(all)
        .map(|codec| codec.name())
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}
