//! Majority vote: every rank has one vote on the sign of every element.

use super::ballot::{Ballot, count};
use super::check_dtype;
use super::segments::{self, Segment, Stages};
use crate::centralized::free_to_write;
use crate::{Buffer, Call, Communicator, Part, Result};
use hexagram_physical::codec::Codec;
use hexagram_physical::fingerprint::{CodecDigest, Fingerprint, OperationKind};
use hexagram_physical::memory::ReadView;

impl Communicator {
    /// Lets each rank vote on the sign of every element: `buffer ← sgn(Σᵢ sgn(xᵢ))`, 1 or −1, on every rank, where xᵢ
    /// is the buffer of rank i. sgn(0) is 1, of either zero, and so is that of a vote that ends in a tie.
    ///
    /// Every rank owns a chunk: it gets the signs of all ranks, packed, counts them, and sends everyone the signs of
    /// the result. Steps and memory are those of [`Communicator::all_reduce_encoded`]. Bytes sent per rank: with b(d) =
    /// ⌈d/8⌉ for d elements, Σ b(segment) over the segments of the other ranks, and (n−1) Σ b(segment) over its own:
    /// about 2(n−1)/n · d/8, in 2(n−1) · k messages, k being [`Segments::count`](super::Segments::count).
    ///
    /// Determinism: counts are exact, whatever their order.
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
    pub async fn majority_vote(&self, buffer: &mut Buffer) -> Result<()> {
        check_dtype(buffer)?;
        free_to_write(buffer)?;
        let len = buffer.len();
        let fingerprint = Fingerprint {
            codec: Some(CodecDigest::of(&Ballot.name())),
            ..Fingerprint::new(OperationKind::MajorityVote, buffer.dtype(), len)
        };
        let stages = Vote { buffer };
        segments::run(self, fingerprint, buffer, &stages).await
    }
}

struct Vote<'a> {
    buffer: &'a Buffer,
}

impl Stages for Vote<'_> {
    fn largest(&self, len: usize) -> usize {
        Ballot.encoded_len(len)
    }

    fn contribute(&self, call: &Call<'_>, segment: &Segment, message: Part<'_>) -> Result<usize> {
        call.encode(&Ballot, Part::of(self.buffer, segment.range.clone()), message, 0)
    }

    fn combine(
        &self,
        call: &Call<'_>,
        segment: &Segment,
        contributions: &[Part<'_>],
        message: Part<'_>,
    ) -> Result<usize> {
        let len = segment.range.len();
        let views: Vec<_> = contributions.iter().map(Part::read).collect::<Result<_>>()?;
        let ballots: Result<Vec<_>> = views.iter().map(ReadView::bytes_on_host).collect();
        let ballots = ballots.map_err(|error| call.own().end(error))?;
        for (rank, ballot) in ballots.iter().enumerate() {
            let checked = Ballot.check(ballot, len);
            checked.map_err(|refusal| call.sender(rank).damaged(&Ballot.name(), &refusal))?;
        }
        let mut result = vec![0; Ballot.encoded_len(len)];
        count(&ballots.iter().map(|ballot| &**ballot).collect::<Vec<_>>(), &mut result);
        message.first(result.len()).write()?.copy_from_bytes(&result)?;
        Ok(result.len())
    }

    fn finish(&self, call: &Call<'_>, segment: &Segment, message: Part<'_>) -> Result<()> {
        call.decode(&Ballot, segment.owner, message, None, Part::of(self.buffer, segment.range.clone()))
    }
}
