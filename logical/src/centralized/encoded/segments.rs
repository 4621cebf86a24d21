//! Scatter-gather in segments. The [`Stages`] of a primitive process a segment; this module schedules them and moves
//! the messages.
//!
//! Rank r owns chunk r of the buffer. Every chunk is divided into k segments, which pass through three stages:
//!
//! ```text
//! contribute   on every rank    one message for each owner's segment         step s, to the owner
//! combine      on its owner     n messages become one                        step k + s, to everyone
//! finish       on every rank    the owner's message becomes the result
//! ```
//!
//! While segment s + 2·LAG is contributed, s + LAG is combined and s is finished, so that encoding, both directions
//! of the network and decoding overlap. Messages may be shorter than announced: only the sender knows their size.

use super::super::chunk::{TAGS, block, chunk};
use crate::{Buffer, Call, Communicator, DType, Part, ReceiveMode, Result};
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::operation::Operation;
use std::ops::Range;

/// Number of elements of a segment. By measurement: few enough that data that is decoded n times and encoded again
/// stays in the second-level cache, and enough that a message of signs is worth its system call.
const SEGMENT: usize = 64 * 1024;
/// Segments begin at multiples of this number of elements within their chunk, so that codecs in blocks get whole
/// blocks.
const BLOCK: usize = 2048;
/// Number of segments by which a stage is behind the previous one.
const LAG: usize = 2;
/// Number of segments in progress at a time.
const DEPTH: usize = 2 * LAG + 1;

/// Division of a buffer among ranks, and of the chunk of each rank into segments. Codecs see one segment at a time.
#[derive(Debug, Clone, Copy)]
pub struct Segments {
    len: usize,
    ranks: usize,
    /// Number of elements of a segment, except the last of a chunk.
    elements: usize,
}

impl Segments {
    /// Divides `len` elements among `ranks` ranks.
    ///
    /// The result depends on the length and the number of ranks only, never on the device of a rank: all ranks must
    /// divide alike.
    pub fn of(len: usize, ranks: usize) -> Self {
        let fewest = len.div_ceil(ranks).div_ceil(TAGS / 2);
        Segments { len, ranks, elements: fewest.next_multiple_of(BLOCK).max(SEGMENT) }
    }

    /// Returns the number of segments in every chunk, at least 1.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.ranks).div_ceil(self.elements).max(1)
    }

    /// Returns the elements of one segment, which may be empty.
    pub fn range(&self, owner: usize, index: usize) -> Range<usize> {
        let chunk = chunk(self.len, self.ranks, owner);
        let start = chunk.start.saturating_add(index.saturating_mul(self.elements)).min(chunk.end);
        start..start.saturating_add(self.elements).min(chunk.end)
    }

    /// Returns the number of elements of the longest segment.
    pub fn longest(&self) -> usize {
        self.len.div_ceil(self.ranks).min(self.elements)
    }
}

/// Segment of the chunk of one owner.
#[derive(Debug, Clone)]
pub(super) struct ChunkSegment {
    pub(super) owner: usize,
    pub(super) index: usize,
    pub(super) range: Range<usize>,
}

/// Work of a rank on each segment that is not empty. Messages are written to the beginning of a part; the methods
/// return their size in bytes.
pub(super) trait Stages {
    /// Returns the size of the largest message for `len` elements, in bytes.
    fn largest(&self, len: usize) -> usize;

