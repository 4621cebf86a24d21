//! Codecs whose messages are reduced without decoding.
//!
//! If C(x) + C(y) = C(x + y), ranks need not decode the messages of others. Messages are runs of f32 themselves; an
//! ordinary all-reduce sums or averages them, and decoding the result gives the sum or the mean. Some codecs need
//! several rounds, because the next message depends on the common result of the previous round:
//!
//! ```text
//! for number in 0..codec.rounds():
//!     message ← codec.encode(round(number, x, reduced, seed), memory)
//!     reduced ← all-reduce of message                   (codec.message_len(number, len) elements)
//! x ← codec.decode(reduced, memory, seed)
//! ```
//!
//! All ranks use the same seed. The memory belongs to the codec on one rank, for one bucket: zeroed before the first
//! operation, kept between operations, and saved with a checkpoint. It is the same on every rank, bit for bit,
//! because it depends on reduced messages and the seed only.

use crate::codec::{Codec, CodecError, Noise, Properties};
use bytemuck::{cast_slice, try_cast_slice, try_cast_slice_mut};
use hexagram_physical::Result;
use hexagram_physical::device::program::Program;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Codec that encodes runs of f32 as runs of f32 that can be added.
pub trait LinearCodec: Send + Sync + fmt::Debug {
    /// Returns the name with all parameters that change messages. Ranks with different names refuse to work together.
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

    /// Returns the number of elements that a rank contributes to a round, for `len` elements to encode.
    fn message_len(&self, round: usize, len: usize) -> usize;

    /// Returns the number of elements of memory for runs of `len`.
    fn memory_len(&self, len: usize) -> usize {
        let _ = len;
        0
    }

    /// Writes the contribution of this rank to a round: all of `to`, which has [`LinearCodec::message_len`] elements
    /// with arbitrary content.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] if the codec refuses NaN or infinity; [`CodecError::Damaged`] if a slice has the
    /// wrong length.
    fn encode(&self, round: Round<'_>, memory: &mut [f32], to: &mut [f32]) -> Result<(), CodecError>;

    /// Decodes the reduced messages: `to ← decode(reduced)`, where `reduced` is the sum or mean of the messages of
    /// the last round, and `to` gets the same of the inputs. With error feedback it is first called with this rank's
    /// own message and a copy of the memory, to compute the unsent rest. `seed` is that of the rounds.
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

    /// Returns a device program that replaces [`LinearCodec::encode`] for `len` elements, with the same bits: operand
    /// 0 is the input, operand 1 the message. With `None`, the default, the host encodes. Called only for a codec
    /// with one round and no memory.
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        let _ = (len, seed);
        None
    }

    /// Returns a device program that replaces [`LinearCodec::decode`] for `len` elements, with the same bits: operand
    /// 0 is the reduced message, operand 1 the output. With `None`, the default, the host decodes. Called only for a
    /// codec with one round and no memory.
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
    /// Result of the reduction of the previous round; empty in the first.
    pub reduced: &'a [f32],
    /// Seed, equal on all ranks and in all rounds of one operation, and different in the next operation.
    pub seed: u64,
}

/// A linear codec with one round and no memory, as a [`Codec`] that devices can run. Its messages are f32 in the byte
/// order of the machine, and belong to one operation, whose seed it has. Use it with
/// [`WriteView::encode`](crate::WriteView::encode) and [`Queue::prepare_codec`](crate::Queue::prepare_codec), not
/// with an [`Encoding`](crate::encoding::Encoding), which draws other seeds.
#[derive(Debug, Clone)]
pub struct OneRound {
    codec: Arc<dyn LinearCodec>,
    seed: u64,
}

impl OneRound {
    /// Creates this form of a codec for runs of `len` elements and the operation with this seed; `None` if the codec
    /// has several rounds, or a memory.
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

    /// Encodes with the seed of the operation, and ignores the given seed.
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
