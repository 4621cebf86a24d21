//! All-reduce by scatter-gather: every rank reduces one chunk of the encoded messages of all ranks, and encodes the
//! result for all ranks.

use super::roles::EncodedRoles;
use super::segments;
use super::{check_dtype, check_op};
use crate::centralized::free_to_write;
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Communicator, Primitive, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Reduces encoded chunks: `buffer ← D(C(w · Σᵢ D(C(xᵢ))))` on every rank, where xᵢ is the buffer of rank i and w
    /// is 1 for a sum and 1/n for a mean.
    ///
    /// With C the codec and D its decoding. Every rank owns a chunk, and codecs see a chunk in
    /// [`Segments`](super::Segments). The messages depend on the feedback (each rank stores e and h for all
    /// elements):
    ///
    /// | feedback | a rank sends | the owner of a chunk sends | result |
    /// |---|---|---|---|
    /// | none | cᵢ = C(xᵢ) | c = C(w Σ D(cᵢ)) | D(c) |
    /// | error | e ← e + xᵢ; cᵢ = C(e); e ← e − D(cᵢ) | as without | D(c) |
    /// | decaying | e ← β e + xᵢ; cᵢ = C(e); e ← e − D(cᵢ) | as without | D(c) |
    /// | two-level | as error | s ← s + w Σ D(cᵢ); c = C(s); s ← s − D(c) | D(c) |
    /// | difference | cᵢ = C(xᵢ − h); h ← h + D(cᵢ) | m ← m + w Σ D(cᵢ); c = C(m − H) | H ← H + D(c) |
    ///
    /// s and m are stored for the own chunk of the rank, H for all elements, equally on every rank. The owner decodes
    /// its own messages as every other rank does.
    ///
    /// Steps: k segments per chunk ([`Segments::count`](super::Segments::count)). Each is sent to its owner and back,
    /// while others are encoded and decoded. Bytes sent per rank: its messages to the owners, and (n−1) times its
    /// message as an owner: about 2(n−1)/n times the encoded buffer, in 2(n−1) · k messages. Memory: three times the
    /// messages of 5 segments of every owner, at most three encoded buffers; and the feedback memory.
    ///
    /// Determinism: contributions are added in the order of ranks. Results are bit-identical on all ranks and in all
    /// runs with equal n, inputs, seed and state.
    ///
    /// Sources: Bagua's ByteGrad (Gan et al., VLDB 2022) for the steps; Seide et al. 2014 (error); Tang et al.,
    /// "DoubleSqueeze", 2019 (two-level); Richtárik et al., "EF21", 2021, and Fatkhullin et al., "EF21 with bells &
    /// whistles", 2021, which compresses both ways (difference).
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) unless the buffer holds f32, `op` is a sum or a mean, and the feedback
    /// is one of these. [`Error::NotFinite`](crate::Error::NotFinite) if the codec refuses an element.
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in length, `op`, codec, feedback or seed. After an
    /// error in the operation, neither the buffer nor the memory is valid: restore both before using them in another
    /// world.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    /// # use hexagram_logical::codec::MinMax8;
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// // Keep the encoding from step to step: it remembers the error of the codec.
    /// let mut encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::TwoLevel);
    /// let mut gradient = Buffer::from_slice(&[comm.rank() as f32; 1000])?;
    /// comm.block_on(comm.all_reduce_encoded(&mut gradient, ReduceOp::Mean, &mut encoding))?;
    /// assert!((gradient.host::<f32>()?[0] - 1.0).abs() < 0.01);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn all_reduce_encoded<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        op: ReduceOp,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            check(buffer, op, encoding)?;
            let fingerprint = fingerprint(buffer, op, encoding);
            let stages = EncodedRoles::of(self, buffer, op, encoding)?;
            segments::run(self, fingerprint, buffer, &stages).await?;
            encoding.state_mut().advance();
            Ok(())
        })
    }
}

/// Fails for unsupported arguments, before other ranks rely on this one.
pub(crate) fn check(buffer: &Buffer, op: ReduceOp, encoding: &Encoding) -> Result<()> {
    use Feedback::{Difference, Error, None, TwoLevel};
    check_dtype(buffer)?;
    encoding.expect_feedback("all_reduce_encoded", &[None, Error, TwoLevel, Difference])?;
    check_op(op)?;
    free_to_write(buffer)
}

/// Returns the fingerprint on which all ranks of an encoded all-reduce agree.
pub(crate) fn fingerprint(buffer: &Buffer, op: ReduceOp, encoding: &Encoding) -> Fingerprint {
    Fingerprint {
        reduce: Some(op),
        codec: Some(encoding.digest()),
        ..Fingerprint::new(OperationKind::AllReduce, buffer.dtype(), buffer.len())
    }
}
