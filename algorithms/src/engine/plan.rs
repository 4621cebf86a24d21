//! The plan: which parameter lies where in which bucket.
//!
//! Parameters are packed in reverse order, as a backward pass completes the last one first. Element types do not mix in
//! a bucket. Buckets are ordered by the parameter that completes them.

use super::EngineOptions;
use hexagram_logical::{Communicator, DType, Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// One trainable tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// What errors call it.
    pub name: String,
    /// Element type of its gradient.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

/// One bucket: parameters that are communicated together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BucketPlan {
    pub(super) dtype: DType,
    pub(super) len: usize,
    /// Parameters, and their elements within the bucket.
    pub(super) members: Vec<(usize, Range<usize>)>,
}

impl BucketPlan {
    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }
}

/// Where each tensor lies in one bucket, for errors that count elements of the bucket.
pub(super) struct Tensors(Vec<(Range<usize>, Arc<str>)>);

impl Tensors {
    /// The same error, about an element of a tensor.
    pub(super) fn name(&self, error: Error) -> Error {
        let Error::NotFinite { place, tensor: None, index, value, during } = error else { return error };
        let found = self.0.iter().find(|(range, _)| range.contains(&index));
        let (start, tensor) = found.map_or((0, None), |(range, name)| (range.start, Some(Arc::clone(name))));
        Error::NotFinite { place, tensor, index: index - start, value, during }
    }
}

pub(super) struct Plan {
    parameters: Vec<Parameter>,
    buckets: Vec<BucketPlan>,
    /// By parameter: its bucket, and its elements there.
    places: Vec<(usize, Range<usize>)>,
}

impl Plan {
    pub(super) fn new(parameters: Vec<Parameter>, options: &EngineOptions) -> Self {
        let mut open: Vec<BucketPlan> = Vec::new();
        let mut closed: Vec<BucketPlan> = Vec::new();
        let mut limit = options.first_bucket_bytes;
        for (index, parameter) in parameters.iter().enumerate().rev() {
            let Parameter { dtype, len, .. } = *parameter;
            let at = open.iter().position(|bucket| bucket.dtype == dtype);
            let fits = |bucket: &BucketPlan| bucket.bytes() + len * dtype.size() <= limit;
            let mut bucket = match at.map(|at| open.swap_remove(at)) {
                Some(bucket) if fits(&bucket) => bucket,
                full => {
                    if let Some(full) = full {
                        closed.push(full);
                        limit = options.bucket_bytes;
                    }
                    BucketPlan { dtype, len: 0, members: Vec::new() }
                }
            };
            bucket.members.push((index, bucket.len..bucket.len + len));
            bucket.len += len;
            open.push(bucket);
        }
        closed.append(&mut open);
        // Parameters complete from the last to the first, so the bucket whose lowest member is highest comes first.
        closed.sort_by_key(|bucket| std::cmp::Reverse(bucket.members.last().map(|(index, _)| *index)));
        let mut places = vec![(0, 0..0); parameters.len()];
        for (number, bucket) in closed.iter().enumerate() {
            for (index, range) in &bucket.members {
                places[*index] = (number, range.clone());
            }
        }
        Plan { parameters, buckets: closed, places }
    }

    pub(super) fn buckets(&self) -> &[BucketPlan] {
        &self.buckets
    }

    /// By bucket.
    pub(super) fn tensors(&self) -> Vec<Tensors> {
        let name = |index: usize| Arc::from(self.parameters[index].name.as_str());
        let of = |bucket: &BucketPlan| {
            Tensors(bucket.members.iter().map(|(index, range)| (range.clone(), name(*index))).collect())
        };
        self.buckets.iter().map(of).collect()
    }

    pub(super) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub(super) fn place(&self, parameter: usize) -> Result<(usize, Range<usize>)> {
        self.places.get(parameter).cloned().ok_or_else(|| {
            let what = format!("there is no parameter {parameter} among {}", self.places.len());
            Error::usage(what, "use the order in which the parameters were listed")
        })
    }

    /// Makes sure that all ranks train the same model in the same way: a difference would corrupt or hang the first step.
    pub(super) fn agree(&self, comm: &Communicator, algorithm: &str, options: &EngineOptions) -> Result<()> {
        let elements: usize = self.parameters.iter().map(|parameter| parameter.len).sum();
        let digest = fingerprint(&format!("{algorithm} {options:?} {:?}", self.parameters));
        let mine = [self.parameters.len() as i64, elements as i64, digest as i64];
        let mut all = vec![0; mine.len() * comm.size()];
        comm.blocking().all_gather(&mine, &mut all)?;
        let Some(other) = all.chunks(mine.len()).position(|other| other != &all[..mine.len()]) else {
            return Ok(());
        };
        let say = |rank: usize| {
            let of = &all[rank * mine.len()..];
            format!("rank {rank} has {} parameters of {} elements (digest {:016x})", of[0], of[1], of[2])
        };
        Err(Error::usage(
            format!("ranks train different models: {}, {}", say(0), say(other)),
            "give all ranks the same model, algorithm and engine options",
        ))
    }
}

/// FNV-1a: the same on every rank and in every build.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
