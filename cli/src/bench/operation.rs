//! Operations to measure: the division of their bytes, the traffic of a link, and the call.

use clap::ValueEnum;
use hexagram::codec::Codec;
use hexagram::decentralized::{Schedule, Topology};
use hexagram::encoding::Encoding;
use hexagram::{Buffer, Communicator, DType, Queue, ReduceOp, Result};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Root of a broadcast.
pub(super) const ROOT: usize = 0;

/// Topology that gives the gossip peers.
const SCHEDULE: Topology = Topology::OnePeerExponential;

/// An operation of nccl-tests, by the name of this library.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub(super) enum BenchOperation {
    /// Each rank gets the reduction of all buffers
    AllReduce,
    /// Each rank gets the blocks of all ranks
    AllGather,
    /// Each rank gets its block of the reduction
    ReduceScatter,
    /// Each rank gets the buffer of rank 0
    Broadcast,
    /// Each rank sends a different block to every rank
    AllToAll,
    /// Each rank sends to the next rank and receives from the previous one
    SendRecv,
    /// Each rank averages with one peer, which changes by step
    Gossip,
}

impl BenchOperation {
    /// Returns its name on the command line and in JSON.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns true if the operation reduces or averages.
    pub(super) fn reduces(self) -> bool {
        matches!(self, BenchOperation::AllReduce | BenchOperation::ReduceScatter)
    }

    /// Returns the elements per block, and the number of blocks that make up the size, for a size of `elements`.
    pub(super) fn blocks(self, elements: usize, ranks: usize) -> (usize, usize) {
        match self {
            BenchOperation::AllReduce
            | BenchOperation::Broadcast
            | BenchOperation::SendRecv
            | BenchOperation::Gossip => (elements, 1),
            BenchOperation::AllGather | BenchOperation::ReduceScatter | BenchOperation::AllToAll => {
                (elements / ranks, ranks)
            }
        }
    }

    /// Returns the bytes that the busiest link carries, for each byte of the size.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            BenchOperation::AllReduce => 2.0 * (n - 1.0) / n,
            BenchOperation::AllGather | BenchOperation::ReduceScatter | BenchOperation::AllToAll => {
                (n - 1.0) / n
            }
            BenchOperation::Broadcast | BenchOperation::SendRecv | BenchOperation::Gossip => 1.0,
        }
    }
}

/// Memory of the buffers that are measured.
#[derive(Clone, Copy)]
pub(super) struct BenchMemory<'a> {
    /// Queue that writes the buffers.
    pub(super) queue: &'a Queue,
    /// True for memory that other ranks of the host can read directly, if the transport supports it.
    pub(super) registered: bool,
}

/// One operation on buffers that are made once, for one size.
pub(super) struct BenchCall<'a> {
    comm: &'a Communicator,
    operation: BenchOperation,
    reduce: ReduceOp,
    /// Encoding of an all-reduce in low precision.
    pub(super) encoding: Option<Encoding>,
    /// Contribution of the rank; also the result of in-place operations.
    pub(super) input: Buffer,
    /// Result; empty for in-place operations.
    output: Buffer,
    /// Step of the next gossip.
    step: u64,
}

impl<'a> BenchCall<'a> {
    /// Makes the work for `blocks` blocks. All ranks make the same work in the same order.
    pub(super) fn new(
        comm: &'a Communicator,
        operation: BenchOperation,
        (dtype, reduce): (DType, ReduceOp),
        (block, blocks): (usize, usize),
        memory: BenchMemory<'_>,
        codec: Option<&Arc<dyn Codec>>,
    ) -> Result<Self> {
        let whole = block * blocks;
        let (input, output) = match operation {
            BenchOperation::AllReduce | BenchOperation::Broadcast | BenchOperation::Gossip => (whole, None),
            BenchOperation::AllGather => (block, Some(whole)),
            BenchOperation::ReduceScatter => (whole, Some(block)),
            BenchOperation::AllToAll | BenchOperation::SendRecv => (whole, Some(whole)),
        };
        let BenchMemory { queue, registered } = memory;
        let zeroed = |len| Buffer::zeroed_on(queue, dtype, len);
        let buffer = |len| if registered { comm.registered_on(queue, dtype, len) } else { zeroed(len) };
        let input = buffer(input)?;
        let output = output.map_or_else(|| zeroed(0), buffer)?;
        let encoding = codec.cloned().map(Encoding::new);
        Ok(BenchCall { comm, operation, reduce, encoding, input, output, step: 0 })
    }

