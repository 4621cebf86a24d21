//! All-reduce by scatter-gather: every rank reduces one chunk of what all have encoded, and encodes it again for everyone.

use super::memory::{Memory, entry};
use super::segments::{self, Segment, Segments, Stages};
use super::{check_dtype, check_op, weight};
use crate::centralized::free_to_write;
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Call, Communicator, Part, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::native::chunk;
use std::ops::Range;
use std::sync::Arc;

impl Communicator {
    /// `buffer ← D(C(w · Σᵢ D(C(xᵢ))))` on every rank, from what rank i has as xᵢ; w is 1 for a sum and 1/n for a mean.
    ///
    /// With C the codec and D its decoding. Every rank owns a chunk, and codecs see a chunk in [`Segments`]. What a rank
    /// says, and what becomes of it, depends on the feedback (e and h are remembered by each rank, of all elements):
    ///
    /// | feedback | a rank says | the owner of a chunk says | result |
    /// |---|---|---|---|
    /// | none | cᵢ = C(xᵢ) | c = C(w Σ D(cᵢ)) | D(c) |
    /// | error | e ← e + xᵢ; cᵢ = C(e); e ← e − D(cᵢ) | as without | D(c) |
    /// | two-level | as error | s ← s + w Σ D(cᵢ); c = C(s); s ← s − D(c) | D(c) |
    /// | difference | cᵢ = C(xᵢ − h); h ← h + D(cᵢ) | m ← m + w Σ D(cᵢ); c = C(m − H) | H ← H + D(c) |
    ///
    /// s and m are remembered of the rank's own chunk, H of all elements, equally on every rank. The owner hears its own
    /// messages as everyone else does.
    ///
    /// Steps: k segments a chunk ([`Segments::count`]); each is sent to its owner and back, while others are encoded and
    /// decoded. Bytes sent per rank: those of what it says to the others, and (n−1) times those of what it says as an
    /// owner: about 2(n−1)/n times the encoded buffer, in 2(n−1) · k messages. Memory: the messages of 5 segments of
    /// every owner, three times, and no more than three encoded buffers; and what the feedback remembers.
    ///
    /// Determinism: contributions are added in the order of ranks. Results are bit-identical on all ranks and in all runs
    /// with equal n, inputs, seed and state.
    ///
    /// Sources: Bagua's ByteGrad (Gan et al., VLDB 2022) for the steps; Seide et al. 2014 (error); Tang et al.,
    /// "DoubleSqueeze", 2019 (two-level); Richtárik et al., "EF21", 2021, and Fatkhullin et al., "EF21 with bells &
    /// whistles", 2021, which compresses both ways (difference).
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) unless the buffer holds f32, `op` is a sum or a mean and the feedback is one of these;
    /// [`Error::NotFinite`](crate::Error::NotFinite) where the codec refuses an element; [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in length, `op`, codec,
    /// feedback or seed. After an error in the operation neither the buffer nor what is remembered is valid: restore both
    /// before they are used in another world.
    pub async fn all_reduce_encoded(
        &self,
        buffer: &mut Buffer,
        op: ReduceOp,
        encoding: &mut Encoding,
    ) -> Result<()> {
        check(buffer, op, encoding)?;
        let len = buffer.len();
        let fingerprint = fingerprint(buffer, op, encoding);
        let memory = Memory::of_worker(self, encoding, len)?;
        let owned = chunk(len, self.size(), self.rank());
        let server = Server::of(self, encoding, len, owned.len())?;
        let weight = weight(op, self.size());
        let stages = Encoded { comm: self, buffer, encoding, weight, memory, server, start: owned.start };
        let body =
            async |call: &Call<'_>| segments::run(self, call, Segments::of(len, self.size()), &stages).await;
        self.operate(fingerprint, body).await?;
        encoding.state_mut().advance();
        Ok(())
    }
}

/// Fails if the primitive is asked for something that it cannot do, before any rank counts on this one.
pub(in crate::centralized) fn check(buffer: &Buffer, op: ReduceOp, encoding: &Encoding) -> Result<()> {
    use Feedback::{Difference, Error, None, TwoLevel};
    check_dtype(buffer)?;
    encoding.expect_feedback("all_reduce_encoded", &[None, Error, TwoLevel, Difference])?;
    check_op(op)?;
    free_to_write(buffer)
}

/// What all ranks of an encoded all-reduce agree on.
pub(in crate::centralized) fn fingerprint(buffer: &Buffer, op: ReduceOp, encoding: &Encoding) -> Fingerprint {
    Fingerprint {
        reduce: Some(op),
        codec: Some(encoding.digest()),
        ..Fingerprint::new(OperationKind::AllReduce, buffer.dtype(), buffer.len())
    }
}

