//! The transfer of a native collective on registered memory: reads the peers' buffers piece by piece.

use super::region::Region;
use crate::backends::shm::bytes::SharedBytes;
use crate::backends::shm::collectives::ShmContext;
use crate::backends::shm::collectives::reduction::{CombineOrder, OrderedReduction};
use crate::backends::shm::collectives::running::{RunningCollective, StepOutcome};
use crate::backends::shm::control_block::{ControlMemory, Counter, PAYLOAD, SlotView};
use crate::error::{Error, Result};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::{Size, chunk};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Bytes that are reduced or copied before anything else is checked. A piece that a rank has just completed is still in
/// the shared cache when the peers copy it.
const PIECE: usize = 64 * 1024;
/// Sizes of a buffer, in bytes, for which results are copied past the caches. The owner of a chunk has read this rank's
/// contribution to it, so its core holds these cache lines; waiting for each of them would take twice as long as the copy. In
/// smaller buffers the fence takes longer; of larger ones few lines are still in a cache.
const PAST_CACHES: RangeInclusive<usize> = 32 << 10..=256 << 10;

/// Location of the registered buffer of a rank: its registration, and its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferLocation {
    pub(crate) index: u32,
    pub(crate) offset: usize,
}

/// Bytes of an encoded location.
const LOCATION: usize = 4 + 8;
const _: () = assert!(LOCATION <= PAYLOAD, "a source fits into a slot");

impl BufferLocation {
    /// Encodes the location.
    pub(crate) fn to_bytes(self) -> [u8; LOCATION] {
        let mut bytes = [0; LOCATION];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.offset as u64).to_le_bytes());
        bytes
    }

    /// Decodes the location from a peer's slot.
    pub(crate) fn of(slot_view: &SlotView<'_, impl ControlMemory>) -> Self {
        let mut bytes = [0; LOCATION];
        slot_view.load(&mut bytes);
        let mut index = [0; 4];
        let mut offset = [0; 8];
        index.copy_from_slice(&bytes[..4]);
        offset.copy_from_slice(&bytes[4..]);
        BufferLocation { index: u32::from_le_bytes(index), offset: u64::from_le_bytes(offset) as usize }
    }
}

/// Progress of an operation, in pieces.
pub(crate) struct RegisteredTransfer {
    /// Number of pieces reduced or copied into the part of this rank.
    own: u32,
    /// Number of pieces copied from each rank.
    copied: Vec<u32>,
    /// Location of each rank's buffer, and the region that it is in.
    sources: Vec<(BufferLocation, Option<Arc<Region>>)>,
}

impl RegisteredTransfer {
    /// Creates the transfer from the locations of all ranks' buffers.
    pub(crate) fn new(sources: Vec<BufferLocation>, context: &ShmContext) -> Self {
        let with_region =
            |(rank, source): (usize, BufferLocation)| (source, context.regions.of_peer(rank, source.index));
        let sources: Vec<_> = sources.into_iter().enumerate().map(with_region).collect();
        RegisteredTransfer { own: 0, copied: vec![0; sources.len()], sources }
    }

