//! The codec trait: how a run of numbers becomes fewer bytes, and bytes numbers again.
//!
//! A codec works on plain slices and knows nothing of ranks; primitives decide what is encoded when, and a
//! [`Queue`](crate::Queue) runs it where the numbers are. Whatever a codec decodes must depend on the message alone,
//! bit for bit: replicas stay identical because everyone decodes the same messages in the same order.

use crate::Result;
use crate::device::program::Program;
use std::fmt;
use std::sync::Arc;

/// Encodes runs of f32. What it decodes depends on the message alone, bit for bit: replicas stay identical thereby.
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
    /// Returns the name with all parameters that change its messages, as users type it: `qsgd(levels=15)`. Ranks
    /// whose names differ refuse to work together.
    fn name(&self) -> String;

    /// Checks the options, before an algorithm with this codec starts. The default has none; one whose options can be
    /// typed says what their ranges are.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) that names option, value and range of the first that is out of its range.
    fn check_options(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the properties that a primitive or a proof may rely on.
    fn properties(&self) -> Properties;

    /// Returns the size of the largest message that `len` elements can become, in bytes. Monotonic in `len`.
    fn encoded_len(&self, len: usize) -> usize;

    /// Returns true if every message is as long as the largest, so that its size is known before it is encoded: then a
    /// device need not be waited for.
    fn has_fixed_size(&self) -> bool {
        false
    }

    /// Returns true if most of what it decodes is 0: then every rank's message is sent to all others, because a sum of
    /// several has too few zeros to be encoded again.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Returns a copy of the codec for work that outlives the call, on a device that encodes late; `None`, as here,
    /// lets the host encode and decode, which waits for the device.
    fn shared(&self) -> Option<Arc<dyn Codec>> {
        None
    }

    /// Writes the message for `from` to the beginning of `to`, which holds [`Codec::encoded_len`] bytes at least, and
    /// returns its size in bytes. Equal input and seed make an equal message; codecs that do not draw ignore the seed.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] where the codec refuses NaN or infinity.
    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError>;

    /// Adds a decoded message: `to ← to + weight × decode(from)`. `from` is exactly one message, at any alignment, and
    /// may come from a faulty peer; `to` has as many elements as were encoded.
    ///
    /// # Errors
    /// [`CodecError::Damaged`] if `from` is no message for so many elements; `to` may have changed.
    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError>;

    /// Decodes a message: `to ← decode(from)`.
    ///
    /// # Errors
    /// As [`Codec::decode_add`].
    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        to.fill(0.0);
        self.decode_add(from, 1.0, to)
    }

    /// Returns what a device runs in place of [`Codec::encode`] for `len` elements, to the same bits: operand 0 is
    /// what is encoded, operand 1 the message. `None`, as here, lets the host encode, as does a codec without a [fixed
    /// size](Codec::has_fixed_size).
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        let _ = (len, seed);
        None
    }

    /// Returns what a device runs in place of [`Codec::decode_add`] for `len` elements, or of [`Codec::decode`]
    /// without a weight, to the same bits: operand 0 is the message, which has the codec's [size](Codec::encoded_len),
    /// operand 1 what is decoded into. `None`, as here, lets the host decode.
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
    /// The δ for which E‖C(x) − x‖² ≤ (1 − δ)‖x‖², if there is one above 0. It may depend on the length; then this is
    /// that of the longest run that it is declared for, or `None`.
    pub contraction: Option<f64>,
    /// True if C(x) + C(y) = C(x + y) for equal seeds, up to rounding.
    pub linear: bool,
    /// Quantity that its error is in proportion to.
    pub noise: Noise,
}

/// Quantity that the error of a codec is in proportion to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    /// ‖x‖, or the range of x.
    Relative,
    /// Nothing: a bound holds whatever x is.
    Absolute,
}

/// Treatment of NaN and infinity by a built-in codec. Never does finite garbage come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NotFinite {
    /// Encoding fails, and names the element.
    #[default]
    Refuse,
    /// They decode to NaN, or to what they were; so may the numbers that share a scale with them.
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
    /// An element is NaN or infinite, or would be in the message, and the codec refuses such.
    NotFinite {
        /// Index of the element in the run.
        index: usize,
        /// Value of the element.
        value: f32,
    },
    /// A message is none of this codec.
    Damaged {
        /// Description of what is wrong with it.
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

/// Encodes as [`Codec::encode`] does, by a codec that may be a user's: what comes of it fits into `to`.
///
/// # Errors
/// As [`Codec::encode`]; [`CodecError::Damaged`] for a message of more bytes than [`Codec::encoded_len`] says.
pub fn encode(codec: &dyn Codec, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
    let largest = codec.encoded_len(from.len());
    match codec.encode(from, to, seed)? {
        bytes if bytes <= largest => Ok(bytes),
        bytes => {
            Err(CodecError::damaged(format!("{bytes} bytes, where its encoded_len says {largest} at most")))
        }
    }
}

impl CodecError {
    /// Creates the error of a message that is none of this codec.
    pub fn damaged(what: impl Into<String>) -> Self {
        CodecError::Damaged { what: what.into() }
    }

    /// Returns the error with its element counted from `start` elements before.
    #[must_use]
    pub fn counted_from(self, start: usize) -> Self {
        match self {
            CodecError::NotFinite { index, value } => CodecError::NotFinite { index: start + index, value },
            damaged => damaged,
        }
    }
}
