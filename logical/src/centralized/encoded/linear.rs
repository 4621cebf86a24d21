//! All-reduce of encoded messages, for codecs whose messages can be added, without decoding between ranks.

use super::{WORKER_NAMES, check_dtype, check_op};
use crate::centralized::free_to_write;
use crate::codec::{CodecError, LinearCodec, OneRound, Round};
use crate::encoding::{Encoding, Feedback, FeedbackLink};
use crate::{Buffer, Call, Communicator, DType, Part, Primitive, ReduceOp, Result};
use bytemuck::cast_slice_mut;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::memory::WriteView;
use hexagram_physical::runtime::Work;
use std::sync::Arc;

impl Communicator {
    /// Reduces encoded messages: `buffer ← D(w · Σᵢ C(xᵢ))` on every rank, where xᵢ is the buffer of rank i and w is
    /// 1 for a sum and 1/n for a mean.
    ///
    /// With C the codec, D its decoding, and cᵢ the contribution of rank i to the last round:
    ///
    /// | feedback | a rank encodes | remembered |
    /// |---|---|---|
    /// | none | xᵢ | – |
    /// | error | e ← e + xᵢ | e ← e − D(cᵢ) |
    /// | decaying | e ← β e + xᵢ | e ← e − D(cᵢ) |
    ///
    /// The sum of all e is the unsent rest. Elements that the codec sends exactly leave no error: subtracting the result
    /// instead of D(cᵢ) would give the same sum, but each e would grow with the difference between the ranks. The codec memory
    /// is also kept between operations.
    ///
    /// Steps: for each round of the codec, [`Communicator::all_reduce`] of a message of
    /// [`message_len`](LinearCodec::message_len) f32. Bytes sent per rank: those of these all-reduces, 2(n−1)/n times
    /// the messages if they are large. Memory: the messages of two rounds, the codec memory, and e; with feedback, a
    /// further message and a further codec memory during the operation.
    ///
    /// Devices encode and decode if the codec has one round, no memory, and [programs](LinearCodec::encode_program).
    /// Otherwise the host does, and waits for the device. If device memory travels on a path between devices, the
    /// error of a refused value appears at the next wait for the queue, not in this call.
    ///
    /// Determinism: as [`Communicator::all_reduce`]; results are bit-identical on all ranks.
    ///
    /// Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`]; [`Error::Usage`](crate::Error::Usage) if the buffer does not match
    /// the codec.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    /// # use hexagram_logical::codec::PowerSgd;
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // PowerSGD of rank 1, of a matrix of 8 rows and 4 columns.
    /// let codec = PowerSgd::new(&[(8, 4)], 1)?;
    /// let mut encoding = Encoding::linear(Arc::new(codec)).with_feedback(Feedback::Error);
    /// let mut gradient = Buffer::from_slice(&[comm.rank() as f32; 32])?;
    /// comm.block_on(comm.all_reduce_linear(&mut gradient, ReduceOp::Mean, &mut encoding))?;
    /// assert!((gradient.host::<f32>()?[0] - 1.0).abs() < 1e-5);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_reduce_linear<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding<dyn LinearCodec>,
    ) -> Primitive<'a> {
        Box::pin(async move {
            check_dtype(buffer)?;
            encoding.expect_feedback("all_reduce_linear", &[Feedback::None, Feedback::Error])?;
            check_op(op)?;
            encoding.codec().fits(buffer.len())?;
            free_to_write(buffer)?;
            let len = buffer.len();
            let codec = encoding.codec().clone();
            // A codec with memory runs on the host, so its memory is on the host.
            let memory = encoding.state_mut().control("codec", DType::F32, codec.memory_len(len))?.0;
            let link = FeedbackLink::of(encoding, WORKER_NAMES, buffer, len)?;
            let seed = encoding.draw(&[]);
            let fingerprint = Fingerprint {
                reduce: Some(op),
                codec: Some(encoding.digest()),
                ..Fingerprint::new(OperationKind::AllReduce, DType::F32, len)
            };
            // Sends no messages itself: its rounds are separate operations.
            self.operate(fingerprint, async |call| {
                let sum = link.compensate_in_place(0..len, Part::whole(buffer))?;
                let linear = Linear { comm: self, call, codec: &codec, memory: &memory, seed, op };
                let keeps_own = encoding.feedback().error_kept().is_some();
                let (reduced, own) = linear.reduce(sum.buffer, fingerprint, keeps_own).await?;
                if let Some(own) = own {
                    linear.remember(&link, &own, buffer)?;
                }
                linear.decode(&reduced, buffer)
            })
            .await?;
            encoding.state_mut().advance();
            Ok(())
        })
    }
}