    /// Returns bytes of `rank`'s buffer. Fails if this rank does not have them mapped.
    fn peer<'a>(
        &'a self,
        context: &ShmContext,
        rank: usize,
        bytes: &Range<usize>,
    ) -> Result<SharedBytes<'a>> {
        let (BufferLocation { index, offset }, region) = &self.sources[rank];
        let start = offset.saturating_add(bytes.start);
        context.traffic.read(bytes.len());
        region.as_ref().and_then(|region| region.bytes(start, bytes.len())).ok_or_else(|| {
            let what =
                format!("rank {rank} passes memory of registration {index}, which this rank has dropped");
            Error::usage(what, "pass buffers that were registered together")
        })
    }

    /// Processes the next pieces. Returns `Moved(0)` if only peers can make progress, `Done` if nothing is left.
    pub(crate) fn advance(
        &mut self,
        running: &mut RunningCollective,
        context: &ShmContext,
    ) -> Result<StepOutcome> {
        match running.entry.label.fingerprint.operation {
            OperationKind::AllReduce => self.all_reduce(running, context),
            OperationKind::ReduceScatter => self.reduce_scatter(running, context),
            OperationKind::AllGather => self.all_gather(running, context),
            OperationKind::Broadcast => self.broadcast(running, context),
            _ => Ok(StepOutcome::Done(0)),
        }
    }

    /// Reduces a piece of this rank's chunk, and copies a complete piece of each peer's chunk.
    fn all_reduce(&mut self, running: &mut RunningCollective, context: &ShmContext) -> Result<StepOutcome> {
        let rank = context.rank;
        let ranks = context.size();
        let size = running.entry.label.fingerprint.dtype.size();
        let len = running.output.byte_len() / size;
        let part = |owner: usize| scaled(chunk(len, ranks, owner), size);
        let mut moved = 0;
        if let Some(piece) = piece(&part(rank), self.own) {
            let peers = self.peers(context, &piece)?;
            let to = &mut running.output.bytes_mut()[piece.clone()];
            ordered_reduction(&running.entry.label.fingerprint, context, rank).add(|peer| peers[peer], to);
            self.own += 1;
            context.mine().control_block().set_progress(
                Counter::Reduced,
                running.entry.lane,
                running.entry.round,
                self.own,
            );
            context.unpark_peers();
            moved += piece.len();
        }
        let mut left = piece_count(&part(rank)) > self.own;
        // Begins with the next rank, so that not all ranks read from the same one.
        for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
            let part = part(peer);
            let copied = self.copied[peer];
            let complete = context.segments[peer].control_block().progress(
                Counter::Reduced,
                running.entry.lane,
                running.entry.round,
            );
            if let Some(piece) = piece(&part, copied).filter(|_| copied < complete) {
                let result = self.peer(context, peer, &piece)?;
                let to = &mut running.output.bytes_mut()[piece.clone()];
                if PAST_CACHES.contains(&(len * size)) {
                    result.load_past_caches(to)
                } else {
                    result.load(to)
                }
                self.copied[peer] += 1;
                moved += piece.len();
            }
            left |= self.copied[peer] < piece_count(&part);
        }
        Ok(if left { StepOutcome::Moved(moved) } else { StepOutcome::Done(0) })
    }

    /// Returns the same range of the buffer of each rank, by rank; that of this rank is empty.
    fn peers<'a>(&'a self, context: &ShmContext, bytes: &Range<usize>) -> Result<Vec<SharedBytes<'a>>> {
        let own = context.rank;
        let bytes =
            |rank| if rank == own { Ok(SharedBytes::of(&[])) } else { self.peer(context, rank, bytes) };
        (0..context.size()).map(bytes).collect()
    }

    /// Reduces a piece of this rank's block of all inputs.
    fn reduce_scatter(
        &mut self,
        running: &mut RunningCollective,
        context: &ShmContext,
    ) -> Result<StepOutcome> {
        let rank = context.rank;
        let block = running.output.byte_len();
        let Some(piece) = piece(&(0..block), self.own) else { return Ok(StepOutcome::Done(0)) };
        let there = rank * block + piece.start..rank * block + piece.end;
        let mut all = self.peers(context, &there)?;
        let Some(input) = &running.input else { return Ok(StepOutcome::Done(0)) };
        all[rank] = SharedBytes::of(&input.bytes()[there]);
        let to = &mut running.output.bytes_mut()[piece.clone()];
        ordered_reduction(&running.entry.label.fingerprint, context, rank).store(|peer| all[peer], to);
        self.own += 1;
        Ok(StepOutcome::Moved(piece.len()))
    }

    /// Copies a piece of one rank's input.
    fn all_gather(&mut self, running: &mut RunningCollective, context: &ShmContext) -> Result<StepOutcome> {
        let rank = context.rank;
        let ranks = context.size();
        let block = running.output.byte_len() / ranks;
        for peer in (0..ranks).map(|distance| (rank + distance) % ranks) {
            let Some(piece) = piece(&(0..block), self.copied[peer]) else { continue };
            let from = match &running.input {
                Some(input) if peer == rank => SharedBytes::of(&input.bytes()[piece.clone()]),
                _ => self.peer(context, peer, &piece)?,
            };
            from.load(&mut running.output.bytes_mut()[peer * block..][piece.clone()]);
            self.copied[peer] += 1;
            return Ok(StepOutcome::Moved(piece.len()));
        }
        Ok(StepOutcome::Done(0))
    }

    /// Copies a piece of the root's buffer.
    fn broadcast(&mut self, running: &mut RunningCollective, context: &ShmContext) -> Result<StepOutcome> {
        let root = running.entry.root();
        let bytes = running.output.byte_len();
        let Some(piece) = piece(&(0..bytes), self.own).filter(|_| root != context.rank) else {
            return Ok(StepOutcome::Done(0));
        };
        self.peer(context, root, &piece)?.load(&mut running.output.bytes_mut()[piece.clone()]);
        self.own += 1;
        Ok(StepOutcome::Moved(piece.len()))
    }
}

/// Returns the reduction that computes `owner`'s part of the result.
pub(crate) fn ordered_reduction(
    fingerprint: &Fingerprint,
    context: &ShmContext,
    owner: usize,
) -> OrderedReduction {
    let Fingerprint { operation, dtype, reduce, count, .. } = *fingerprint;
    let op = reduce.unwrap_or(crate::ReduceOp::Sum);
    // In an all-reduce, every rank has divided its buffer before it entered.
    let divide_first =
        op == crate::ReduceOp::Mean && dtype.is_half() && operation == OperationKind::ReduceScatter;
    let bytes = count as usize * dtype.size();
    let tree = operation == OperationKind::AllReduce && Size::of(bytes, context.size()) == Size::Middle;
    let order = if tree { CombineOrder::Tree } else { CombineOrder::Ring };
    OrderedReduction { op, dtype, ranks: context.size(), owner, order, divide_first }
}

/// Converts a range of elements into a range of bytes.
pub(crate) fn scaled(elements: Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}

/// Returns the number of pieces of a part.
fn piece_count(part: &Range<usize>) -> u32 {
    part.len().div_ceil(PIECE) as u32
}

/// Returns piece `index` of a part, or `None` after its end.
fn piece(part: &Range<usize>, index: u32) -> Option<Range<usize>> {
    let start = part.start + index as usize * PIECE;
    (start < part.end).then(|| start..part.end.min(start + PIECE))
}
