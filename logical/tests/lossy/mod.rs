//! Codecs that round, drop or factor: their documented properties, on every kind of input, and their errors for
//! damaged messages.

mod damage;
mod low_rank;
mod per_tensor;
mod qsgd;
mod sparse;

use hexagram_logical::codec::{Codec, CodecError};

/// The message of a codec.
fn encoded(codec: &dyn Codec, x: &[f32], seed: u64) -> Result<Vec<u8>, CodecError> {
    let mut message = vec![0xa5; codec.encoded_len(x.len())];
    let size = codec.encode(x, &mut message, seed)?;
    assert!(size <= message.len());
    message.truncate(size);
    Ok(message)
}

/// A run after encoding and decoding.
fn roundtrip(codec: &dyn Codec, x: &[f32], seed: u64) -> Vec<f32> {
    let message = encoded(codec, x, seed).unwrap();
    let mut decoded = vec![f32::NAN; x.len()];
    let mut added = vec![0.0; x.len()];
    codec.decode(&message, &mut decoded).unwrap();
    codec.decode_add(&message, 1.0, &mut added).unwrap();
    let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
    assert!(decoded.iter().zip(&added).all(same), "decode is decode_add to zeros");
    decoded
}

/// Numbers in [−1, 1).
fn plain(len: usize, seed: u64) -> Vec<f32> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let draw = |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..len).map(draw).collect()
}

/// Sizes around blocks and buckets; constant, denormal, huge and mixed runs of each.
fn runs() -> impl Iterator<Item = Vec<f32>> {
    let sizes = [0, 1, 2, 3, 15, 16, 17, 511, 512, 513, 1024, 1537, 5000];
    sizes.into_iter().flat_map(|len| {
        let mixed = plain(len, 5).into_iter().enumerate().map(|(i, x)| x * 10f32.powi(i as i32 % 70 - 35));
        [
            plain(len, 1),
            vec![0.0; len],
            vec![-0.0; len],
            vec![-3.25; len],
            plain(len, 2).iter().map(|x| x * 1e-40).collect(),
            vec![f32::from_bits(1); len],
            plain(len, 3).iter().map(|x| x * f32::MAX).collect(),
            vec![-f32::MAX; len],
            mixed.collect(),
        ]
    })
}

fn squares(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

fn distance(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}