    /// Writes the contribution of this rank to a segment; called once for each.
    fn contribute(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<usize>;

    /// Writes the combination of the contributions of all ranks, in their order; called for segments of this rank.
    fn combine(
        &self,
        call: &Call<'_>,
        segment: &ChunkSegment,
        contributions: &[Part<'_>],
        message: Part<'_>,
    ) -> Result<usize>;

    /// Stores the result in the message of the owner.
    fn finish(&self, call: &Call<'_>, segment: &ChunkSegment, message: Part<'_>) -> Result<()>;
}

/// Passes all segments of `buffer` through all stages, as the next operation of `comm`.
pub(super) async fn run(
    comm: &Communicator,
    fingerprint: Fingerprint,
    buffer: &Buffer,
    stages: &impl Stages,
) -> Result<()> {
    let cut = Segments::of(buffer.len(), comm.size());
    comm.operate(fingerprint, async |call| Pipeline::new(comm, call, buffer, cut, stages)?.run().await).await
}

struct Pipeline<'a, S> {
    call: &'a Call<'a>,
    stages: &'a S,
    cut: Segments,
    rank: usize,
    ranks: usize,
    /// Size of the largest message, in bytes.
    largest: usize,
    /// Slots of the segments in progress; segment s is in slot s modulo their number.
    slots: Vec<SegmentSlot<'a>>,
}

/// Segments of one index in progress: one for each of the n owners.
struct SegmentSlot<'a> {
    /// Message of this rank to each owner; the one to itself is in `contributed`.
    outgoing: Buffer,
    /// Contribution of each rank to the segment of this rank.
    contributed: Buffer,
    /// Message of each owner with its result.
    results: Buffer,
    sends: Vec<Operation<'a>>,
    /// Receives from each rank, in order; `None` for this rank.
    contributions: Vec<Option<Operation<'a>>>,
    outcomes: Vec<Option<Operation<'a>>>,
    /// Sizes in bytes of the contribution of this rank to its own segment, and of the result.
    own: (usize, usize),
}

