//! A codec with prescribed losses.

use hexagram_logical::codec::{Codec, CodecError, Noise, Properties};

/// A codec's result for the numbers, which travel unchanged: for oracles, which do not depend on the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lossy {
    Identity,
    /// The tenth that is largest in magnitude.
    TopTenth,
    /// ‖x‖₂ sgn(x) times |x| / ‖x‖₂ rounded to multiples of 1 / levels, up or down at random.
    Qsgd(u32),
    /// x and noise of mean 0 and variance ½, whatever x is.
    Noisy,
    /// Nothing that can be decoded.
    Damaged,
}

/// Uniform in [0, 1).
pub(super) fn draw(seed: u64, at: usize) -> f64 {
    let mut bits = seed ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3 {
        bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

impl Lossy {
    fn apply(self, x: &[f32], seed: u64) -> Vec<f32> {
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        match self {
            Lossy::Identity | Lossy::Damaged => x.to_vec(),
            Lossy::TopTenth => {
                let mut order: Vec<usize> = (0..x.len()).collect();
                order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()));
                let mut kept = vec![0.0; x.len()];
                order[..x.len() / 10].iter().for_each(|at| kept[*at] = x[*at]);
                kept
            }
            Lossy::Qsgd(_) if norm == 0.0 => x.to_vec(),
            Lossy::Qsgd(levels) => {
                let round = |(at, x): (usize, &f32)| {
                    let scaled = f64::from(x.abs() / norm) * f64::from(levels);
                    let up = f64::from(draw(seed, at) < scaled.fract());
                    x.signum() * norm * ((scaled.floor() + up) / f64::from(levels)) as f32
                };
                x.iter().enumerate().map(round).collect()
            }
            Lossy::Noisy => {
                let noise = |at| (draw(seed, at) - 0.5) * 6f64.sqrt();
                x.iter().enumerate().map(|(at, x)| x + noise(at) as f32).collect()
            }
        }
    }
}

impl Codec for Lossy {
    fn name(&self) -> String {
        format!("{self:?}")
    }
    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
    }
    fn encoded_len(&self, len: usize) -> usize {
        4 * len
    }
    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> std::result::Result<usize, CodecError> {
        let bytes = to.chunks_exact_mut(4);
        bytes.zip(self.apply(from, seed)).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        Ok(4 * from.len())
    }
    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> std::result::Result<(), CodecError> {
        if matches!(self, Lossy::Damaged) {
            return Err(CodecError::damaged("it never can"));
        }
        let numbers = from.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        to.iter_mut().zip(numbers).for_each(|(to, x)| *to += weight * x);
        Ok(())
    }
}
