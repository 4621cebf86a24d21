//! The long part of a native collective on registered memory: reading the peers' buffers, piece by piece.

use super::board::{Counter, Notice, PAYLOAD, Page};
use super::bytes::SharedBytes;
use super::collectives::Surroundings;
use super::combine::{Combination, Order};
use super::job::{Job, Step};
use super::region::Region;
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::native::{Size, chunk};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are reduced or copied before anything else is looked at. A piece that a rank has just completed is still
/// in the shared cache when the peers copy it.
const PIECE: usize = 64 * 1024;

/// Where a rank's registered buffer is: in which of its regions, and from which byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) index: u32,
    pub(super) offset: usize,
}

const SOURCE: usize = 4 + 8;
const _: () = assert!(SOURCE <= PAYLOAD, "a source fits into a slot");

impl Source {
    pub(super) fn to_bytes(self) -> [u8; SOURCE] {
        let mut bytes = [0; SOURCE];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.offset as u64).to_le_bytes());
        bytes
    }

    pub(super) fn of(notice: &Notice<'_, impl Page>) -> Self {
        let mut bytes = [0; SOURCE];
        notice.load(&mut bytes);
        let mut index = [0; 4];
        let mut offset = [0; 8];
        index.copy_from_slice(&bytes[..4]);
        offset.copy_from_slice(&bytes[4..]);
        Source { index: u32::from_le_bytes(index), offset: u64::from_le_bytes(offset) as usize }
    }
}

/// How far an operation is, in pieces.
pub(super) struct Work {
    /// Reduced or copied into this rank's own part.
    own: u32,
    /// Copied from each rank.
    copied: Vec<u32>,
    /// Where each rank's buffer is, and the memory that it is in.
    sources: Vec<(Source, Option<Arc<Region>>)>,
}

impl Work {
    pub(super) fn new(sources: Vec<Source>, around: &Surroundings) -> Self {
        let with_region = |(rank, source): (usize, Source)| (source, around.regions.of(rank, source.index));
        let sources: Vec<_> = sources.into_iter().enumerate().map(with_region).collect();
        Work { own: 0, copied: vec![0; sources.len()], sources }
    }

