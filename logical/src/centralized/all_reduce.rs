//! All-reduce: every rank gets the reduction of all buffers.

use super::steps::{HalvingDoubling, RingLayout};
use crate::{Buffer, Call, Communicator, DType, Element, Primitive, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::native::Size;

impl Communicator {
    /// Reduces a buffer over all ranks, in place, on every rank: `buffer ← op over ranks of buffer`.
    ///
    /// | size S | how | steps | bytes sent per rank |
    /// |---|---|---|---|
    /// | small: n · S ≤ 64 KiB | every rank gets and reduces all contributions | ⌈log₂ n⌉ | (n−1) · S |
    /// | middle: S ≤ 256 KiB | halving and doubling, n a power of two | 2 log₂ n | 2(n−1)/n · S |
    /// | large | ring of n chunks | 2(n−1) | 2(n−1)/n · S |
    ///
    /// ([`Size`] has the limits.) For other n, ranks beyond the largest power of two send their buffer to a rank
    /// below it, and receive the result, at S more bytes each way. Memory: n · S for small sizes, none otherwise;
    /// messages are reduced in place on arrival.
    ///
    /// Determinism: results are bit-identical on all ranks and in all runs with equal `n`. In a ring or an exchange,
    /// element e in chunk c is combined in the order of ranks c+1, c+2, …, c; in halving, in that of a balanced tree.
    ///
    /// Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009
    /// (ring); Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    /// (halving).
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the type [does not support the reduction](ReduceOp::check);
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks differ in element type, length or `op`.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mut x = Buffer::from_slice(&[comm.rank() as f32, 1.0])?;
    /// comm.block_on(comm.all_reduce(&mut x, ReduceOp::Sum))?;
    /// assert_eq!(*x.host::<f32>()?, [3.0, 3.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn all_reduce(&self, buffer: &mut Buffer, op: ReduceOp) -> Result<()> {
        let fingerprint = fingerprint(buffer.dtype(), buffer.len(), op)?;
        let outcome = buffer.idle_bytes().and_then(|bytes| self.at_once(fingerprint, bytes));
        if let Some(outcome) = outcome {
            // Not `return outcome`: on success, copying the space reserved for an error would take longer than the rest.
            outcome?;
            return Ok(());
        }
        self.all_reduce_as(fingerprint, buffer, op).await
    }

    /// Reduces borrowed elements, blocking; small sizes are not even lent.
    pub(crate) fn all_reduce_blocking<T: Element>(&self, elements: &mut [T], op: ReduceOp) -> Result<()> {
        let fingerprint = fingerprint(T::DTYPE, elements.len(), op)?;
        // An operation that begins in host memory cannot continue on a path between devices.
        let at_once = match self.queue_under_test() {
            None => self.at_once(fingerprint, bytemuck::cast_slice_mut(elements)),
            Some(_) => None,
        };
        match at_once {
            Some(outcome) => outcome,
            None => self
                .blocking()
                .lend_mut(elements, |buffer| self.block_on(self.all_reduce_as(fingerprint, buffer, op))),
        }
    }

    /// Reduces under a fingerprint of the caller, for an `op` that the elements support.
    pub(super) fn all_reduce_as<'a>(
        &'a self,
        fingerprint: Fingerprint,
        buffer: &'a mut Buffer,
        op: ReduceOp,
    ) -> Primitive<'a> {
        Box::pin(async move {
            let output = buffer.write_all()?;
            self.operate(fingerprint, async |call| {
                if let Some(native) = call.native(None, output) {
                    return native.await.map(drop);
                }
                self.reduce_everywhere(call, buffer, op).await
            })
            .await
        })
    }

    /// Sends and receives the messages of an all-reduce, within an operation.
    pub(super) async fn reduce_everywhere(
        &self,
        call: &Call<'_>,
        buffer: &Buffer,
        op: ReduceOp,
    ) -> Result<()> {
        self.before_reduce(op, buffer, 0..buffer.len())?;
        let complete = |range| self.after_reduce(op, buffer, range);
        if self.size() == 1 {
            return complete(0..buffer.len());
        }
        match Size::of(buffer.len() * buffer.dtype().size(), self.size()) {
            Size::Small => {
                self.exchange(call, buffer, op).await?;
                complete(0..buffer.len())
            }
            Size::Middle => HalvingDoubling::of(self).all_reduce(call, buffer, op, complete).await,
            Size::Large => RingLayout::of(self, buffer).all_reduce(call, buffer, op, complete).await,
        }
    }
}

/// Returns the fingerprint on which ranks must agree.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) if the elements do not support the reduction.
#[inline]
fn fingerprint(dtype: DType, len: usize, op: ReduceOp) -> Result<Fingerprint> {
    op.check(dtype)?;
    Ok(Fingerprint { reduce: Some(op), ..Fingerprint::new(OperationKind::AllReduce, dtype, len) })
}
