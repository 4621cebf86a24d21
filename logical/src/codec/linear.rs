//! Codecs whose messages are reduced while they are encoded.
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

use super::{Codec, CodecError, Noise, Properties};
use bytemuck::{cast_slice, try_cast_slice, try_cast_slice_mut};
use hexagram_physical::Result;
use hexagram_physical::device::program::Program;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

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

    /// Writes what this rank contributes to a round's reduction: all of `to`, which has [`LinearCodec::message_len`]
    /// elements, and holds anything before.
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

    /// Returns what a device runs in place of [`LinearCodec::encode`] for `len` elements, to the same bits: operand 0
    /// is what is encoded, operand 1 the message. `None`, as here, lets the host encode. Asked only of a codec of one
    /// round that has no memory.
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        let _ = (len, seed);
        None
    }

    /// Returns what a device runs in place of [`LinearCodec::decode`] for `len` elements, to the same bits: operand 0
    /// is the reduced message, operand 1 what is decoded into. `None`, as here, lets the host decode. Asked only of a
    /// codec of one round that has no memory.
    fn decode_program(&self, len: usize, seed: u64) -> Option<Program> {
        let _ = (len, seed);
        None
    }
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

/// Linear codec of one round that has no memory, in the form of a [`Codec`], which devices can run. Its messages are f32 in
/// the byte order of the machine, and all of them are of one operation, whose seed it has. It is for
/// [`WriteView::encode`](crate::WriteView::encode) and [`Queue::prepare_codec`](crate::Queue::prepare_codec), not for an
/// [`Encoding`](crate::encoding::Encoding), which draws other seeds.
#[derive(Debug, Clone)]
pub struct OneRound {
    codec: Arc<dyn LinearCodec>,
    seed: u64,
}

impl OneRound {
    /// Returns the form of a codec for runs of `len` elements and the operation with this seed; `None` if the codec has
    /// several rounds, or a memory.
    pub fn of(codec: &Arc<dyn LinearCodec>, len: usize, seed: u64) -> Option<Self> {
        let has_one = codec.rounds() == 1 && codec.memory_len(len) == 0;
        has_one.then(|| OneRound { codec: Arc::clone(codec), seed })
    }
}

impl Codec for OneRound {
    fn name(&self) -> String {
        self.codec.name()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: true, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        size_of::<f32>() * self.codec.message_len(0, len)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(self.clone()))
    }

    /// Encodes with the seed of the operation, whatever it is told.
    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let bytes = self.encoded_len(from.len());
        let round = Round { number: 0, from, reduced: &[], seed: self.seed };
        let to = &mut to[..bytes];
        if let Ok(message) = try_cast_slice_mut(to) {
            self.codec.encode(round, &mut [], message)?;
        } else {
            let mut message = vec![0.0f32; bytes / size_of::<f32>()];
            self.codec.encode(round, &mut [], &mut message)?;
            to.copy_from_slice(cast_slice(&message));
        }
        Ok(bytes)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let mut decoded = vec![0.0; to.len()];
        self.decode(from, &mut decoded)?;
        to.iter_mut().zip(decoded).for_each(|(to, x)| *to += weight * x);
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        let want = self.encoded_len(to.len());
        if from.len() != want {
            return Err(CodecError::damaged(format!("{} bytes, not {want}", from.len())));
        }
        let unaligned = || from.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        let reduced = try_cast_slice(from).map_or_else(|_| Cow::Owned(unaligned()), Cow::Borrowed);
        self.codec.decode(&reduced, &mut [], to, self.seed)
    }

    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        self.codec.encode_program(len, self.seed)
    }

    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        if weight.is_none() { self.codec.decode_program(len, self.seed) } else { None }
    }
}
