//! Messages from faulty peers: an error or numbers, never a panic and never a write beyond the end.

use super::*;
use hexagram_logical::codec::{Keep, Qsgd, RandomK, TopK};

fn codecs() -> Vec<Box<dyn Codec>> {
    vec![
        Box::new(Qsgd::new(1).unwrap()),
        Box::new(Qsgd::new(6).unwrap().with_bucket(100).unwrap()),
        Box::new(Qsgd::new(127).unwrap()),
        Box::new(Qsgd::new(1 << 15).unwrap()),
        Box::new(TopK::new(Keep::Ratio(0.05)).unwrap()),
        Box::new(TopK::new(Keep::Count(9)).unwrap()),
        Box::new(TopK::new(Keep::Ratio(0.05)).unwrap().in_chunks(64).in_two_bits()),
        Box::new(RandomK::new(Keep::Ratio(0.1)).unwrap()),
        Box::new(RandomK::unbiased(Keep::Count(3)).unwrap()),
    ]
}

#[test]
fn every_other_length_is_refused() {
    for codec in codecs() {
        for len in [0, 1, 33, 700] {
            let message = encoded(&*codec, &plain(len, 1), 1).unwrap();
            let mut longer = message.clone();
            longer.push(0);
            let mut to = vec![0.0; len];
            for end in 0..=longer.len() {
                let result = codec.decode_add(&longer[..end], 1.0, &mut to);
                assert_eq!(result.is_ok(), end == message.len(), "{}: {end} bytes of {len}", codec.name());
            }
        }
    }
}

#[test]
fn garbage_is_decoded_or_refused() {
    let mut word = 1u64;
    for codec in codecs() {
        for len in [1, 2, 17, 511, 512, 700] {
            let message = encoded(&*codec, &plain(len, 1), 1).unwrap();
            for _ in 0..300 {
                let mut garbage = message.clone();
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let changed = 1 + (word >> 60) as usize * garbage.len() / 16;
                for _ in 0..changed {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let at = (word >> 33) as usize % garbage.len();
                    garbage[at] ^= (word >> 24) as u8;
                }
                // Behind the end there is something to overwrite.
                let mut to = vec![0.0; len + 64];
                let _ = codec.decode_add(&garbage, 1.0, &mut to[..len]);
                let _ = codec.decode(&garbage, &mut to[..len]);
                assert!(to[len..].iter().all(|x| *x == 0.0));
            }
        }
    }
}

#[test]
fn norms_levels_and_indices_that_cannot_be_are_refused() {
    let mut to = vec![0.0; 512];
    let codec = Qsgd::new(6).unwrap();
    let message = encoded(&codec, &plain(512, 1), 1).unwrap();
    for norm in [-1.0, -0.0, f32::INFINITY] {
        let mut bad = message.clone();
        bad[..4].copy_from_slice(&f32::to_le_bytes(norm));
        codec.decode(&bad, &mut to).unwrap_err();
    }
    let mut bad = message;
    bad[4..].fill(0xff);
    let error = codec.decode(&bad, &mut to).unwrap_err();
    assert!(error.to_string().contains("a level above 6"), "{error}");

    let codec = TopK::new(Keep::Count(4)).unwrap();
    let message = encoded(&codec, &plain(500, 1), 1).unwrap();
    for fill in [0, 0xff] {
        let mut bad = message.clone();
        let end = message.len() - 2;
        bad[end..].fill(fill);
        codec.decode(&bad, &mut to[..500]).unwrap_err();
    }
}

#[test]
fn messages_decode_at_any_alignment() {
    for codec in codecs() {
        let x = plain(700, 1);
        let message = encoded(&*codec, &x, 1).unwrap();
        let want = roundtrip(&*codec, &x, 1);
        for shift in 0..8 {
            let mut shifted = vec![0; shift];
            shifted.extend_from_slice(&message);
            let mut to = vec![0.0; 700];
            codec.decode(&shifted[shift..], &mut to).unwrap();
            assert_eq!(to, want, "{}", codec.name());
        }
    }
}

#[test]
fn weights_scale_what_is_added() {
    for codec in codecs() {
        let x = plain(700, 2);
        let message = encoded(&*codec, &x, 3).unwrap();
        let once = roundtrip(&*codec, &x, 3);
        let mut twice = vec![1.0; 700];
        codec.decode_add(&message, 2.0, &mut twice).unwrap();
        let want: Vec<f32> = once.iter().map(|x| 1.0 + 2.0 * x).collect();
        assert_eq!(twice, want, "{}", codec.name());
    }
}