/// Linear codec at work on buffers.
struct Linear<'a> {
    comm: &'a Communicator,
    call: &'a Call<'a>,
    codec: &'a Arc<dyn LinearCodec>,
    memory: &'a Buffer,
    seed: u64,
    op: ReduceOp,
}

impl Linear<'_> {
    /// Returns the codec in the form that devices can run, for such buffers.
    fn one_round(&self, buffer: &Buffer) -> Option<OneRound> {
        OneRound::of(self.codec, buffer.len(), self.seed)
    }

    /// Encodes and reduces, round by round. Returns the reduced message of the last round, and this rank's own
    /// message if `keeps_own`.
    async fn reduce(
        &self,
        from: &Buffer,
        fingerprint: Fingerprint,
        keeps_own: bool,
    ) -> Result<(Buffer, Option<Buffer>)> {
        let rounds = self.codec.rounds();
        let mut reduced = from.zeroed_same_device(DType::F32, 0)?;
        let mut own = None;
        for number in 0..rounds {
            let mut message = self.encode(number, from, &reduced)?;
            if keeps_own && number + 1 == rounds {
                own = Some(message.copied()?);
            }
            let fingerprint = Fingerprint { count: message.len() as u64, ..fingerprint };
            self.comm.all_reduce_as(fingerprint, &mut message, self.op).await?;
            reduced = message;
        }
        Ok((reduced, own))
    }

    /// Returns the message of a round, which may depend on the `reduced` message of the previous round.
    fn encode(&self, number: usize, from: &Buffer, reduced: &Buffer) -> Result<Buffer> {
        let mut message = from.zeroed_same_device(DType::F32, self.codec.message_len(number, from.len()))?;
        let encoded = match self.one_round(from) {
            Some(codec) => message.write_all()?.encode(&codec, &from.read_all()?, self.seed)?.map(|_| ()),
            None => self.encode_by_host(number, from, reduced, &mut message)?,
        };
        encoded.map_err(|refusal| self.call.own().refused(&self.codec.name(), 0, refusal))?;
        Ok(message)
    }

    fn encode_by_host(
        &self,
        number: usize,
        from: &Buffer,
        reduced: &Buffer,
        message: &mut Buffer,
    ) -> Result<Result<(), CodecError>> {
        let work = || Work::Encode { codec: self.codec.name(), elements: from.len() };
        if !from.queue().computes(work) {
            return Ok(Ok(()));
        }
        let from = from.host::<f32>()?;
        let reduced = reduced.host::<f32>()?;
        let mut memory = self.memory.write_all()?;
        let mut to = message.host_mut::<f32>()?;
        let round = Round { number, from: &from, reduced: &reduced, seed: self.seed };
        Ok(self.codec.encode(round, floats(&mut memory), &mut to))
    }

    /// Updates the feedback with this rank's own message; `scratch` gets its decoded value.
    fn remember(&self, link: &FeedbackLink, own: &Buffer, scratch: &mut Buffer) -> Result<()> {
        self.decode_apart(own, scratch)?;
        link.remember_in_place(0..scratch.len(), |weight, error| {
            error.write()?.add_scaled(f64::from(weight), &scratch.read_all()?)
        })
    }

    /// Decodes the message of one rank, without changing the codec memory.
    fn decode_apart(&self, message: &Buffer, to: &mut Buffer) -> Result<()> {
        let memory = &self.memory.copied()?;
        Linear { memory, ..*self }.decode(message, to)
    }

    fn decode(&self, reduced: &Buffer, to: &mut Buffer) -> Result<()> {
        let decoded = match self.one_round(to) {
            Some(codec) => to.write_all()?.decode(&codec, &reduced.read_all()?, None)?,
            None => self.decode_by_host(reduced, to)?,
        };
        decoded.map_err(|refusal| self.call.own().refused(&self.codec.name(), 0, refusal))
    }

    fn decode_by_host(&self, reduced: &Buffer, to: &mut Buffer) -> Result<Result<(), CodecError>> {
        let work = || Work::Decode { codec: self.codec.name(), elements: to.len() };
        if !to.queue().computes(work) {
            return Ok(Ok(()));
        }
        let reduced = reduced.host::<f32>()?;
        let mut memory = self.memory.write_all()?;
        let mut to = to.host_mut::<f32>()?;
        Ok(self.codec.decode(&reduced, floats(&mut memory), &mut to, self.seed))
    }
}

/// Returns the elements of a view of host memory.
fn floats(memory: &mut WriteView) -> &mut [f32] {
    cast_slice_mut(memory.host_bytes_mut().unwrap_or_default())
}