/// What an owner remembers of its chunk.
enum Server {
    Forgetful,
    /// What is still to be said.
    Error(Arc<Buffer>),
    /// The mean of what the workers have said, and what everyone has heard of it, in all chunks.
    Difference {
        mean: Arc<Buffer>,
        heard: Arc<Buffer>,
    },
}

impl Server {
    fn of(comm: &Communicator, encoding: &mut Encoding, len: usize, owned: usize) -> Result<Self> {
        Ok(match encoding.feedback() {
            Feedback::TwoLevel => Server::Error(entry(comm, encoding, "server error", owned)?),
            Feedback::Difference => Server::Difference {
                mean: entry(comm, encoding, "mean", owned)?,
                heard: entry(comm, encoding, "heard", len)?,
            },
            _ => Server::Forgetful,
        })
    }
}

struct Encoded<'a> {
    comm: &'a Communicator,
    buffer: &'a Buffer,
    encoding: &'a Encoding,
    weight: f32,
    memory: Memory,
    server: Server,
    /// Of the chunk that this rank owns.
    start: usize,
}

/// Whose message a draw is for.
const WORKER: u64 = 0;
const OWNER: u64 = 1;

impl Encoded<'_> {
    fn draw(&self, by: u64, segment: &Segment) -> u64 {
        let names = [self.comm.rank(), segment.owner, segment.index];
        let [rank, owner, index] = names.map(|name| name as u64);
        self.encoding.draw(&[by, rank, owner, index])
    }

    /// `to ← to + w Σ D(cᵢ)`.
    fn add(&self, call: &Call<'_>, said: &[Part<'_>], to: &Part<'_>) -> Result<()> {
        let codec = &**self.encoding.codec();
        let mut numbered = said.iter().cloned().enumerate();
        numbered.try_for_each(|(rank, said)| call.decode(codec, rank, said, Some(self.weight), to.clone()))
    }

    /// A segment's elements counted from the beginning of this rank's chunk.
    fn owned(&self, segment: &Segment) -> Range<usize> {
        segment.range.start - self.start..segment.range.end - self.start
    }
}

impl Stages for Encoded<'_> {
    fn largest(&self, len: usize) -> usize {
        self.encoding.codec().encoded_len(len)
    }

    fn say(&self, call: &Call<'_>, segment: &Segment, message: Part<'_>) -> Result<usize> {
        let numbers = (self.buffer, segment.range.clone());
        let seed = self.draw(WORKER, segment);
        self.memory.say((self.comm, call), self.encoding, numbers, (message, seed))
    }

    fn settle(
        &self,
        call: &Call<'_>,
        segment: &Segment,
        said: &[Part<'_>],
        message: Part<'_>,
    ) -> Result<usize> {
        let device = self.comm.device();
        let codec = &**self.encoding.codec();
        let seed = self.draw(OWNER, segment);
        let numbers = Part::of(self.buffer, segment.range.clone());
        match &self.server {
            Server::Forgetful => {
                device.clear(&mut numbers.write()?);
                self.add(call, said, &numbers)?;
                call.encode(codec, numbers, message, seed)
            }
            Server::Error(error) => {
                let error = Part::of(error, self.owned(segment));
                self.add(call, said, &error)?;
                let start = segment.range.start;
                let bytes = call.encode_as(codec, start, error.clone(), message.clone(), seed)?;
                call.decode(codec, segment.owner, message.first(bytes), Some(-1.0), error)?;
                Ok(bytes)
            }
            Server::Difference { mean, heard } => {
                let mean = Part::of(mean, self.owned(segment));
                self.add(call, said, &mean)?;
                device.copy(&mean.read()?, &mut numbers.write()?)?;
                device.add_scaled(-1.0, &heard.read(segment.range.clone())?, &mut numbers.write()?)?;
                call.encode(codec, numbers, message, seed)
            }
        }
    }

    fn hear(&self, call: &Call<'_>, segment: &Segment, message: Part<'_>) -> Result<()> {
        let codec = &**self.encoding.codec();
        let numbers = Part::of(self.buffer, segment.range.clone());
        let Server::Difference { heard, .. } = &self.server else {
            return call.decode(codec, segment.owner, message, None, numbers);
        };
        let heard = Part::of(heard, segment.range.clone());
        call.decode(codec, segment.owner, message, Some(1.0), heard.clone())?;
        self.comm.device().copy(&heard.read()?, &mut numbers.write()?)
    }
}
