//! Majority vote: every rank has one vote on the sign of every element.

use super::ballot::{Ballot, Count, Votes};
use super::check_dtype;
use super::segments::{self, ChunkSegment, Stages};
use super::tally::SignSumCodec;
use crate::centralized::free_to_write;
use crate::{Buffer, Call, Communicator, DType, Part, Primitive, Result};
use hexagram_physical::codec::{Codec, CodecError};
use hexagram_physical::device::apply_all;
use hexagram_physical::fingerprint::{CodecDigest, Fingerprint, OperationKind};
use std::sync::Arc;

impl Communicator {
    /// Takes a majority vote of all ranks on the sign of every element: `buffer ← sgn(Σᵢ sgn(xᵢ))`, 1 or −1, on every rank,
    /// where xᵢ is the buffer of rank i. sgn(0) is 1 for both zeros, and a tie is 1.
    ///
    /// Every rank owns a chunk: it gets the packed signs of all ranks, counts them, and sends the signs of the result
    /// to all ranks. Steps and memory are those of [`Communicator::all_reduce_encoded`]. Bytes sent per rank, with
    /// b(d) = ⌈d/8⌉ for d elements: Σ b(segment) over the segments of the other ranks, and (n−1) Σ b(segment) over
    /// its own. That is about 2(n−1)/n · d/8, in 2(n−1) · k messages, where k is
    /// [`Segments::count`](super::Segments::count).
    ///
    /// Determinism: counts are exact, in any order.
    ///
    /// Source: Bernstein et al., "signSGD with majority vote is communication efficient and fault tolerant", 2019.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) unless the buffer holds f32; [`Error::NotFinite`](crate::Error::NotFinite)
    /// for a NaN, which has no sign; [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mut x = Buffer::from_slice(&[5.0, -0.1, comm.rank() as f32 - 1.5])?;
    /// comm.block_on(comm.majority_vote(&mut x))?;
    /// assert_eq!(*x.host::<f32>()?, [1.0, -1.0, -1.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn majority_vote<'a>(&'a self, buffer: &'a mut Buffer) -> Primitive<'a> {
        Box::pin(async move {
            check(buffer)?;
            let votes = Votes { voters: self.size(), width: 1 };
            let stages = Vote { buffer, contributed: &Ballot, votes };
            segments::run(self, fingerprint(buffer, &Ballot), buffer, &stages).await
        })
    }

    /// Counts votes that have been added within hosts: the buffer holds sums of signs, of `hosts[r]` ranks on rank r.
    pub(crate) async fn majority_of_sums(&self, buffer: &Buffer, hosts: &[usize]) -> Result<()> {
        let most = hosts.iter().copied().max().unwrap_or(1);
        let tally = SignSumCodec::of(hosts[self.rank()], most);
        let votes = Votes { voters: hosts.iter().sum(), width: tally.width() };
        let stages = Vote { buffer, contributed: &tally, votes };
        segments::run(self, fingerprint(buffer, &tally), buffer, &stages).await
    }
}

/// Fails if the buffer does not support a vote, before other ranks rely on this one.
pub(crate) fn check(buffer: &Buffer) -> Result<()> {
    check_dtype(buffer)?;
    free_to_write(buffer)
}

/// Replaces each element by its sign, 1 or −1.
pub(crate) fn take_signs(call: &Call<'_>, rank: usize, buffer: &Buffer) -> Result<()> {
    let message = buffer.zeroed_same_device(DType::U8, Ballot.encoded_len(buffer.len()))?;
    let bytes = call.encode(&Ballot, Part::whole(buffer), Part::whole(&message), 0)?;
    call.decode(&Ballot, rank, Part::of(&message, 0..bytes), None, Part::whole(buffer))
}

/// Returns the fingerprint on which all ranks of a vote agree, with the codec of the contributions.
fn fingerprint(buffer: &Buffer, contributed: &dyn Codec) -> Fingerprint {
    Fingerprint { codec: Some(CodecDigest::of(&contributed.name())), ..fingerprint_of_signs(buffer) }
}

/// Returns the fingerprint of the operations within a host for a vote.
pub(crate) fn fingerprint_of_signs(buffer: &Buffer) -> Fingerprint {
    Fingerprint::new(OperationKind::MajorityVote, buffer.dtype(), buffer.len())
}

struct Vote<'a> {
    buffer: &'a Buffer,
    /// Codec of contributions: [`Ballot`], or [`SignSumCodec`].
    contributed: &'a dyn Codec,
    votes: Votes,
}

impl Stages for Vote<'_> {
    fn largest(&self, len: usize) -> usize {
        self.contributed.encoded_len(len)
    }

    fn contribute(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<usize> {
        call.encode(self.contributed, Part::of(self.buffer, segment.range.clone()), message, 0)
    }

    fn combine(
        &self,
        call: &Call<'_>,
        segment: &ChunkSegment,
        contributions: &[Part<'_>],
        message: Part<'_>,
    ) -> Result<usize> {
        let len = segment.range.len();
        let each = self.contributed.encoded_len(len);
        for (rank, contribution) in contributions.iter().enumerate() {
            let bytes = contribution.range.len();
            if bytes != each {
                let refusal = CodecError::damaged(format!("{bytes} bytes for {len} votes"));
                return Err(call.sender(rank).damaged(&self.contributed.name(), &refusal));
            }
        }
        let bytes = Ballot.encoded_len(len);
        let views: Vec<_> = contributions.iter().map(Part::read).collect::<Result<_>>()?;
        let count = Count { votes: self.votes, messages: views.len(), bytes };
        let counted = apply_all(Arc::new(count), &views, &mut [message.first(bytes).write()?]);
        counted.map(|()| bytes).map_err(|error| call.own().end(error))
    }

    fn finish(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<()> {
        call.decode(&Ballot, segment.owner, message, None, Part::of(self.buffer, segment.range.clone()))
    }
}
