//! The two roles of a rank in a segment of an encoded all-reduce: a worker contributes, and the owner of a chunk
//! combines all contributions.

use super::segments::{ChunkSegment, Stages};
use super::{WORKER_NAMES, entry, weight};
use crate::centralized::chunk::chunk;
use crate::encoding::{Coding, Encoding, Feedback, FeedbackLink};
use crate::{Buffer, Call, Communicator, Part, ReduceOp, Result};
use std::ops::Range;
use std::sync::Arc;

/// Worker and owner roles of one rank in one operation.
pub(super) struct EncodedRoles<'a> {
    rank: usize,
    buffer: &'a Buffer,
    encoding: &'a Encoding,
    /// Weight of every contribution.
    weight: f32,
    worker: FeedbackLink,
    owner: ChunkOwner,
    /// First element of the chunk that this rank owns.
    start: usize,
}

/// Memory of an owner for its chunk.
enum ChunkOwner {
    Forgetful,
    /// Error of its messages so far, to which it adds contributions.
    Error {
        error: Arc<Buffer>,
        link: FeedbackLink,
    },
    /// Mean of all contributions so far, and the estimate of it that all ranks have decoded, for all chunks.
    Difference {
        mean: Arc<Buffer>,
        /// Estimate of the contributions of each rank, rank by rank, if the mean is computed from them.
        estimates: Option<Arc<Buffer>>,
        decoded: Arc<Buffer>,
        link: FeedbackLink,
    },
}

impl ChunkOwner {
    fn of(encoding: &mut Encoding, buffer: &Buffer, owned: usize) -> Result<Self> {
        Ok(match encoding.feedback() {
            Feedback::TwoLevel => {
                let error = entry(encoding, "server error", buffer, owned)?;
                let link = FeedbackLink::error(&error);
                ChunkOwner::Error { error, link }
            }
            Feedback::Difference => {
                let mean = entry(encoding, "mean", buffer, owned)?;
                let decoded = entry(encoding, "heard", buffer, buffer.len())?;
                let link = FeedbackLink::Difference(Arc::clone(&decoded));
                ChunkOwner::Difference { mean, estimates: None, decoded, link }
            }
            _ => ChunkOwner::Forgetful,
        })
    }
}

/// Role that a random draw is for.
const WORKER: u64 = 0;
const OWNER: u64 = 1;

impl<'a> EncodedRoles<'a> {
    /// Returns the roles of this rank, with the memory in `encoding`.
    ///
    /// # Errors
    /// As [`State::entry`](crate::encoding::State::entry).
    pub(super) fn of(
        comm: &Communicator,
        buffer: &'a Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding,
    ) -> Result<Self> {
        let owned = chunk(buffer.len(), comm.size(), comm.rank());
        let worker = FeedbackLink::of(encoding, WORKER_NAMES, buffer, buffer.len())?;
        let owner = ChunkOwner::of(encoding, buffer, owned.len())?;
        let weight = weight(op, comm.size());
        Ok(EncodedRoles { rank: comm.rank(), buffer, encoding, weight, worker, owner, start: owned.start })
    }

    /// Makes the owner of a chunk store the estimate of every rank, and recompute their mean each time. Running f32 sums would
    /// drift apart between a rank and an owner.
    pub(super) fn with_estimates(mut self, all: Arc<Buffer>) -> Self {
        if let ChunkOwner::Difference { estimates, .. } = &mut self.owner {
            *estimates = Some(all);
        }
        self
    }

