//! The formulas of the encoded primitives, in one place and without communication.

use crate::centralized::encoded::Segments;
use crate::encoding::{Encoding, Feedback};
use crate::{Error, ReduceOp, Result};
use hexagram_physical::codec::{Codec, CodecError};
use std::ops::Range;
use std::sync::Arc;

/// Simulation of all ranks in successive encoded all-reduces of one bucket.
pub struct Reference {
    codec: Arc<dyn Codec>,
    feedback: Feedback,
    /// Encoding with the draws of the ranks.
    encoding: Encoding,
    len: usize,
    weight: f32,
    /// Memory of each rank for its messages: e, or h.
    pub workers: Vec<Vec<f32>>,
    /// Memory of the owners of all chunks: s, or m.
    pub owners: Vec<f32>,
    /// Results that every rank has decoded.
    decoded: Vec<f32>,
}

impl Reference {
    /// Creates `ranks` ranks with such an encoding, for buffers of `len` elements. The number of their first
    /// operation is that of `encoding`.
    pub fn new(encoding: &Encoding, ranks: usize, len: usize, op: ReduceOp) -> Self {
        let codec = encoding.codec().clone();
        let feedback = encoding.feedback();
        let mut own = Encoding::new(codec.clone()).with_feedback(feedback).with_seed(encoding.seed());
        own.state_mut().restore(encoding.state().operations(), []);
        let weight = if op == ReduceOp::Mean { 1.0 / ranks as f32 } else { 1.0 };
        let remembered = if feedback == Feedback::None { 0 } else { len };
        let workers = vec![vec![0.0; remembered]; ranks];
        let owners = vec![0.0; remembered];
        let decoded = vec![0.0; remembered];
        Reference { codec, feedback, encoding: own, len, weight, workers, owners, decoded }
    }

    /// Returns the result of `all_reduce_encoded`; `contribution` returns a range of the buffer of each rank.
    ///
    /// # Errors
    /// The codec error, as [`Error::Usage`].
    pub fn all_reduce_encoded(
        &mut self,
        contribution: impl Fn(usize, Range<usize>) -> Vec<f32>,
    ) -> Result<Vec<f32>> {
        let mut result = vec![0.0; self.len];
        let segments = Segments::of(self.len, self.workers.len());
        for (owner, index) in (0..self.workers.len()).flat_map(|o| (0..segments.count()).map(move |i| (o, i)))
        {
            let range = segments.range(owner, index);
            if !range.is_empty() {
                let settled = self.segment((owner, index), range.clone(), &contribution).map_err(mistake)?;
                result[range].copy_from_slice(&settled);
            }
        }
        self.encoding.state_mut().advance();
        Ok(result)
    }

    /// Returns the result of `all_reduce_sparse`; `contribution` returns the buffer of each rank.
    ///
    /// # Errors
    /// As [`Reference::all_reduce_encoded`].
    pub fn all_reduce_sparse(&mut self, contribution: impl Fn(usize) -> Vec<f32>) -> Result<Vec<f32>> {
        let all = 0..self.len;
        let mut sum =
            if self.feedback == Feedback::Difference { self.owners.clone() } else { vec![0.0; self.len] };
        for rank in 0..self.workers.len() {
            let seed = self.encoding.draw(&[rank as u64]);
            let message = self.message(rank, all.clone(), contribution(rank), seed).map_err(mistake)?;
            self.codec.decode_add(&message, self.weight, &mut sum).map_err(mistake)?;
        }
        if self.feedback == Feedback::Difference {
            self.owners.copy_from_slice(&sum);
        }
        self.encoding.state_mut().advance();
        Ok(sum)
    }

    /// Returns the result of one segment, and updates the memory of ranks and owner.
    fn segment(
        &mut self,
        (owner, index): (usize, usize),
        range: Range<usize>,
        contribution: &impl Fn(usize, Range<usize>) -> Vec<f32>,
    ) -> Result<Vec<f32>, CodecError> {
        let draw = |encoding: &Encoding, by: u64, rank: usize| {
            encoding.draw(&[by, rank as u64, owner as u64, index as u64])
        };
        let mut messages = Vec::new();
        for rank in 0..self.workers.len() {
            let seed = draw(&self.encoding, 0, rank);
            messages.push(self.message(rank, range.clone(), contribution(rank, range.clone()), seed)?);
        }
        let remembers = matches!(self.feedback, Feedback::TwoLevel | Feedback::Difference);
        let mut sum = if remembers { self.owners[range.clone()].to_vec() } else { vec![0.0; range.len()] };
        for message in &messages {
            self.codec.decode_add(message, self.weight, &mut sum)?;
        }
        if remembers {
            self.owners[range.clone()].copy_from_slice(&sum);
        }
        let seed = draw(&self.encoding, 1, owner);
        if self.feedback == Feedback::Difference {
            let decoded = &mut self.decoded[range];
            sum.iter_mut().zip(&*decoded).for_each(|(sum, known)| *sum -= known);
            self.codec.decode_add(&encoded(&*self.codec, &sum, seed)?, 1.0, decoded)?;
            return Ok(decoded.to_vec());
        }
        let message = encoded(&*self.codec, &sum, seed)?;
        if self.feedback == Feedback::TwoLevel {
            self.codec.decode_add(&message, -1.0, &mut self.owners[range])?;
        }
        self.codec.decode(&message, &mut sum)?;
        Ok(sum)
    }

    /// Returns the message of a rank that has `numbers`, and updates its memory.
    fn message(
        &mut self,
        rank: usize,
        range: Range<usize>,
        mut numbers: Vec<f32>,
        seed: u64,
    ) -> Result<Vec<u8>, CodecError> {
        if self.feedback == Feedback::None {
            return encoded(&*self.codec, &numbers, seed);
        }
        let memory = &mut self.workers[rank][range];
        if self.feedback == Feedback::Difference {
            numbers.iter_mut().zip(&*memory).for_each(|(x, known)| *x -= known);
            let message = encoded(&*self.codec, &numbers, seed)?;
            self.codec.decode_add(&message, 1.0, memory)?;
            return Ok(message);
        }
        let kept = self.feedback.error_kept().unwrap_or(1.0);
        let sum = |error: f32, x: f32| (kept * f64::from(error) + f64::from(x)) as f32;
        memory.iter_mut().zip(&numbers).for_each(|(error, x)| *error = sum(*error, *x));
        let message = encoded(&*self.codec, memory, seed)?;
        self.codec.decode_add(&message, -1.0, memory)?;
        Ok(message)
    }
}

fn encoded(codec: &dyn Codec, numbers: &[f32], seed: u64) -> Result<Vec<u8>, CodecError> {
    let mut message = vec![0; codec.encoded_len(numbers.len())];
    let bytes = codec.encode(numbers, &mut message, seed)?;
    message.truncate(bytes);
    Ok(message)
}

fn mistake(refusal: CodecError) -> Error {
    Error::usage(refusal.to_string(), "use a valid input of the codec")
}
