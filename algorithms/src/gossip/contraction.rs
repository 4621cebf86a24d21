//! Contraction of a codec, measured on typical differences, and the consensus step that it allows.

use hexagram_logical::codec::{Codec, encode};
use hexagram_logical::device::kernels::sums::squares_f32;
use hexagram_logical::encoding::mix;
use hexagram_logical::{Buffer, DType, Error, Result};

/// Maximum number of elements to measure: a block of the blockwise codecs.
const MOST: usize = 2048;

/// Maximum number of rounds.
const ROUNDS: usize = 4000;

/// Fraction of ‖e‖² above which a codec does not count as a contraction.
const HOPELESS: f64 = 0.999;

/// Returns the largest consensus step that is safe, `room` being μ.
///
/// # Errors
/// [`Error::Usage`] for a codec that is not a contraction, or that cannot be measured on few elements.
pub(super) fn safe_step(codec: &dyn Codec, len: usize, room: f64) -> Result<f64> {
    let measured = len.min(MOST);
    if measured == 0 {
        return Ok(1.0);
    }
    let bytes_each = |len: usize| codec.encoded_len(len) as f64 / len as f64;
    if bytes_each(len) < 0.5 * bytes_each(measured) {
        let what = format!("consensus=auto cannot measure {} on a part of a bucket", codec.name());
        return Err(refused(what));
    }
    let left = left_behind(codec, measured)?;
    if left > HOPELESS {
        let what = format!("{} loses {left:.2} of its input, so consensus=auto finds no step", codec.name());
        return Err(refused(what));
    }
    let ratio = left.sqrt();
    Ok(((1.0 - ratio) / (1.0 + ratio) * room).min(1.0))
}

fn refused(what: String) -> Error {
    Error::usage(what, "choose another codec, such as the sign, a share of top-k or more levels, or a number")
}

/// Returns ρ² = Σ ‖e′‖² / Σ ‖e‖² of the second half of the rounds, where e ← e′ + normal numbers, and e′ is the error
/// of a message that encodes e.
fn left_behind(codec: &dyn Codec, len: usize) -> Result<f64> {
    let mut error = vec![0.0f32; len];
    // A length beyond the available memory is an error then.
    let mut message = Buffer::zeroed(DType::U8, codec.encoded_len(len))?;
    let mut shares: Vec<(f64, f64)> = Vec::new();
    loop {
        let round = shares.len() as u64;
        let keys = (0..len as u64).map(|at| mix(round << 32 | at));
        error.iter_mut().zip(keys).for_each(|(error, key)| *error += normal(key));
        let before = squares_f32(&error);
        let mut message = message.host_mut::<u8>()?;
        let encoded = encode(codec, &error, &mut message, round);
        let bytes = encoded.map_err(|error| refused(format!("consensus=auto cannot measure: {error}")))?;
        let decoded = codec.decode_add(&message[..bytes], -1.0, &mut error);
        decoded.map_err(|error| refused(format!("consensus=auto cannot measure: {error}")))?;
        shares.push((squares_f32(&error), before));
        let half = &shares[shares.len() / 2..];
        let left =
            half.iter().map(|share| share.0).sum::<f64>() / half.iter().map(|share| share.1).sum::<f64>();
        // The error settles within some 1 / (1 − ρ²) rounds.
        let settled = shares.len() as f64 > 16.0 + 6.0 / (1.0 - left).max(1e-9);
        if settled || shares.len() >= ROUNDS || left.is_nan() || left > 1e6 {
            return Ok(if left.is_finite() { left } else { f64::MAX });
        }
    }
}