    /// Bytes of `rank`'s buffer.
    fn peer<'a>(
        &'a self,
        around: &Surroundings,
        rank: usize,
        bytes: &Range<usize>,
    ) -> Result<SharedBytes<'a>> {
        let (Source { index, offset }, region) = &self.sources[rank];
        let start = offset.saturating_add(bytes.start);
        around.traffic.read(bytes.len());
        region.as_ref().and_then(|region| region.bytes(start, bytes.len())).ok_or_else(|| {
            let what =
                format!("rank {rank} passes memory of registration {index}, which this rank has dropped");
            Error::usage(what, "pass buffers that were registered together")
        })
    }

    /// Does the next pieces. `Moved(0)` when only peers can help, `Done` when nothing is left.
    pub(super) fn advance(&mut self, job: &mut Job, around: &Surroundings) -> Result<Step> {
        match job.arrival.label.fingerprint.operation {
            OperationKind::AllReduce => self.all_reduce(job, around),
            OperationKind::ReduceScatter => self.reduce_scatter(job, around),
            OperationKind::AllGather => self.all_gather(job, around),
            OperationKind::Broadcast => self.broadcast(job, around),
            _ => Ok(Step::Done(0)),
        }
    }

    fn all_reduce(&mut self, job: &mut Job, around: &Surroundings) -> Result<Step> {
        let rank = around.rank;
        let ranks = around.size();
        let size = job.arrival.label.fingerprint.dtype.size();
        let len = job.output.bytes().len() / size;
        let part = |owner: usize| scaled(chunk(len, ranks, owner), size);
        let mut moved = 0;
        if let Some(piece) = piece(&part(rank), self.own) {
            let peers = self.peers(around, &piece)?;
            let to = &mut job.output.bytes_mut()[piece.clone()];
            combination(&job.arrival.label.fingerprint, around, rank).add(|peer| peers[peer], to);
            self.own += 1;
            around.mine().board().set_count(Counter::Reduced, job.arrival.lane, job.arrival.round, self.own);
            around.nudge_all();
            moved += piece.len();
        }
        let mut left = piece_count(&part(rank)) > self.own;
        // The next rank first, so that not everyone reads from the same one.
        for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
            let part = part(peer);
            let copied = self.copied[peer];
            let complete =
                around.segments[peer].board().count(Counter::Reduced, job.arrival.lane, job.arrival.round);
            if let Some(piece) = piece(&part, copied).filter(|_| copied < complete) {
                self.peer(around, peer, &piece)?.load(&mut job.output.bytes_mut()[piece.clone()]);
                self.copied[peer] += 1;
                moved += piece.len();
            }
            left |= self.copied[peer] < piece_count(&part);
        }
        Ok(if left { Step::Moved(moved) } else { Step::Done(0) })
    }

    /// The same bytes of everyone's buffer, by rank; this rank's own place is empty.
    fn peers<'a>(&'a self, around: &Surroundings, bytes: &Range<usize>) -> Result<Vec<SharedBytes<'a>>> {
        let own = around.rank;
        let bytes =
            |rank| if rank == own { Ok(SharedBytes::of(&[])) } else { self.peer(around, rank, bytes) };
        (0..around.size()).map(bytes).collect()
    }

    fn reduce_scatter(&mut self, job: &mut Job, around: &Surroundings) -> Result<Step> {
        let rank = around.rank;
        let block = job.output.bytes().len();
        let Some(piece) = piece(&(0..block), self.own) else { return Ok(Step::Done(0)) };
        let there = rank * block + piece.start..rank * block + piece.end;
        let mut all = self.peers(around, &there)?;
        let Some(input) = &job.input else { return Ok(Step::Done(0)) };
        all[rank] = SharedBytes::of(&input.bytes()[there]);
        let to = &mut job.output.bytes_mut()[piece.clone()];
        combination(&job.arrival.label.fingerprint, around, rank).store(|peer| all[peer], to);
        self.own += 1;
        Ok(Step::Moved(piece.len()))
    }

    fn all_gather(&mut self, job: &mut Job, around: &Surroundings) -> Result<Step> {
        let rank = around.rank;
        let ranks = around.size();
        let block = job.output.bytes().len() / ranks;
        for peer in (0..ranks).map(|distance| (rank + distance) % ranks) {
            let Some(piece) = piece(&(0..block), self.copied[peer]) else { continue };
            let from = match &job.input {
                Some(input) if peer == rank => SharedBytes::of(&input.bytes()[piece.clone()]),
                _ => self.peer(around, peer, &piece)?,
            };
            from.load(&mut job.output.bytes_mut()[peer * block..][piece.clone()]);
            self.copied[peer] += 1;
            return Ok(Step::Moved(piece.len()));
        }
        Ok(Step::Done(0))
    }

    fn broadcast(&mut self, job: &mut Job, around: &Surroundings) -> Result<Step> {
        let root = job.arrival.root();
        let bytes = job.output.bytes().len();
        let Some(piece) = piece(&(0..bytes), self.own).filter(|_| root != around.rank) else {
            return Ok(Step::Done(0));
        };
        self.peer(around, root, &piece)?.load(&mut job.output.bytes_mut()[piece.clone()]);
        self.own += 1;
        Ok(Step::Moved(piece.len()))
    }
}

/// How the contributions to `owner`'s part become one.
pub(super) fn combination(fingerprint: &Fingerprint, around: &Surroundings, owner: usize) -> Combination {
    let Fingerprint { operation, dtype, reduce, count, .. } = *fingerprint;
    let op = reduce.unwrap_or(crate::ReduceOp::Sum);
    // Of an all-reduce, everyone has divided its buffer before it began.
    let divide_first =
        op == crate::ReduceOp::Mean && dtype.is_half() && operation == OperationKind::ReduceScatter;
    let bytes = count as usize * dtype.size();
    let tree = operation == OperationKind::AllReduce && Size::of(bytes, around.size()) == Size::Middle;
    let order = if tree { Order::Tree } else { Order::Ring };
    Combination { op, dtype, ranks: around.size(), owner, order, divide_first }
}

pub(super) fn scaled(elements: Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}

fn piece_count(part: &Range<usize>) -> u32 {
    part.len().div_ceil(PIECE) as u32
}

/// Piece `index` of a part; `None` behind its end.
fn piece(part: &Range<usize>, index: u32) -> Option<Range<usize>> {
    let start = part.start + index as usize * PIECE;
    (start < part.end).then(|| start..part.end.min(start + PIECE))
}
