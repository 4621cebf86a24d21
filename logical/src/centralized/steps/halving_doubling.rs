//! All-reduce in few, large steps, for buffers whose messages in a ring would be small.
//!
//! Among p = 2ᵏ ranks, each step exchanges with the rank at half the distance of the previous step. The first steps
//! exchange halves of the range left to reduce; then, in the opposite order, the ranges of results double:
//!
//! ```text
//! distance p/2 … 2, 1    send the half that is the partner's, reduce the other        rank r ends with chunk r
//! distance 1, 2 … p/2    send all that is complete, receive as much                   every rank ends with everything
//! ```
//!
//! Ranks beyond the largest power of two first send their buffer to a rank below it, and get the result at the end.

use crate::centralized::chunk::chunk;
use crate::{Buffer, Call, Communicator, ReceiveMode, ReduceOp, Result};
use std::ops::Range;

/// Part of one rank in the algorithm.
pub(crate) struct HalvingDoubling {
    rank: usize,
    size: usize,
    /// Largest power of two up to `size`.
    core: usize,
}

/// Step of the message to a rank below the largest power of two; exchanges use the steps below 2 · 16.
const FOLD: usize = 100;
/// Step of the answer of that rank, the result.
const UNFOLD: usize = 101;

impl HalvingDoubling {
    pub(crate) fn of(comm: &Communicator) -> Self {
        let rank = comm.rank();
        let size = comm.size();
        HalvingDoubling { rank, size, core: 1 << size.ilog2() }
    }

    /// Reduces a buffer over all ranks. `complete` finishes a fully reduced range.
    pub(crate) async fn all_reduce(
        &self,
        call: &Call<'_>,
        buffer: &Buffer,
        op: ReduceOp,
        complete: impl Fn(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let whole = 0..buffer.len();
        if self.rank >= self.core {
            let keeper = self.rank - self.core;
            call.send(keeper, FOLD, buffer, whole.clone())?.await?;
            return call.recv(keeper, UNFOLD, buffer, whole, ReceiveMode::Copy)?.await.map(drop);
        }
        let guest = Some(self.rank + self.core).filter(|guest| *guest < self.size);
        if let Some(guest) = guest {
            call.recv(guest, FOLD, buffer, whole.clone(), ReceiveMode::Reduce(op))?.await?;
        }
        self.halve(call, buffer, op).await?;
        complete(chunk(buffer.len(), self.core, self.rank))?;
        self.double(call, buffer).await?;
        if let Some(guest) = guest {
            call.send(guest, UNFOLD, buffer, whole)?.await?;
        }
        Ok(())
    }

    /// Returns the elements of the chunks of `distance` ranks around `rank`: an aligned group.
    fn group(&self, buffer: &Buffer, rank: usize, distance: usize) -> Range<usize> {
        let first = rank / distance * distance;
        let edge = |index| chunk(buffer.len(), self.core, index);
        edge(first).start..edge(first + distance - 1).end
    }

    async fn halve(&self, call: &Call<'_>, buffer: &Buffer, op: ReduceOp) -> Result<()> {
        let steps = self.core.ilog2() as usize;
        for step in 0..steps {
            let distance = self.core >> (step + 1);
            let partner = self.rank ^ distance;
            let send = call.send(partner, step, buffer, self.group(buffer, partner, distance))?;
            let mine = self.group(buffer, self.rank, distance);
            call.recv(partner, step, buffer, mine, ReceiveMode::Reduce(op))?.await?;
            send.await?;
        }
        Ok(())
    }

    async fn double(&self, call: &Call<'_>, buffer: &Buffer) -> Result<()> {
        let steps = self.core.ilog2() as usize;
        for step in 0..steps {
            let distance = 1 << step;
            let partner = self.rank ^ distance;
            let send = call.send(partner, steps + step, buffer, self.group(buffer, self.rank, distance))?;
            let theirs = self.group(buffer, partner, distance);
            call.recv(partner, steps + step, buffer, theirs, ReceiveMode::Copy)?.await?;
            send.await?;
        }
        Ok(())
    }
}