/// Returns an approximately normal number of variance 1: the sum of four uniform numbers.
fn normal(key: u64) -> f32 {
    let sum: u64 = (0..4).map(|place| key >> (16 * place) & 0xffff).sum();
    (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::codec::{CodecError, Exact, Half, Keep, MinMax8, Properties, Qsgd, Sign, TopK};

    #[test]
    fn steps_are_those_of_the_page() {
        let top = |share| TopK::new(Keep::Ratio(share)).unwrap();
        let fine = Qsgd::new(15).unwrap().with_bucket(200).unwrap();
        let codecs: [(&dyn Codec, f64, f64); 6] = [
            (&top(0.01), 0.018, 0.030),
            (&top(0.1), 0.17, 0.24),
            (&Sign::default(), 0.33, 0.41),
            (&fine, 0.6, 0.72),
            (&MinMax8::default(), 1.0, 1.0),
            (&Half::F16, 1.0, 1.0),
        ];
        for (codec, low, high) in codecs {
            let step = safe_step(codec, 100_000, 1.5).unwrap();
            assert!((low..=high).contains(&step), "{}: {step}", codec.name());
        }
    }

    /// Codec of a user whose messages are longer than it declares.
    #[derive(Debug)]
    struct Liar {
        says: usize,
        makes: usize,
    }

    impl Codec for Liar {
        fn name(&self) -> String {
            "liar".to_owned()
        }

        fn properties(&self) -> Properties {
            Exact.properties()
        }

        fn encoded_len(&self, _len: usize) -> usize {
            self.says
        }

        fn encode(&self, _from: &[f32], _to: &mut [u8], _seed: u64) -> Result<usize, CodecError> {
            Ok(self.makes)
        }

        fn decode_add(&self, _from: &[u8], _weight: f32, _to: &mut [f32]) -> Result<(), CodecError> {
            Ok(())
        }
    }

    #[test]
    fn a_codec_whose_messages_cannot_be_as_long_as_it_says_is_refused() {
        let cases = [
            (400, 401, "encoded_len of 400"),
            (400, usize::MAX, "encoded_len of 400"),
            (usize::MAX, 0, "exceed"),
        ];
        for (says, makes, said) in cases {
            let error = safe_step(&Liar { says, makes }, 100, 1.5).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_codec_that_loses_as_much_as_it_says_is_refused() {
        let error = safe_step(&Qsgd::new(1).unwrap(), 5000, 1.5).unwrap_err().to_string();
        assert!(error.contains("qsgd") && error.contains("more levels"), "{error}");
        let few = TopK::new(Keep::Count(3)).unwrap();
        let error = safe_step(&few, 1 << 20, 1.5).unwrap_err().to_string();
        assert!(error.contains("a part of a bucket"), "{error}");
        assert_eq!(safe_step(&few, 3, 1.0).unwrap(), 1.0, "nothing is left out");
    }

    /// Returns the factor by which ‖X − X̄‖² of 16 ranks on a ring shrinks per round, on average over the last
    /// `rounds`.
    fn shrinks_by(codec: &dyn Codec, len: usize, step: f64, rounds: usize) -> f64 {
        let start = |rank: usize| (0..len).map(move |at| normal(mix((rank * len + at) as u64))).collect();
        let mut x: Vec<Vec<f32>> = (0..16).map(start).collect();
        let mut known = vec![vec![0.0f32; len]; 16];
        let mut message = vec![0; codec.encoded_len(len)];
        let apart = |x: &[Vec<f32>]| -> f64 {
            let mean = |at: usize| x.iter().map(|x| f64::from(x[at])).sum::<f64>() / 16.0;
            let of = |at: usize| x.iter().map(|x| (f64::from(x[at]) - mean(at)).powi(2)).sum::<f64>();
            (0..len).map(of).sum()
        };
        let mut early = 0.0;
        for round in 0..2 * rounds {
            if round == rounds {
                early = apart(&x);
            }
            for (rank, (x, known)) in x.iter().zip(&mut known).enumerate() {
                let difference: Vec<f32> = x.iter().zip(&*known).map(|(x, known)| x - known).collect();
                let bytes = codec.encode(&difference, &mut message, (round * 16 + rank) as u64).unwrap();
                codec.decode_add(&message[..bytes], 1.0, known).unwrap();
            }
            for (rank, x) in x.iter_mut().enumerate() {
                let near = [&known[(rank + 15) % 16], &known[(rank + 1) % 16], &known[rank]];
                for (at, x) in x.iter_mut().enumerate() {
                    *x += step as f32 * ((near[0][at] + near[1][at] + near[2][at]) / 3.0 - near[2][at]);
                }
            }
        }
        (apart(&x) / early).powf(1.0 / rounds as f64)
    }

    #[test]
    fn ranks_on_a_ring_agree_with_the_measured_step() {
        let top = |share| TopK::new(Keep::Ratio(share)).unwrap();
        let fine = Qsgd::new(15).unwrap().with_bucket(200).unwrap();
        let codecs: [(&dyn Codec, usize, f64); 4] = [
            (&top(0.1), 80, 0.985),
            (&top(0.01), 250, 0.998),
            (&Sign::default(), 80, 0.98),
            (&fine, 60, 0.945),
        ];
        for (codec, rounds, at_most) in codecs {
            let step = safe_step(codec, 1000, 1.5).unwrap();
            let factor = shrinks_by(codec, 1000, step, rounds);
            assert!(factor < at_most, "{}: {factor} a round with {step}", codec.name());
        }
    }

    #[test]
    fn next_to_nothing_has_a_step_too() {
        for len in [0, 1, 2] {
            let step = safe_step(&Sign::default(), len, 1.5).unwrap();
            assert!(step > 0.0 && step <= 1.0, "{step}");
        }
    }
}
