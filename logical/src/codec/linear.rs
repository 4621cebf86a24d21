//! Codecs whose messages are reduced while they are encoded. Open this to all-reduce with one, or to write one.
//!
//! Where C(x) + C(y) = C(x + y), ranks need not decode each other's messages: messages are runs of f32 themselves, an
//! ordinary all-reduce sums or averages them, and whoever decodes the result has the sum or the mean. Some need several
//! rounds, because what is sent next follows from what the ranks have in common by then:
//!
//! ```text
//! for number in 0..codec.rounds():
//!     message ← codec.encode(round(number, x, reduced, seed), memory)
//!     reduced ← all-reduce of message                   (codec.message_len(number, len) elements)
//! x ← codec.decode(reduced, memory, seed)
//! ```
//!
//! Everyone uses the same seed. The memory is the codec's on one rank, for one bucket: zeroed before the first
//! operation, kept until the next, saved with a checkpoint; every rank's is the same, bit for bit, because it follows
//! from reduced messages and the seed only.

use super::CodecError;
use hexagram_physical::Result;
use std::fmt;

/// Codec that encodes runs of f32 as runs of f32 that add up.
pub trait LinearCodec: Send + Sync + fmt::Debug {
    /// Returns its name with all parameters that change its messages. Ranks whose names differ refuse to work
    /// together.
    fn name(&self) -> String;

    /// Fails unless it can encode runs of `len` elements.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] otherwise.
    fn fits(&self, len: usize) -> Result<()> {
        let _ = len;
        Ok(())
    }

    /// Returns the number of reductions in one operation, at least 1.
    fn rounds(&self) -> usize {
        1
    }

    /// Returns the number of elements that a rank contributes to the reduction of a round, for `len` elements to
    /// encode.
    fn message_len(&self, round: usize, len: usize) -> usize;

    /// Returns the number of elements of memory for runs of `len`.
    fn memory_len(&self, len: usize) -> usize {
        let _ = len;
        0
    }

    /// Writes what this rank contributes to a round's reduction: `to` has [`LinearCodec::message_len`] elements.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] where the codec refuses NaN or infinity; [`CodecError::Damaged`] if a slice has the
    /// wrong length.
    fn encode(&self, round: Round<'_>, memory: &mut [f32], to: &mut [f32]) -> Result<(), CodecError>;

    /// Decodes the reduced messages: `to ← decode(reduced)`, where `reduced` is what the last round's reduction has
    /// made of the messages: their sum or their mean, and so is what comes out. With error feedback it is called before
    /// that with this rank's own message and a copy of the memory, for what the message leaves unsent. `seed` is that
    /// of the rounds.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if a slice has the wrong length.
    fn decode(
        &self,
        reduced: &[f32],
        memory: &mut [f32],
        to: &mut [f32],
        seed: u64,
    ) -> Result<(), CodecError>;
}

/// Input of one round of encoding.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// Number of the round, counted from 0.
    pub number: usize,
    /// Numbers to encode; the same in all rounds.
    pub from: &'a [f32],
    /// Result of the reduction of the round before; empty in the first.
    pub reduced: &'a [f32],
    /// Seed, equal on all ranks and in all rounds of one operation, and different in the next.
    pub seed: u64,
}