    /// Runs the operation once, and waits until the device has done its part.
    pub(super) fn once(&mut self) -> Result<()> {
        self.enqueue()?;
        self.result().queue().check()
    }

    fn enqueue(&mut self) -> Result<()> {
        let BenchCall { comm, operation, reduce, encoding, input, output, step } = self;
        if let Some(encoding) = encoding {
            return comm.block_on(comm.all_reduce_encoded(input, *reduce, encoding));
        }
        match operation {
            BenchOperation::AllReduce => comm.block_on(comm.all_reduce(input, *reduce)),
            BenchOperation::AllGather => comm.block_on(comm.all_gather(input, output)),
            BenchOperation::ReduceScatter => comm.block_on(comm.reduce_scatter(input, output, *reduce)),
            BenchOperation::Broadcast => comm.block_on(comm.broadcast(input, ROOT)),
            BenchOperation::AllToAll => comm.block_on(comm.all_to_all(input, output)),
            BenchOperation::SendRecv => comm.block_on(pass_on(comm, input, output)),
            BenchOperation::Gossip => {
                *step += 1;
                comm.block_on(comm.gossip(input, &SCHEDULE, *step - 1))
            }
        }
    }

    /// Returns the distance of a rank to its peer in the next gossip: the number of places before it.
    pub(super) fn hop(&self) -> Result<usize> {
        let ranks = self.comm.size();
        let mixing = SCHEDULE.mixing(ranks, self.step)?;
        Ok(mixing.sources(0).first().map_or(0, |(peer, _)| ranks - peer))
    }

    /// Returns the result, once there is one.
    pub(super) fn result(&mut self) -> &mut Buffer {
        match self.operation {
            BenchOperation::AllReduce | BenchOperation::Broadcast | BenchOperation::Gossip => &mut self.input,
            _ => &mut self.output,
        }
    }
}

/// Sends to the next rank and receives from the previous one at the same time, since a large message may wait for its
/// receiver.
async fn pass_on(comm: &Communicator, sent: &Buffer, received: &mut Buffer) -> Result<()> {
    let rank = comm.rank();
    let size = comm.size();
    let mut send = pin!(comm.send(sent, (rank + 1) % size));
    let mut recv = pin!(comm.recv(received, (rank + size - 1) % size));
    let mut sending = true;
    let mut receiving = true;
    poll_fn(|context| {
        if sending && let Poll::Ready(outcome) = send.as_mut().poll(context) {
            outcome?;
            sending = false;
        }
        if receiving && let Poll::Ready(outcome) = recv.as_mut().poll(context) {
            outcome?;
            receiving = false;
        }
        if sending || receiving { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_factors_are_those_of_nccl_tests() {
        for (operation, blocks, factor) in [
            (BenchOperation::AllReduce, (1001, 1), 1.5),
            (BenchOperation::AllGather, (250, 4), 0.75),
            (BenchOperation::ReduceScatter, (250, 4), 0.75),
            (BenchOperation::AllToAll, (250, 4), 0.75),
            (BenchOperation::Broadcast, (1001, 1), 1.0),
            (BenchOperation::SendRecv, (1001, 1), 1.0),
            (BenchOperation::Gossip, (1001, 1), 1.0),
        ] {
            assert_eq!(operation.blocks(1001, 4), blocks, "{operation:?}");
            assert_eq!(operation.bus_factor(4), factor, "{operation:?}");
        }
    }
}
