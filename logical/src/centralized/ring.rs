//! The two halves of the ring: reduce-scatter and all-gather over the chunks of one buffer.
//!
//! Every rank sends to the next and receives from the previous, one chunk a step, n − 1 steps a half. A chunk that is
//! received in one step is sent in the next.

use super::share::chunk;
use crate::{Buffer, Call, Communicator, Land, ReduceOp, Result};

/// The neighbours of a rank, and the chunks by their distance behind it.
pub(super) struct Ring {
    rank: usize,
    size: usize,
}

impl Ring {
    pub(super) fn of(comm: &Communicator) -> Self {
        Ring { rank: comm.rank(), size: comm.size() }
    }

    pub(super) fn next(&self) -> usize {
        (self.rank + 1) % self.size
    }

    pub(super) fn previous(&self) -> usize {
        self.behind(1)
    }

    /// Steps of one half.
    pub(super) fn steps(&self) -> usize {
        self.size - 1
    }

    /// The rank, or chunk, `distance` places behind this rank.
    pub(super) fn behind(&self, distance: usize) -> usize {
        (self.rank + self.size - distance % self.size) % self.size
    }

    /// Reduces the chunks around the ring; afterwards chunk r is complete on rank r, the others hold partial results.
    ///
    /// Chunk c is combined in the order c + 1, c + 2, …, c of ranks, whatever arrives when.
    pub(super) async fn reduce_scatter(&self, call: &Call<'_>, buffer: &Buffer, op: ReduceOp) -> Result<()> {
        let land = Land::Reduce(op);
        for step in 0..self.steps() {
            let (out, into) = (self.behind(step + 1), self.behind(step + 2));
            let send = call.send(self.next(), step, buffer, chunk(buffer.len(), self.size, out))?;
            let into = chunk(buffer.len(), self.size, into);
            call.recv(self.previous(), step, buffer, into, land)?.await?;
            send.await?;
        }
        Ok(())
    }

    /// Spreads the chunks around the ring, from chunk r on rank r to all chunks everywhere. Steps count from
    /// `first_step`.
    pub(super) async fn all_gather(&self, call: &Call<'_>, buffer: &Buffer, first_step: usize) -> Result<()> {
        for step in 0..self.steps() {
            let (out, into) = (self.behind(step), self.behind(step + 1));
            let tag = first_step + step;
            let send = call.send(self.next(), tag, buffer, chunk(buffer.len(), self.size, out))?;
            let into = chunk(buffer.len(), self.size, into);
            call.recv(self.previous(), tag, buffer, into, Land::Copy)?.await?;
            send.await?;
        }
        Ok(())
    }
}
