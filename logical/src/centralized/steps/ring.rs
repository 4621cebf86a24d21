//! The ring: reduce-scatter and all-gather over the chunks of one buffer, one for each rank, in sequence or
//! separately.
//!
//! Every rank sends to the next and receives from the previous one, one chunk per step, n − 1 steps per half. A chunk
//! that is received in one step is sent in the next. Steps are numbered across both halves; in step s rank r sends
//! chunk r − s − 1 and receives chunk r − s − 2, modulo n. Large chunks are divided into segments that are forwarded
//! individually, so that a rank receives, reduces and sends at the same time, and does not wait for a whole chunk.

use crate::centralized::chunk::{TAGS, chunk};
use crate::{Buffer, Call, Communicator, DType, ReceiveMode, ReduceOp, Result};
use hexagram_physical::operation::Operation;
use std::collections::VecDeque;
use std::ops::Range;

/// Longest segment, in bytes: by measurement, short enough to overlap, long enough for a low overhead.
pub(crate) const SEGMENT: usize = 512 * 1024;
/// Number of receives posted ahead, so that early messages have a place.
pub(crate) const AHEAD: usize = 4;

/// Place of a rank in the ring, and division of a buffer.
pub(crate) struct RingLayout {
    rank: usize,
    size: usize,
    /// Place of each rank's chunk.
    chunks: Vec<Range<usize>>,
    /// Number of segments of every chunk.
    segments: usize,
}

impl RingLayout {
    /// Returns the ring over chunks whose lengths differ by one element at most.
    pub(crate) fn of(comm: &Communicator, buffer: &Buffer) -> Self {
        let size = comm.size();
        let chunks = (0..size).map(|index| chunk(buffer.len(), size, index)).collect();
        Self::over(comm, chunks, buffer.dtype())
    }

    /// Returns the ring over these chunks of a buffer.
    pub(crate) fn over(comm: &Communicator, chunks: Vec<Range<usize>>, dtype: DType) -> Self {
        let size = comm.size();
        let mut ring = RingLayout { rank: comm.rank(), size, chunks, segments: 1 };
        let most = TAGS / (2 * size);
        ring.segments = (ring.longest() * dtype.size()).div_ceil(SEGMENT).min(most).max(1);
        ring
    }

    /// Returns the number of elements of the longest chunk.
    pub(crate) fn longest(&self) -> usize {
        self.chunks.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Returns the place of the chunk `distance` places behind this rank.
    pub(crate) fn chunk(&self, distance: usize) -> Range<usize> {
        self.chunks[self.behind(distance)].clone()
    }

    pub(crate) fn next(&self) -> usize {
        (self.rank + 1) % self.size
    }

    pub(crate) fn previous(&self) -> usize {
        self.behind(1)
    }

    /// Returns the number of steps of one half.
    pub(crate) fn steps(&self) -> usize {
        self.size - 1
    }

    /// Returns the rank `distance` places behind this rank.
    fn behind(&self, distance: usize) -> usize {
        (self.rank + self.size - distance % self.size) % self.size
    }

    /// Reduces the chunks in the ring, and distributes them. Chunk c is combined in the order c + 1, c + 2, …, c of
    /// ranks, independent of arrival. `complete` is called with every fully reduced part of it, on rank c, before it
    /// is distributed.
    pub(crate) async fn all_reduce(
        &self,
        call: &Call<'_>,
        buffer: &Buffer,
        op: ReduceOp,
        complete: impl Fn(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let last = self.steps().checked_sub(1);
        RingSteps { ring: self, call, buffer, steps: 0..2 * self.steps(), op: Some(op) }
            .run(|step, range| if Some(step) == last { complete(range) } else { Ok(()) })
            .await
    }

    /// Distributes the chunks in the ring, from chunk r on rank r to all chunks on all ranks.
    pub(crate) async fn all_gather(&self, call: &Call<'_>, buffer: &Buffer) -> Result<()> {
        let steps = self.steps()..2 * self.steps();
        RingSteps { ring: self, call, buffer, steps, op: None }.run(|_, _| Ok(())).await
    }
}

/// Range of steps of the ring. Positions number the segments of all of them.
struct RingSteps<'a> {
    ring: &'a RingLayout,
    call: &'a Call<'a>,
    buffer: &'a Buffer,
    steps: Range<usize>,
    op: Option<ReduceOp>,
}

impl<'a> RingSteps<'a> {
    fn step(&self, position: usize) -> usize {
        self.steps.start + position / self.ring.segments
    }

    /// Returns the elements of the segment at a position, in the chunk `distance` places behind this rank.
    fn segment(&self, position: usize, distance: usize) -> Range<usize> {
        let segments = self.ring.segments;
        let whole = self.ring.chunk(distance);
        let part = chunk(whole.len(), segments, position % segments);
        whole.start + part.start..whole.start + part.end
    }

    fn send(&self, position: usize) -> Result<Operation<'a>> {
        let range = self.segment(position, self.step(position) + 1);
        self.call.send(self.ring.next(), position, self.buffer, range)
    }

    fn recv(&self, position: usize) -> Result<Operation<'a>> {
        let step = self.step(position);
        let range = self.segment(position, step + 2);
        let land =
            self.op.filter(|_| step < self.ring.steps()).map_or(ReceiveMode::Copy, ReceiveMode::Reduce);
        self.call.recv(self.ring.previous(), position, self.buffer, range, land)
    }

    async fn run(&self, received: impl Fn(usize, Range<usize>) -> Result<()>) -> Result<()> {
        let segments = self.ring.segments;
        let total = self.steps.len() * segments;
        // A place is written again n − 1 steps after it was sent, which must have completed by then.
        let lap = self.ring.steps() * segments;
        let mut sends = VecDeque::new();
        let mut sent = 0;
        let mut receives = VecDeque::new();
        let mut posted = 0;
        for position in 0..segments.min(total) {
            sends.push_back(self.send(position)?);
        }
        for position in 0..total {
            while posted < total.min(position + AHEAD.min(segments)) {
                while sent + lap <= posted {
                    if let Some(send) = sends.pop_front() {
                        send.await?;
                    }
                    sent += 1;
                }
                receives.push_back(self.recv(posted)?);
                posted += 1;
            }
            if let Some(receive) = receives.pop_front() {
                receive.await?;
            }
            let step = self.step(position);
            received(step, self.segment(position, step + 2))?;
            if position + segments < total {
                sends.push_back(self.send(position + segments)?);
            }
        }
        for send in sends {
            send.await?;
        }
        Ok(())
    }
}