impl<'a, S: Stages> Pipeline<'a, S> {
    fn new(
        comm: &Communicator,
        call: &'a Call<'a>,
        served: &Buffer,
        cut: Segments,
        stages: &'a S,
    ) -> Result<Self> {
        let rank = comm.rank();
        let ranks = comm.size();
        let largest = stages.largest(cut.longest());
        let messages = || served.zeroed_same_device(DType::U8, ranks.saturating_mul(largest));
        let slot = |_| -> Result<SegmentSlot<'a>> {
            let outgoing = messages()?;
            let contributed = messages()?;
            let results = messages()?;
            let sends = Vec::new();
            let contributions = Vec::new();
            let outcomes = Vec::new();
            Ok(SegmentSlot { outgoing, contributed, results, sends, contributions, outcomes, own: (0, 0) })
        };
        let slots = (0..cut.count().min(DEPTH)).map(slot).collect::<Result<_>>()?;
        Ok(Pipeline { call, stages, cut, rank, ranks, largest, slots })
    }

    async fn run(&mut self) -> Result<()> {
        let count = self.cut.count();
        for index in 0..count.min(DEPTH) {
            self.expect(index)?;
        }
        for index in 0..count + 2 * LAG {
            if index < count {
                self.contribute(index)?;
            }
            if let Some(behind) = index.checked_sub(LAG).filter(|behind| *behind < count) {
                self.combine(behind).await?;
            }
            if let Some(behind) = index.checked_sub(2 * LAG) {
                self.finish(behind).await?;
            }
        }
        Ok(())
    }

    fn segment(&self, owner: usize, index: usize) -> ChunkSegment {
        ChunkSegment { owner, index, range: self.cut.range(owner, index) }
    }

    fn slot(&mut self, index: usize) -> &mut SegmentSlot<'a> {
        let slots = self.slots.len();
        &mut self.slots[index % slots]
    }

    fn place(&self, rank: usize) -> Range<usize> {
        block(self.largest, rank)
    }

    /// Returns the first bytes of the place of a rank among messages.
    fn message(&self, rank: usize, bytes: usize) -> Range<usize> {
        let start = self.place(rank).start;
        start..start + bytes
    }

    /// Posts the receives of a segment.
    fn expect(&mut self, index: usize) -> Result<()> {
        let call = self.call;
        let rank = self.rank;
        let ranks = self.ranks;
        let count = self.cut.count();
        let largest = self.largest;
        let slot = self.slot(index);
        for from in 0..ranks {
            let receive = |step, buffer| -> Result<Option<Operation<'a>>> {
                if from == rank {
                    return Ok(None);
                }
                call.recv(from, step, buffer, block(largest, from), ReceiveMode::AtMost).map(Some)
            };
            slot.contributions.push(receive(index, &slot.contributed)?);
            slot.outcomes.push(receive(count + index, &slot.results)?);
        }
        Ok(())
    }

    /// Encodes and sends, to the next rank first, and to this one last.
    fn contribute(&mut self, index: usize) -> Result<()> {
        for distance in 1..=self.ranks {
            let owner = (self.rank + distance) % self.ranks;
            let segment = self.segment(owner, index);
            let place = self.place(owner);
            let call = self.call;
            let stages = self.stages;
            let rank = self.rank;
            let slot = self.slot(index);
            let buffer = if owner == rank { &slot.contributed } else { &slot.outgoing };
            let bytes = match segment.range.is_empty() {
                true => 0,
                false => stages.contribute(call, &segment, Part::of(buffer, place.clone()))?,
            };
            if owner == rank {
                slot.own.0 = bytes;
            } else {
                let message = place.start..place.start + bytes;
                slot.sends.push(call.send(owner, index, &slot.outgoing, message)?);
            }
            call.progress();
        }
        Ok(())
    }

    /// Waits for the contributions of the other ranks to the segment of this rank, and sends them the result.
    async fn combine(&mut self, index: usize) -> Result<()> {
        let contributions = std::mem::take(&mut self.slot(index).contributions);
        let own = self.slot(index).own.0;
        let mut messages = Vec::with_capacity(self.ranks);
        for (from, contribution) in contributions.into_iter().enumerate() {
            let bytes = match contribution {
                Some(contribution) => contribution.await?.bytes,
                None => own,
            };
            messages.push(self.message(from, bytes));
        }
        let segment = self.segment(self.rank, index);
        let place = self.place(self.rank);
        let call = self.call;
        let stages = self.stages;
        let rank = self.rank;
        let ranks = self.ranks;
        let count = self.cut.count();
        let slot = self.slot(index);
        let contributed: Vec<Part<'_>> =
            messages.into_iter().map(|place| Part::of(&slot.contributed, place)).collect();
        slot.own.1 = match segment.range.is_empty() {
            true => 0,
            false => stages.combine(call, &segment, &contributed, Part::of(&slot.results, place.clone()))?,
        };
        for distance in 1..ranks {
            let message = place.start..place.start + slot.own.1;
            let to = (rank + distance) % ranks;
            slot.sends.push(call.send(to, count + index, &slot.results, message)?);
        }
        call.progress();
        Ok(())
    }

    /// Waits for the results, and frees the slot for a later segment.
    async fn finish(&mut self, index: usize) -> Result<()> {
        let slot = self.slot(index);
        let outcomes = std::mem::take(&mut slot.outcomes);
        let sends = std::mem::take(&mut slot.sends);
        let own = slot.own.1;
        for (owner, outcome) in outcomes.into_iter().enumerate() {
            let bytes = match outcome {
                Some(outcome) => outcome.await?.bytes,
                None => own,
            };
            let segment = self.segment(owner, index);
            let message = self.message(owner, bytes);
            if !segment.range.is_empty() {
                let call = self.call;
                let stages = self.stages;
                stages.finish(call, &segment, Part::of(&self.slot(index).results, message))?;
                call.progress();
            }
        }
        for send in sends {
            send.await?;
        }
        let later = index + self.slots.len();
        if later < self.cut.count() { self.expect(later) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_chunk_in_order() {
        for ranks in [1, 2, 3, 8, 100] {
            for len in [0, 1, 7, SEGMENT, SEGMENT * ranks + 1, 5 * SEGMENT + 3] {
                let segments = Segments::of(len, ranks);
                let mut end = 0;
                for owner in 0..ranks {
                    for index in 0..segments.count() {
                        let range = segments.range(owner, index);
                        assert!(range.is_empty() || range.start == end, "{len} among {ranks}");
                        assert!(range.len() <= segments.longest());
                        end = end.max(range.end);
                    }
                }
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn the_largest_buffers_have_segments_that_tags_can_tell_apart() {
        for len in [1 << 33, (1 << 48) + 12345, usize::MAX] {
            let segments = Segments::of(len, 3);
            assert!(2 * segments.count() <= TAGS, "{len}");
            let last = segments.range(2, segments.count() - 1);
            assert!(last.end == len && !last.is_empty() && last.len() <= segments.longest());
            assert!(segments.elements.is_multiple_of(BLOCK));
        }
    }
}
