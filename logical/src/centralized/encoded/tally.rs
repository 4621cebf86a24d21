//! Votes of a host, counted before they leave it: for each element, the number of its ranks that vote for −.
//!
//! `message = w bit planes of ⌈d/8⌉ bytes`; bit i of plane p is bit p of the number of element i, and w = ⌊log₂ k⌋ + 1
//! planes hold any number up to k, the ranks of the largest host.

#[cfg(feature = "cuda")]
use super::ballot::MODULE;
use hexagram_physical::codec::{Codec, CodecError, Noise, Properties};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::{Argument, Launch, Program};
use std::sync::Arc;

/// Codec of sums of signs, which are whole numbers from −`voters` to `voters`. It encodes them exactly. A vote counts
/// the bit planes, and never decodes them.
#[derive(Debug, Clone)]
pub(super) struct SignSumCodec {
    /// Number of signs in a sum: the ranks of this host.
    voters: usize,
    /// Bit planes of a message, equal on all hosts.
    width: usize,
}

impl SignSumCodec {
    /// Creates the codec for a host with `voters` ranks, where no host has more than `most`.
    pub(super) fn of(voters: usize, most: usize) -> Self {
        SignSumCodec { voters, width: most.max(1).ilog2() as usize + 1 }
    }

    /// Returns the number of bit planes.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    fn sums<'a>(&self, message: &'a [u8], len: usize) -> Result<impl Iterator<Item = f32> + 'a, CodecError> {
        let bytes = len.div_ceil(8);
        if message.len() != self.encoded_len(len) {
            return Err(CodecError::damaged(format!("{} bytes for {len} sums of signs", message.len())));
        }
        let SignSumCodec { voters, width } = *self;
        let bit = move |plane: usize, at: usize| u32::from(message[plane * bytes + at / 8] >> (at % 8) & 1);
        let number = move |at| (0..width).map(|plane| bit(plane, at) << plane).sum::<u32>();
        Ok((0..len).map(move |at| voters as f32 - 2.0 * number(at) as f32))
    }
}

impl Codec for SignSumCodec {
    /// The name contains the number of planes, since hosts may have different numbers of ranks.
    fn name(&self) -> String {
        format!("tally({})", self.width)
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: Some(1.0), linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len.div_ceil(8).saturating_mul(self.width)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(self.clone()))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let bytes = from.len().div_ceil(8);
        let all = self.encoded_len(from.len());
        let half_of_all = self.voters as f32 / 2.0;
        for (at, run) in from.chunks(8).enumerate() {
            let mut planes = [0u8; usize::BITS as usize];
            for (bit, sum) in run.iter().enumerate() {
                let number = (half_of_all - 0.5 * sum) as u32;
                for (plane, bits) in planes[..self.width].iter_mut().enumerate() {
                    *bits |= ((number >> plane & 1) as u8) << bit;
                }
            }
            for (plane, bits) in planes[..self.width].iter().enumerate() {
                to[plane * bytes + at] = *bits;
            }
        }
        Ok(all)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let sums = self.sums(from, to.len())?;
        to.iter_mut().zip(sums).for_each(|(x, sum)| *x += weight * sum);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        let arguments = vec![
            Argument::Operand(0),
            Argument::U64(len as u64),
            Argument::F32(self.voters as f32 / 2.0),
            Argument::U32(self.width as u32),
            Argument::Operand(1),
        ];
        Some(Program::of(&MODULE, Launch::over("ballot_tally", len, arguments)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::centralized::encoded::ballot::Votes;

    /// Sum of the signs of `voters` ranks, of which a number that depends on `at` is negative.
    fn sum(voters: usize, at: usize) -> f32 {
        voters as f32 - 2.0 * negative(voters, at) as f32
    }

    fn negative(voters: usize, at: usize) -> usize {
        (at * 7 + voters) % (voters + 1)
    }

    fn message(tally: &SignSumCodec, voters: usize, len: usize) -> Vec<u8> {
        let sums: Vec<f32> = (0..len).map(|at| sum(voters, at)).collect();
        let mut message = vec![0xff; tally.encoded_len(len)];
        assert_eq!(tally.encode(&sums, &mut message, 0), Ok(message.len()));
        message
    }

    #[test]
    fn sums_come_back() {
        for (voters, most) in [(1, 1), (1, 8), (3, 3), (7, 8), (8, 8), (100, 128)] {
            for len in [0, 1, 8, 9, 1001] {
                let tally = SignSumCodec::of(voters, most);
                let message = message(&tally, voters, len);
                let mut sums = vec![7.0; len];
                tally.decode(&message, &mut sums).unwrap();
                assert!(sums.iter().enumerate().all(|(at, found)| *found == sum(voters, at)), "{tally:?}");
                let short = tally.decode(&message[..message.len() / 2], &mut sums);
                assert!(short.is_err() || message.is_empty(), "{tally:?}: {short:?}");
            }
        }
    }

    #[test]
    fn most_votes_win_whatever_the_hosts() {
        for hosts in [&[1][..], &[8], &[1, 2, 3], &[8, 8, 8], &[1, 9], &[5, 1, 1], &[200, 17, 3]] {
            let voters = hosts.iter().sum();
            let most = *hosts.iter().max().unwrap();
            let width = SignSumCodec::of(1, most).width();
            for len in [0, 1, 64, 77] {
                let of = |voters: &usize| message(&SignSumCodec::of(*voters, most), *voters, len);
                let messages: Vec<_> = hosts.iter().map(of).collect();
                let mut result = vec![0x55; len.div_ceil(8)];
                let slices: Vec<_> = messages.iter().map(Vec::as_slice).collect();
                Votes { voters, width }.count(&slices, &mut result);
                for at in 0..len {
                    let against: usize = hosts.iter().map(|voters| negative(*voters, at)).sum();
                    assert_eq!(result[at / 8] >> (at % 8) & 1 == 1, 2 * against > voters, "{hosts:?}, {at}");
                }
            }
        }
    }
}
