//! The codec trait: encoding of a run of numbers in fewer bytes, and decoding.
//!
//! A codec works on plain slices, without ranks. Primitives decide what to encode and when, and a
//! [`Queue`](crate::Queue) runs the codec on the device of the numbers. The decoded numbers must depend on the
//! message alone, bit for bit: replicas stay identical because all ranks decode the same messages in the same order.

use super::operations::program::Program;
use crate::Result;
use std::fmt;
use std::sync::Arc;

/// Encodes runs of f32. The decoded numbers depend on the message alone, bit for bit, which keeps replicas identical.
///
/// ```
/// use hexagram_physical::codec::{Codec, CodecError, Noise, Properties};
///
/// /// Keeps the sign of every number, one byte each.
/// #[derive(Debug)]
/// struct Signs;
///
/// impl Codec for Signs {
///     fn name(&self) -> String {
///         "signs".to_owned()
///     }
///
///     fn properties(&self) -> Properties {
///         Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
///     }
///
///     fn encoded_len(&self, len: usize) -> usize {
///         len
///     }
///
///     fn encode(&self, from: &[f32], to: &mut [u8], _seed: u64) -> Result<usize, CodecError> {
///         for (index, (x, code)) in from.iter().zip(to).enumerate() {
///             if x.is_nan() {
///                 return Err(CodecError::NotFinite { index, value: *x });
///             }
///             *code = u8::from(*x < 0.0);
///         }
///         Ok(from.len())
///     }
///
///     fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
///         if from.len() != to.len() {
///             return Err(CodecError::damaged("one byte for each number is missing"));
///         }
///         to.iter_mut().zip(from).for_each(|(x, code)| *x += if *code == 0 { weight } else { -weight });
///         Ok(())
///     }
/// }
/// ```
pub trait Codec: Send + Sync + fmt::Debug {
    /// Returns the name with all parameters that change its messages, as users type it: `qsgd(levels=15)`. Ranks with
    /// different names refuse to work together.
    fn name(&self) -> String;

    /// Checks the options, before an algorithm with this codec starts. The default has none; a codec with options
    /// checks their ranges.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) with option, value and range, for the first option out of range.
    fn check_options(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the properties that a primitive or a proof may rely on.
    fn properties(&self) -> Properties;

    /// Returns the size of the largest message for `len` elements, in bytes. Monotonic in `len`.
    fn encoded_len(&self, len: usize) -> usize;

    /// Returns true if every message has the largest size, so that the size is known before encoding, and a device
    /// need not be awaited.
    fn has_fixed_size(&self) -> bool {
        false
    }

    /// Returns true if most decoded numbers are 0. The message of every rank is then sent to all others, because a
    /// sum of several has too few zeros to be encoded again.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Returns a copy of the codec for work that outlives the call, on a device that encodes late. With `None`, the
    /// default, the host encodes and decodes, which waits for the device.
    fn shared(&self) -> Option<Arc<dyn Codec>> {
        None
    }

    /// Writes the message for `from` to the beginning of `to`, which holds at least [`Codec::encoded_len`] bytes, and
    /// returns its size in bytes. Equal input and seed give an equal message; deterministic codecs ignore the seed.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] if the codec refuses NaN or infinity.
    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError>;

    /// Adds a decoded message: `to ← to + weight × decode(from)`. `from` is exactly one message, at any alignment,
    /// and may come from a faulty peer; `to` has the encoded number of elements.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if `from` is not a valid message for this number of elements; `to` may have changed.
    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError>;

    /// Decodes a message: `to ← decode(from)`.
    ///
    /// # Errors
    /// As [`Codec::decode_add`].
    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        to.fill(0.0);
        self.decode_add(from, 1.0, to)
    }

    /// Returns a device program that replaces [`Codec::encode`] for `len` elements, with the same bits: operand 0 is
    /// the input, operand 1 the message. With `None`, the default, the host encodes, as it does for a codec without a
    /// [fixed size](Codec::has_fixed_size).
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        let _ = (len, seed);
        None
    }

    /// Returns a device program that replaces [`Codec::decode_add`] for `len` elements, or [`Codec::decode`] without
    /// a weight, with the same bits: operand 0 is the message, with the [size](Codec::encoded_len) of the codec,
    /// operand 1 the output. With `None`, the default, the host decodes.
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        let _ = (len, weight);
        None
    }
}

/// Properties of a codec C, for all x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Properties {
    /// True if E C(x) = x.
    pub unbiased: bool,
    /// The δ for which E‖C(x) − x‖² ≤ (1 − δ)‖x‖², if there is one above 0. It may depend on the length; then it is
    /// that of the longest declared run, or `None`.
    pub contraction: Option<f64>,
    /// True if C(x) + C(y) = C(x + y) for equal seeds, up to rounding.
    pub linear: bool,
    /// Quantity to which the error is proportional.
    pub noise: Noise,
}

/// Quantity to which the error of a codec is proportional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    /// ‖x‖, or the range of x.
    Relative,
    /// None: the bound is independent of x.
    Absolute,
}

/// Treatment of NaN and infinity by a built-in codec. The output is never arbitrary finite numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NotFinite {
    /// Encoding fails, with the index of the element.
    #[default]
    Refuse,
    /// They decode to NaN or unchanged, and so may the numbers that share a scale with them.
    Propagate,
    /// NaN counts as 0, infinity as the largest finite number of the codec.
    Saturate,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotFinite::Refuse => "refuse",
            NotFinite::Propagate => "propagate",
            NotFinite::Saturate => "saturate",
        })
    }
}

/// Reason why a codec cannot encode or decode.
#[derive(Debug, Clone, PartialEq)]
pub enum CodecError {
    /// An element is NaN or infinite, or would be in the message, and the codec refuses it.
    NotFinite {
        /// Index of the element in the run.
        index: usize,
        /// Value of the element.
        value: f32,
    },
    /// A message is malformed.
    Damaged {
        /// Description of the error.
        what: String,
    },
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::NotFinite { index, value } => write!(f, "element {index} is {value}"),
            CodecError::Damaged { what } => write!(f, "the message cannot be decoded: {what}"),
        }
    }
}

impl std::error::Error for CodecError {}

/// Encodes like [`Codec::encode`], with a codec that may be user code: checks that the message fits `to`.
///
/// # Errors
/// As [`Codec::encode`]; [`CodecError::Damaged`] for a message of more bytes than [`Codec::encoded_len`].
pub fn encode(codec: &dyn Codec, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
    let largest = codec.encoded_len(from.len());
    match codec.encode(from, to, seed)? {
        bytes if bytes <= largest => Ok(bytes),
        bytes => Err(CodecError::damaged(format!("{bytes} bytes, more than its encoded_len of {largest}"))),
    }
}

impl CodecError {
    /// Creates the error for a malformed message.
    pub fn damaged(what: impl Into<String>) -> Self {
        CodecError::Damaged { what: what.into() }
    }

    /// Returns the error with `start` added to its index.
    #[must_use]
    pub fn counted_from(self, start: usize) -> Self {
        match self {
            CodecError::NotFinite { index, value } => CodecError::NotFinite { index: start + index, value },
            damaged => damaged,
        }
    }
}
