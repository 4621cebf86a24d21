//! Signs as votes: one bit per element, packed, and counted 64 elements at a time.
//!
//! `message = bit × d`, the first in the lowest bit of the first byte; 1 is a negative number.

use crate::Result;
use crate::codec::sign::simd;
use hexagram_physical::codec::{Codec, CodecError, Noise, Properties};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::{Argument, Code, Launch, Module, Program};
use hexagram_physical::device::{Kernel, Operands};
use std::sync::Arc;

/// Kernels of votes, for a GPU. Prepare them before the first vote, which other ranks wait for.
#[cfg(feature = "cuda")]
pub static MODULE: Module = Module { name: "ballot", code: Code::Packed(hexagram_ptx::BALLOT) };

/// Number of elements packed at a time.
const PIECE: usize = 2048;

/// Codec that keeps signs only. Both zeros are positive, and NaN is refused.
#[derive(Debug)]
pub(super) struct Ballot;

impl Codec for Ballot {
    fn name(&self) -> String {
        "ballot".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len.div_ceil(8)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(Ballot))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let bytes = self.encoded_len(from.len());
        let pieces = from.chunks(PIECE).zip(to[..bytes].chunks_mut(PIECE / 8));
        // An overflowing sum is not NaN.
        if pieces.fold(false, |nan, (x, bits)| nan | simd::pack_signs(x, bits).is_nan())
            && let Some(index) = from.iter().position(|x| x.is_nan())
        {
            return Err(CodecError::NotFinite { index, value: from[index] });
        }
        Ok(bytes)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        self.check(from, to.len())?;
        simd::add_signs(from, weight, to);
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        self.check(from, to.len())?;
        simd::unpack_signs(from, 1.0, to);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        let arguments =
            vec![Argument::Operand(0), Argument::U64(len as u64), Argument::Refusing, Argument::Operand(1)];
        Some(Program::of(&MODULE, Launch::over("ballot_encode", len, arguments)))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        // Votes are not added up.
        weight.is_none().then(|| {
            let arguments = vec![Argument::Operand(0), Argument::U64(len as u64), Argument::Operand(1)];
            Program::of(&MODULE, Launch::over("ballot_decode", len, arguments))
        })
    }
}

impl Ballot {
    /// Fails unless a message is of `len` elements.
    fn check(&self, message: &[u8], len: usize) -> Result<(), CodecError> {
        if message.len() == self.encoded_len(len) {
            return Ok(());
        }
        Err(CodecError::damaged(format!("{} bytes for {len} signs", message.len())))
    }
}

/// Number of bit planes, enough for 2³² voters.
const PLANES: usize = 32;

/// Votes that are counted together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Votes {
    /// Number of all voters.
    pub(super) voters: usize,
    /// Bit planes of a message: one of ballots, more of a [`SignSumCodec`](super::tally::SignSumCodec).
    pub(super) width: usize,
}

impl Votes {
    /// Returns the number of bit planes that counts have.
    fn planes(&self) -> usize {
        (self.voters / 2 + 1).next_power_of_two().ilog2() as usize
    }

    /// Returns the initial value of the counts, chosen so that they overflow at the first vote beyond half of all.
    fn begin(&self) -> usize {
        (1 << self.planes()) - (self.voters / 2 + 1)
    }

    /// Writes the majority bits of messages of `width` planes, each as long as `result`; a tie is 0.
    ///
    /// Counts are bit planes: bit i of plane p is bit p of the count of element i.
    pub(super) fn count(&self, messages: &[&[u8]], result: &mut [u8]) {
        let planes = self.planes();
        let begin = self.begin();
        let len = result.len();
        for start in (0..len).step_by(8) {
            let mut counts = [0u64; PLANES];
            for (plane, count) in counts[..planes].iter_mut().enumerate() {
                *count = if begin >> plane & 1 == 1 { u64::MAX } else { 0 };
            }
            let mut over = 0;
            for message in messages {
                for plane in 0..self.width {
                    let mut carry = word(&message[plane * len + start..(plane + 1) * len]);
                    for count in &mut counts[plane.min(planes)..planes] {
                        let both = *count & carry;
                        *count ^= carry;
                        carry = both;
                    }
                    over |= carry;
                }
            }
            let run = &mut result[start..];
            let bytes = run.len().min(8);
            run[..bytes].copy_from_slice(&over.to_le_bytes()[..bytes]);
        }
    }
}

/// Count of the votes of some messages, each a run of bytes, into the bits of the result.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a program has to know sizes beforehand"))]
pub(super) struct Count {
    pub(super) votes: Votes,
    pub(super) messages: usize,
    /// Bytes of the result.
    pub(super) bytes: usize,
}

impl Kernel for Count {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let messages: Vec<&[u8]> = operands.reads.into_iter().map(|(_, message)| message).collect();
        operands.writes.into_iter().for_each(|(_, result)| self.votes.count(&messages, result));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let Count { votes, messages, bytes } = *self;
        let planes = votes.planes();
        let launch = |message: usize| {
            let arguments = vec![
                Argument::Operand(message),
                Argument::U64(bytes as u64),
                Argument::U32(votes.width as u32),
                Argument::U32(planes as u32),
                Argument::U64(votes.begin() as u64),
                Argument::U32(u32::from(message == 0)),
                Argument::Scratch(0),
                Argument::Operand(messages),
            ];
            Launch::over("ballot_count", bytes, arguments)
        };
        Some(Program::in_turn(&MODULE, (0..messages).map(launch).collect(), planes * bytes))
    }
}

/// Returns up to eight bytes as a word, the missing ones 0.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let here = bytes.len().min(8);
    word[..here].copy_from_slice(&bytes[..here]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_votes_win_for_any_number_of_voters() {
        for voters in 1..=33usize {
            for bytes in [0, 1, 7, 8, 9, 24] {
                let ballot =
                    |voter: usize| (0..bytes).map(move |at| (voter * 37 + at * 101 + at * voter * 7) as u8);
                let ballots: Vec<Vec<u8>> = (0..voters).map(|voter| ballot(voter).collect()).collect();
                let mut result = vec![0x55; bytes];
                let votes = Votes { voters, width: 1 };
                votes.count(&ballots.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut result);
                for (at, result) in result.iter().enumerate() {
                    for bit in 0..8 {
                        let ones = ballots.iter().filter(|ballot| ballot[at] >> bit & 1 == 1).count();
                        assert_eq!(result >> bit & 1 == 1, 2 * ones > voters, "{ones} of {voters}");
                    }
                }
            }
        }
    }

    #[test]
    fn signs_come_back_and_zeros_are_positive() {
        let x = [-1.0, 0.0, -0.0, 3.0, f32::NEG_INFINITY, f32::INFINITY, -1e-45, 1e-45, -7.0];
        let mut message = [0xff; 2];
        assert_eq!(Ballot.encode(&x, &mut message, 0), Ok(2));
        let mut signs = [9.0; 9];
        Ballot.decode(&message, &mut signs).unwrap();
        assert_eq!(signs, [-1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
        let refused = Ballot.encode(&[1.0, f32::NAN], &mut message, 0);
        assert!(matches!(refused, Err(CodecError::NotFinite { index: 1, .. })), "{refused:?}");
        assert!(matches!(Ballot.decode(&message, &mut [0.0; 17]), Err(CodecError::Damaged { .. })));
    }
}
