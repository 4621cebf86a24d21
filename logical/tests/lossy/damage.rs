//! Messages from faulty peers: an error or numbers, never a panic and never a write beyond the end.

use super::*;
use crate::codecs::all;
use hexagram_logical::codec::{Keep, NotFinite, Qsgd, TopK};

#[test]
fn garbage_is_decoded_or_refused() {
    let mut word = 1u64;
    for codec in all(NotFinite::Refuse) {
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