    fn coding<'b>(&'b self, call: &'b Call<'_>, by: u64, segment: &ChunkSegment) -> Coding<'b> {
        let names = [self.rank, segment.owner, segment.index];
        let [rank, owner, index] = names.map(|name| name as u64);
        let seed = self.encoding.draw(&[by, rank, owner, index]);
        let codec = &**self.encoding.codec();
        Coding { codec, seed, sender: call.own(), start: segment.range.start }
    }

    /// Adds contributions, in their order: `to ← to + w Σ D(cᵢ)`.
    fn add(&self, call: &Call<'_>, contributions: &[Part<'_>], to: &Part<'_>) -> Result<()> {
        let codec = &**self.encoding.codec();
        let mut numbered = contributions.iter().cloned().enumerate();
        numbered
            .try_for_each(|(rank, message)| call.decode(codec, rank, message, Some(self.weight), to.clone()))
    }

    /// Recomputes a mean from the estimates of all ranks: `hᵢ ← hᵢ + D(cᵢ); mean ← w Σ hᵢ`.
    fn renew(
        &self,
        call: &Call<'_>,
        contributions: &[Part<'_>],
        estimates: &Buffer,
        segment: &ChunkSegment,
        mean: &Part<'_>,
    ) -> Result<()> {
        let owned = estimates.len() / contributions.len();
        mean.write()?.clear();
        for (rank, message) in contributions.iter().cloned().enumerate() {
            let at = self.owned(segment);
            let known = Part::of(estimates, rank * owned + at.start..rank * owned + at.end);
            call.decode(&**self.encoding.codec(), rank, message, Some(1.0), known.clone())?;
            mean.write()?.add_scaled(f64::from(self.weight), &known.read()?)?;
        }
        Ok(())
    }

    fn numbers(&self, segment: &ChunkSegment) -> Part<'_> {
        Part::of(self.buffer, segment.range.clone())
    }

    /// Returns the elements of a segment, counted from the beginning of the chunk of this rank.
    fn owned(&self, segment: &ChunkSegment) -> Range<usize> {
        segment.range.start - self.start..segment.range.end - self.start
    }
}

impl Stages for EncodedRoles<'_> {
    fn largest(&self, len: usize) -> usize {
        self.encoding.codec().encoded_len(len)
    }

    fn contribute(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<usize> {
        let at = segment.range.clone();
        let numbers = self.worker.compensate_in_place(at.clone(), self.numbers(segment))?;
        self.worker.encode(self.coding(call, WORKER, segment), at, numbers, message)
    }

    fn combine(
        &self,
        call: &Call<'_>,
        segment: &ChunkSegment,
        contributions: &[Part<'_>],
        message: Part<'_>,
    ) -> Result<usize> {
        let coding = self.coding(call, OWNER, segment);
        let numbers = self.numbers(segment);
        match &self.owner {
            ChunkOwner::Forgetful => {
                numbers.write()?.clear();
                self.add(call, contributions, &numbers)?;
                FeedbackLink::Direct.encode(coding, segment.range.clone(), numbers, message)
            }
            ChunkOwner::Error { error, link } => {
                let at = self.owned(segment);
                let sum = Part::of(error, at.clone());
                self.add(call, contributions, &sum)?;
                link.encode(coding, at, sum, message)
            }
            ChunkOwner::Difference { mean, estimates, link, .. } => {
                let mean = Part::of(mean, self.owned(segment));
                match estimates {
                    Some(estimates) => self.renew(call, contributions, estimates, segment, &mean)?,
                    None => self.add(call, contributions, &mean)?,
                }
                link.compensate_into(segment.range.clone(), &mean, &numbers)?;
                // Every rank, including this one, updates its memory when the message arrives.
                FeedbackLink::Direct.encode(coding, segment.range.clone(), numbers, message)
            }
        }
    }

    fn finish(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<()> {
        let codec = &**self.encoding.codec();
        let numbers = self.numbers(segment);
        let ChunkOwner::Difference { decoded, link, .. } = &self.owner else {
            return call.decode(codec, segment.owner, message, None, numbers);
        };
        let at = segment.range.clone();
        link.receive(at.clone(), codec, call.sender(segment.owner), message)?;
        numbers.write()?.copy_from(&decoded.read(at)?)
    }
}
