//! The primitives on plain slices, as blocking calls, for programs that keep their numbers in a `Vec`.
//!
//! An operation borrows the elements until it returns; they are not copied.

use crate::codec::LinearCodec;
use crate::decentralized::{GossipOptions, Schedule};
use crate::encoding::Encoding;
use crate::{Buffer, Communicator, Element, ReduceOp, Result};

/// Primitives of a communicator as blocking calls on slices. Errors, bytes and determinism are those of the method of
/// the same name on [`Communicator`].
///
/// ```
/// use hexagram_logical::TransportKind;
/// use hexagram_logical::testing::spawn;
///
/// let gathered = spawn(TransportKind::Thread, 2, |comm| {
///     let mut all = [0i64; 2];
///     comm.blocking().all_gather(&[10 + comm.rank() as i64], &mut all)?;
///     Ok(all)
/// });
/// assert_eq!(gathered.unwrap(), [[10, 11]; 2]);
/// ```
pub struct Blocking<'a> {
    comm: &'a Communicator,
}

macro_rules! doc_errors {
    ($($name:literal)*) => { concat!("\n\n# Errors\nAs [`Communicator::", $($name,)* "`].") };
}

impl Communicator {
    /// Returns the blocking form of the primitives, on plain slices.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking { comm: self }
    }
}

