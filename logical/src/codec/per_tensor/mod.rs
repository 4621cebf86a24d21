//! Tensors that are encoded individually, each by its own codec: the message of a tensor depends on it alone, not on
//! its neighbours in the bucket.
//!
//! ```text
//! message = part …, one a tensor, in order
//! part    = the codec's message; behind its size as u32, little endian, where that can differ
//! ```

use super::{Codec, CodecError, Noise, Properties, encode};
use hexagram_physical::device::kernels::draw::mix;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use hexagram_physical::{Result, hash};
use std::ops::Range;
use std::sync::Arc;

/// Size in bytes of the length field of a part with variable size.
const SIZE: usize = 4;

/// Codec that encodes each tensor of a bucket individually.
///
/// ```
/// use hexagram_logical::codec::{Codec, Exact, Keep, PerTensor, TopK};
/// use std::sync::Arc;
///
/// // Of a matrix of 200 elements 2 are sent, and a vector of 20 as it is.
/// let largest = Arc::new(TopK::new(Keep::Ratio(0.01))?);
/// let codec = PerTensor::new([(200, largest.clone() as Arc<dyn Codec>), (20, Arc::new(Exact))]);
/// assert_eq!(codec.encoded_len(220), largest.encoded_len(200) + 80);
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PerTensor {
    parts: Arc<[TensorPart]>,
}

/// Elements of a tensor, and their codec.
#[derive(Debug)]
struct TensorPart {
    elements: Range<usize>,
    codec: Arc<dyn Codec>,
}

impl TensorPart {
    /// Returns the size of the header before the message of the codec, in bytes.
    fn header(&self) -> usize {
        if self.codec.has_fixed_size() { 0 } else { SIZE }
    }

    /// Writes the part of a message, and returns its size in bytes.
    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let (header, message) = to.split_at_mut(self.header());
        let bytes = encode(&*self.codec, &from[self.elements.clone()], message, seed);
        let bytes = bytes.map_err(|error| error.counted_from(self.elements.start))?;
        if !header.is_empty() {
            header.copy_from_slice(&(bytes as u32).to_le_bytes());
        }
        Ok(header.len() + bytes)
    }

    /// Returns the message of the codec, and the bytes after this part.
    fn split<'a>(&self, from: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), CodecError> {
        let cut = || CodecError::damaged("it ends within a tensor");
        if self.codec.has_fixed_size() {
            return from.split_at_checked(self.codec.encoded_len(self.elements.len())).ok_or_else(cut);
        }
        let (size, rest) = from.split_first_chunk::<SIZE>().ok_or_else(cut)?;
        rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or_else(cut)
    }
}

impl PerTensor {
    /// Creates the codec of a bucket of consecutive tensors with these lengths and codecs.
    pub fn new(tensors: impl IntoIterator<Item = (usize, Arc<dyn Codec>)>) -> Self {
        let mut end = 0;
        let part = |(len, codec)| {
            let start = end;
            end += len;
            TensorPart { elements: start..end, codec }
        };
        PerTensor { parts: tensors.into_iter().map(part).collect() }
    }

    /// Returns the number of elements of all tensors.
    fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.elements.end)
    }

    /// Decodes the message of every tensor.
    fn each_message(
        &self,
        from: &[u8],
        to: &mut [f32],
        decode: impl Fn(&dyn Codec, &[u8], &mut [f32]) -> Result<(), CodecError>,
    ) -> Result<(), CodecError> {
        self.expect(to.len())?;
        let mut rest = from;
        for part in &*self.parts {
            let (message, behind) = part.split(rest)?;
            decode(&*part.codec, message, &mut to[part.elements.clone()])?;
            rest = behind;
        }
        match rest.len() {
            0 => Ok(()),
            more => Err(CodecError::damaged(format!("{more} bytes behind the last tensor"))),
        }
    }

    /// Returns a device program for all tensors in sequence, if each has one: `program` gets the index of a tensor,
    /// the tensor, and the start of its message, in bytes.
    #[cfg(feature = "cuda")]
    fn each_program(
        &self,
        len: usize,
        program: impl Fn(usize, &TensorPart, usize) -> Option<Program>,
    ) -> Option<Program> {
        if len != self.len() || !self.has_fixed_size() {
            return None;
        }
        let mut message = 0;
        let parts = self.parts.iter().enumerate().map(|(number, part)| {
            let program = program(number, part, message);
            message += part.codec.encoded_len(part.elements.len());
            program
        });
        let mut programs = parts.collect::<Option<Vec<_>>>()?.into_iter();
        let mut first = programs.next()?;
        first.then.extend(programs);
        Some(first)
    }

    fn expect(&self, len: usize) -> Result<(), CodecError> {
        if len == self.len() {
            return Ok(());
        }
        Err(CodecError::damaged(format!("{len} numbers, where its tensors have {}", self.len())))
    }
}

impl Codec for PerTensor {
    fn name(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        let mut cut = 0;
        for part in &*self.parts {
            let name = part.codec.name();
            let known = names.iter().position(|known| *known == name);
            let number = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            cut = hash::step(hash::step(cut, part.elements.end as u64), number as u64);
        }
        format!("per tensor({} in {} tensors, cut as {cut:x})", names.join(" and "), self.parts.len())
    }

    fn check_options(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.codec.check_options())
    }

    fn properties(&self) -> Properties {
        let all = || self.parts.iter().map(|part| part.codec.properties());
        let least = |least: f64, properties: Properties| Some(least.min(properties.contraction?));
        let absolute = all().all(|properties| properties.noise == Noise::Absolute);
        Properties {
            unbiased: all().all(|properties| properties.unbiased),
            contraction: all().try_fold(1.0, least),
            linear: all().all(|properties| properties.linear),
            noise: if absolute { Noise::Absolute } else { Noise::Relative },
        }
    }

    fn encoded_len(&self, len: usize) -> usize {
        let within = |part: &TensorPart| part.elements.end.min(len).saturating_sub(part.elements.start);
        let bytes = |part: &TensorPart| part.header().saturating_add(part.codec.encoded_len(within(part)));
        self.parts.iter().map(bytes).fold(0, usize::saturating_add)
    }

    fn has_fixed_size(&self) -> bool {
        self.parts.iter().all(|part| part.codec.has_fixed_size())
    }

    fn is_sparse(&self) -> bool {
        self.parts.iter().any(|part| part.codec.is_sparse())
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(self.clone()))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        self.expect(from.len())?;
        let mut end = 0;
        for (number, part) in self.parts.iter().enumerate() {
            end += part.encode(from, &mut to[end..], mix(seed ^ number as u64))?;
        }
        Ok(end)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        self.each_message(from, to, |codec, message, to| codec.decode_add(message, weight, to))
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        self.each_message(from, to, |codec, message, to| codec.decode(message, to))
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        self.each_program(len, |number, part, message| {
            let program = part.codec.encode_program(part.elements.len(), mix(seed ^ number as u64))?;
            let first = part.elements.start;
            Some(program.starting_at(&[4 * first, message], first as u64))
        })
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        self.each_program(len, |_, part, message| {
            let program = part.codec.decode_program(part.elements.len(), weight)?;
            Some(program.starting_at(&[message, 4 * part.elements.start], part.elements.start as u64))
        })
    }
}
