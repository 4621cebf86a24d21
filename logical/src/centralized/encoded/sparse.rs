//! All-reduce of few numbers: every rank gets the messages of all ranks, and adds them.

use super::{WORKER_NAMES, check_dtype, check_op, entry, weight};
use crate::centralized::chunk::block;
use crate::centralized::free_to_write;
use crate::encoding::{Coding, Encoding, Feedback, FeedbackLink};
use crate::{Buffer, Call, Communicator, DType, Part, Primitive, ReceiveMode, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Reduces small messages, which every rank gets: `buffer ← w · Σᵢ D(C(xᵢ))` on every rank, where xᵢ is the
    /// buffer of rank i and w is 1 for a sum and 1/n for a mean.
    ///
    /// With C the codec, which sees the whole buffer, and D its decoding:
    ///
    /// | feedback | a rank sends | result |
    /// |---|---|---|
    /// | none | cᵢ = C(xᵢ) | w Σ D(cᵢ) |
    /// | error | e ← e + xᵢ; cᵢ = C(e); e ← e − D(cᵢ) | w Σ D(cᵢ) |
    /// | decaying | e ← β e + xᵢ; cᵢ = C(e); e ← e − D(cᵢ) | w Σ D(cᵢ) |
    /// | difference | cᵢ = C(xᵢ − h); h ← h + D(cᵢ) | m ← m + w Σ D(cᵢ) |
    ///
    /// Each rank stores e and h; m is the mean (or sum) of all h, equal on every rank.
    ///
    /// One step: every rank sends its message to every other. Bytes sent per rank: n−1 times its message, in n−1
    /// messages. [`Communicator::all_reduce_encoded`] sends 2(n−1)/n times the message, but encodes twice. Memory: n
    /// times the largest message of the codec, and the feedback memory.
    ///
    /// Determinism: messages are added in the order of ranks. Results are bit-identical on all ranks and in all runs
    /// with equal n, inputs, seed and state.
    ///
    /// Sources: Aji and Heafield, "Sparse communication for distributed gradient descent", 2017 (error, top-k);
    /// Richtárik et al., "EF21", 2021 (difference).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`]; two-level feedback is not supported, since messages are encoded once.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    /// # use hexagram_logical::codec::{Keep, TopK};
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // Every rank sends its largest element. It remembers the others, and adds them to what it sends next.
    /// let mut encoding = Encoding::new(Arc::new(TopK::new(Keep::Count(1))?)).with_feedback(Feedback::Error);
    /// let mut gradient = Buffer::from_slice(&[0.5f32, -2.0, 0.25])?;
    /// comm.block_on(comm.all_reduce_sparse(&mut gradient, ReduceOp::Sum, &mut encoding))?;
    /// assert_eq!(*gradient.host::<f32>()?, [0.0, -6.0, 0.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_reduce_sparse<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            check_dtype(buffer)?;
            let known = [Feedback::None, Feedback::Error, Feedback::Difference];
            encoding.expect_feedback("all_reduce_sparse", &known)?;
            check_op(op)?;
            free_to_write(buffer)?;
            let fingerprint = Fingerprint {
                reduce: Some(op),
                codec: Some(encoding.digest()),
                ..Fingerprint::new(OperationKind::SparseAllReduce, buffer.dtype(), buffer.len())
            };
            let link = FeedbackLink::of(encoding, WORKER_NAMES, buffer, buffer.len())?;
            let mean = match encoding.feedback() {
                Feedback::Difference => Some(entry(encoding, "mean", buffer, buffer.len())?),
                _ => None,
            };
            self.operate(fingerprint, async |call| {
                let sum = mean.as_deref().unwrap_or(buffer);
                self.gather_and_add(call, buffer, encoding, &link, (sum, weight(op, self.size()))).await?;
                match &mean {
                    Some(mean) => buffer.write_all()?.copy_from(&mean.read_all()?),
                    None => Ok(()),
                }
            })
            .await?;
            encoding.state_mut().advance();
            Ok(())
        })
    }

    /// Adds all messages: `sum ← sum + w Σ D(cᵢ)`. If `sum` is `buffer` itself, which is
    /// encoded before, sets it to 0 first.
    async fn gather_and_add(
        &self,
        call: &Call<'_>,
        buffer: &Buffer,
        encoding: &Encoding,
        link: &FeedbackLink,
        (sum, weight): (&Buffer, f32),
    ) -> Result<()> {
        let rank = self.rank();
        let size = self.size();
        let largest = encoding.codec().encoded_len(buffer.len());
        let messages = buffer.zeroed_same_device(DType::U8, size.saturating_mul(largest))?;
        let mut receives = Vec::with_capacity(size);
        for from in 0..size {
            let receive = || call.recv(from, 0, &messages, block(largest, from), ReceiveMode::AtMost);
            receives.push(if from == rank { None } else { Some(receive()?) });
        }
        let message = Part::of(&messages, block(largest, rank));
        let seed = encoding.draw(&[rank as u64]);
        let coding = Coding { codec: &**encoding.codec(), seed, sender: call.own(), start: 0 };
        let bytes = encode_whole(buffer, link, coding, message.clone())?;
        let said = message.first(bytes).range;
        let send = |distance| call.send((rank + distance) % size, 0, &messages, said.clone());
        let sends: Vec<_> = (1..size).map(send).collect::<Result<_>>()?;
        if std::ptr::eq(sum, buffer) {
            sum.write_all()?.clear();
        }
        for (from, receive) in receives.into_iter().enumerate() {
            let bytes = match receive {
                Some(receive) => receive.await?.bytes,
                None => bytes,
            };
            let message = Part::of(&messages, block(largest, from)).first(bytes);
            call.decode(&**encoding.codec(), from, message, Some(weight), Part::whole(sum))?;
        }
        for send in sends {
            send.await?;
        }
        Ok(())
    }
}

/// Encodes a whole buffer after applying the feedback, and returns the size of the message in bytes.
fn encode_whole(
    buffer: &Buffer,
    link: &FeedbackLink,
    coding: Coding<'_>,
    message: Part<'_>,
) -> Result<usize> {
    let all = 0..buffer.len();
    let numbers = link.compensate_in_place(all.clone(), Part::whole(buffer))?;
    link.encode(coding, all, numbers, message)
}