impl Blocking<'_> {
    /// Reduces over all ranks, in place: `elements ← op over ranks`.
    #[doc = doc_errors!("all_reduce")]
    pub fn all_reduce<T: Element>(&self, elements: &mut [T], op: ReduceOp) -> Result<()> {
        self.comm.all_reduce_blocking(elements, op)
    }

    /// Reduces over all ranks by a scatter-gather of encoded chunks, in place.
    #[doc = doc_errors!("all_reduce_encoded")]
    pub fn all_reduce_encoded(
        &self,
        elements: &mut [f32],
        op: ReduceOp,
        encoding: &mut Encoding,
    ) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(elements, |buffer| comm.block_on(comm.all_reduce_encoded(buffer, op, encoding)))
    }

    /// Reduces over all ranks by an all-gather of small messages, in place.
    #[doc = doc_errors!("all_reduce_sparse")]
    pub fn all_reduce_sparse(
        &self,
        elements: &mut [f32],
        op: ReduceOp,
        encoding: &mut Encoding,
    ) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(elements, |buffer| comm.block_on(comm.all_reduce_sparse(buffer, op, encoding)))
    }

    /// Reduces messages that add up while they are encoded, in place.
    #[doc = doc_errors!("all_reduce_linear")]
    pub fn all_reduce_linear(
        &self,
        elements: &mut [f32],
        op: ReduceOp,
        encoding: &mut Encoding<dyn LinearCodec>,
    ) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(elements, |buffer| comm.block_on(comm.all_reduce_linear(buffer, op, encoding)))
    }

    /// Replaces each element by the sign of the majority of ranks, in place.
    #[doc = doc_errors!("majority_vote")]
    pub fn majority_vote(&self, elements: &mut [f32]) -> Result<()> {
        self.lend_mut(elements, |buffer| self.comm.block_on(self.comm.majority_vote(buffer)))
    }

    /// Copies the elements of rank `root` to every rank.
    #[doc = doc_errors!("broadcast")]
    pub fn broadcast<T: Element>(&self, elements: &mut [T], root: usize) -> Result<()> {
        self.lend_mut(elements, |buffer| self.comm.block_on(self.comm.broadcast(buffer, root)))
    }

    /// Reduces over all ranks to rank `root`, in place; the elements of other ranks are unchanged.
    #[doc = doc_errors!("reduce")]
    pub fn reduce<T: Element>(&self, elements: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        self.lend_mut(elements, |buffer| self.comm.block_on(self.comm.reduce(buffer, op, root)))
    }

    /// Gathers `mine` of rank r as block r of `all`, on the root. Only the root passes `all`.
    #[doc = doc_errors!("gather")]
    pub fn gather<T: Element>(&self, mine: &[T], all: Option<&mut [T]>, root: usize) -> Result<()> {
        let comm = self.comm;
        self.lend(mine, |mine| match all {
            Some(all) => self.lend_mut(all, |all| comm.block_on(comm.gather(mine, Some(all), root))),
            None => comm.block_on(comm.gather(mine, None, root)),
        })
    }

    /// Scatters block r of `all` on the root to `mine` of rank r. Only the root passes `all`.
    #[doc = doc_errors!("scatter")]
    pub fn scatter<T: Element>(&self, all: Option<&[T]>, mine: &mut [T], root: usize) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(mine, |mine| match all {
            Some(all) => self.lend(all, |all| comm.block_on(comm.scatter(Some(all), mine, root))),
            None => comm.block_on(comm.scatter(None, mine, root)),
        })
    }

    /// Gathers `mine` of rank r as block r of `all`, on every rank.
    #[doc = doc_errors!("all_gather")]
    pub fn all_gather<T: Element>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        self.pair(mine, all, |comm, mine, all| comm.block_on(comm.all_gather(mine, all)))
    }

    /// Reduces block r of `all` over all ranks to `mine` of rank r.
    #[doc = doc_errors!("reduce_scatter")]
    pub fn reduce_scatter<T: Element>(&self, all: &[T], mine: &mut [T], op: ReduceOp) -> Result<()> {
        self.pair(all, mine, |comm, all, mine| comm.block_on(comm.reduce_scatter(all, mine, op)))
    }

    /// Gathers `counts[r]` elements of each rank r, on every rank.
    #[doc = doc_errors!("all_gather_v")]
    pub fn all_gather_v<T: Element>(&self, mine: &[T], all: &mut [T], counts: &[usize]) -> Result<()> {
        self.pair(mine, all, |comm, mine, all| comm.block_on(comm.all_gather_v(mine, all, counts)))
    }

    /// Reduces `counts[r]` elements of `all` over all ranks to `mine` of each rank r.
    #[doc = doc_errors!("reduce_scatter_v")]
    pub fn reduce_scatter_v<T: Element>(
        &self,
        all: &[T],
        counts: &[usize],
        mine: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.pair(all, mine, |comm, all, mine| comm.block_on(comm.reduce_scatter_v(all, counts, mine, op)))
    }

    /// Sends block r of `sent` on rank s to block s of `received` on rank r.
    #[doc = doc_errors!("all_to_all")]
    pub fn all_to_all<T: Element>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        self.pair(sent, received, |comm, sent, received| comm.block_on(comm.all_to_all(sent, received)))
    }

    /// Sends different numbers of elements from every rank to every other.
    #[doc = doc_errors!("all_to_all_v")]
    pub fn all_to_all_v<T: Element>(
        &self,
        sent: &[T],
        send_counts: &[usize],
        received: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        self.pair(sent, received, |comm, sent, received| {
            comm.block_on(comm.all_to_all_v(sent, send_counts, received, recv_counts))
        })
    }

    /// Mixes with neighbours, in place: `elements ← Σ weight × elements`, with the weights of `schedule` at `step`.
    #[doc = doc_errors!("gossip")]
    pub fn gossip<T: Element>(&self, elements: &mut [T], schedule: &dyn Schedule, step: u64) -> Result<()> {
        self.lend_mut(elements, |buffer| self.comm.block_on(self.comm.gossip(buffer, schedule, step)))
    }

    /// Mixes elements, and `weight` with them, over directed graphs.
    #[doc = doc_errors!("push_sum")]
    pub fn push_sum<T: Element>(
        &self,
        elements: &mut [T],
        weight: &mut f64,
        schedule: &dyn Schedule,
        step: u64,
    ) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(elements, |buffer| comm.block_on(comm.push_sum(buffer, weight, schedule, step)))
    }

    /// Mixes with neighbours by encoded messages.
    #[doc = doc_errors!("gossip_encoded")]
    pub fn gossip_encoded(
        &self,
        elements: &mut [f32],
        schedule: &dyn Schedule,
        step: u64,
        encoding: &mut Encoding,
        options: GossipOptions,
    ) -> Result<()> {
        let comm = self.comm;
        self.lend_mut(elements, |buffer| {
            comm.block_on(comm.gossip_encoded(buffer, schedule, step, encoding, options))
        })
    }

    /// Returns after every rank has called it.
    #[doc = doc_errors!("barrier")]
    pub fn barrier(&self) -> Result<()> {
        self.comm.block_on(self.comm.barrier())
    }

    /// Sends to rank `to`.
    #[doc = doc_errors!("send")]
    pub fn send<T: Element>(&self, elements: &[T], to: usize) -> Result<()> {
        self.lend(elements, |buffer| self.comm.block_on(self.comm.send(buffer, to)))
    }

    /// Receives the next message from rank `from`.
    #[doc = doc_errors!("recv")]
    pub fn recv<T: Element>(&self, elements: &mut [T], from: usize) -> Result<()> {
        self.lend_mut(elements, |buffer| self.comm.block_on(self.comm.recv(buffer, from)))
    }

    fn pair<T: Element>(
        &self,
        from: &[T],
        to: &mut [T],
        work: impl FnOnce(&Communicator, &Buffer, &mut Buffer) -> Result<()>,
    ) -> Result<()> {
        self.lend(from, |from| self.lend_mut(to, |to| work(self.comm, from, to)))
    }

    /// Lends elements to `work`: in place, except for a communicator under test on a different device.
    fn lend<T: Element>(&self, elements: &[T], work: impl FnOnce(&Buffer) -> Result<()>) -> Result<()> {
        match self.comm.queue_under_test() {
            None => Buffer::lend(elements, work),
            Some(queue) => work(&Buffer::from_slice_on(&queue, elements)?),
        }
    }

    /// Lends elements to `work`, which may change them; as [`Blocking::lend`].
    pub(crate) fn lend_mut<T: Element>(
        &self,
        elements: &mut [T],
        work: impl FnOnce(&mut Buffer) -> Result<()>,
    ) -> Result<()> {
        let Some(queue) = self.comm.queue_under_test() else { return Buffer::lend_mut(elements, work) };
        let mut buffer = Buffer::from_slice_on(&queue, elements)?;
        let outcome = work(&mut buffer);
        let copied = buffer.host().map(|result| elements.copy_from_slice(&result));
        outcome.and(copied)
    }
}
