//! All-reduce of what is encoded: for codecs whose messages add up, so that nothing is decoded between ranks.

use super::memory::entry;
use super::{check_dtype, check_op};
use crate::centralized::free_to_write;
use crate::codec::{LinearCodec, Round};
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Call, Communicator, DType, ReduceOp, Result};
use bytemuck::cast_slice_mut;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// `buffer ← D(w · Σᵢ C(xᵢ))` on every rank, from what rank i has as xᵢ; w is 1 for a sum and 1/n for a mean.
    ///
    /// With C the codec, D its decoding, and y the result:
    ///
    /// | feedback | a rank encodes | remembered |
    /// |---|---|---|
    /// | none | xᵢ | – |
    /// | error | e ← e + xᵢ | e ← e − y for a mean, e − y/n for a sum |
    ///
    /// The sum of all e is that of what is still to be said, as if each rank had subtracted what it said itself. What the
    /// codec remembers from one operation to the next is kept, too.
    ///
    /// Steps: for each of the codec's rounds, [`Communicator::all_reduce`] of a message of
    /// [`message_len`](LinearCodec::message_len) f32. Bytes sent per rank: those of these all-reduces, 2(n−1)/n times
    /// the messages when they are large. Memory: the messages of two rounds, the codec's memory, and e.
    ///
    /// Determinism: as [`Communicator::all_reduce`]; results are bit-identical on all ranks.
    ///
    /// Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`]; [`Error::Usage`](crate::Error::Usage) if the buffer does not fit the
    /// codec.
    pub async fn all_reduce_linear(
        &self,
        buffer: &mut Buffer,
        op: ReduceOp,
        encoding: &mut Encoding<dyn LinearCodec>,
    ) -> Result<()> {
        check_dtype(buffer)?;
        encoding.expect_feedback("all_reduce_linear", &[Feedback::None, Feedback::Error])?;
        check_op(op)?;
        encoding.codec().fits(buffer.len())?;
        free_to_write(buffer)?;
        let len = buffer.len();
        let codec = encoding.codec().clone();
        let memory = entry(self, encoding, "codec", codec.memory_len(len))?;
        let error = match encoding.feedback() {
            Feedback::Error => Some(entry(self, encoding, "error", len)?),
            _ => None,
        };
        let seed = encoding.draw(&[]);
        let digest = Some(encoding.digest());
        let fingerprint = |count| {
            let plain = Fingerprint::new(OperationKind::AllReduce, DType::F32, count);
            Fingerprint { reduce: Some(op), codec: digest, ..plain }
        };
        // Sends nothing itself: its rounds are operations of their own.
        self.operate(fingerprint(len), async |call| {
            if let Some(error) = &error {
                self.device().reduce(ReduceOp::Sum, &buffer.read(0..len)?, &mut error.write(0..len)?)?;
            }
            let linear = Linear { call, codec: &*codec, memory: &memory, seed };
            let mut reduced = self.scratch(DType::F32, 0)?;
            for number in 0..codec.rounds() {
                let mut message = self.scratch(DType::F32, codec.message_len(number, len))?;
                linear.encode(number, error.as_deref().unwrap_or(buffer), &reduced, &message)?;
                self.all_reduce_as(fingerprint(message.len()), &mut message, op).await?;
                reduced = message;
            }
            linear.decode(&reduced, buffer)?;
            let Some(error) = &error else { return Ok(()) };
            let share = if op == ReduceOp::Mean { 1.0 } else { 1.0 / self.size() as f64 };
            self.device().add_scaled(-share, &buffer.read(0..len)?, &mut error.write(0..len)?)
        })
        .await?;
        encoding.state_mut().advance();
        Ok(())
    }
}

/// A linear codec at work on buffers.
struct Linear<'a> {
    call: &'a Call<'a>,
    codec: &'a dyn LinearCodec,
    memory: &'a Buffer,
    seed: u64,
}

impl Linear<'_> {
    fn encode(&self, number: usize, from: &Buffer, reduced: &Buffer, to: &Buffer) -> Result<()> {
        let from = from.host::<f32>()?;
        let reduced = reduced.host::<f32>()?;
        let mut memory = self.memory.write(0..self.memory.len())?;
        let mut to = to.write(0..to.len())?;
        let round = Round { number, from: &from, reduced: &reduced, seed: self.seed };
        let encoded =
            self.codec.encode(round, cast_slice_mut(memory.bytes_mut()), cast_slice_mut(to.bytes_mut()));
        encoded.map_err(|refusal| self.call.refused(&self.codec.name(), 0, refusal))
    }

    fn decode(&self, reduced: &Buffer, to: &Buffer) -> Result<()> {
        let reduced = reduced.host::<f32>()?;
        let mut memory = self.memory.write(0..self.memory.len())?;
        let mut to = to.write(0..to.len())?;
        let memory = cast_slice_mut(memory.bytes_mut());
        let to = cast_slice_mut(to.bytes_mut());
        let decoded = self.codec.decode(&reduced, memory, to, self.seed);
        decoded.map_err(|refusal| self.call.refused(&self.codec.name(), 0, refusal))
    }
}
