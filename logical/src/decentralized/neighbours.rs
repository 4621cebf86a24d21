//! Messages of one rank in one step of a schedule: to all its destinations and from all its sources at the same time.
//!
//! ```text
//! to each destination, from each source:    segment 0, 1, …, k − 1 of the buffer, as steps 0, 1, …, k − 1
//! ```

use super::mixing::Mixing;
use crate::centralized::{AHEAD, SEGMENT, TAGS, chunk};
use crate::{Buffer, Call, Communicator, DType, Part, ReceiveMode, Result};
use hexagram_physical::operation::Operation;
use std::collections::VecDeque;
use std::ops::Range;

/// Step of a number that is sent in addition to the buffer: after all segments.
pub(super) const BESIDE: usize = TAGS - 1;

/// The destinations and sources of this rank.
pub(super) struct Neighbours<'a> {
    comm: &'a Communicator,
    call: &'a Call<'a>,
    mixing: &'a Mixing,
}

/// Messages of one step in transit.
pub(super) struct StepMessages<'a> {
    sends: Vec<Operation<'a>>,
    /// Receives, in the order of sources.
    receives: VecDeque<Operation<'a>>,
}

impl StepMessages<'_> {
    /// Waits for the message of the next source, and returns its size in bytes; 0 after the last.
    pub(super) async fn next(&mut self) -> Result<usize> {
        match self.receives.pop_front() {
            Some(receive) => Ok(receive.await?.bytes),
            None => Ok(0),
        }
    }

    /// Waits for the remaining messages, and until those of this rank have been sent.
    pub(super) async fn land(self) -> Result<()> {
        for receive in self.receives {
            receive.await?;
        }
        for send in self.sends {
            send.await?;
        }
        Ok(())
    }
}

impl<'a> Neighbours<'a> {
    pub(super) fn of(comm: &'a Communicator, call: &'a Call<'a>, mixing: &'a Mixing) -> Self {
        Neighbours { comm, call, mixing }
    }

    pub(super) fn sources(&self) -> &'a [(usize, f64)] {
        self.mixing.sources(self.comm.rank())
    }

    /// Creates a buffer for each source, on the device of `served`.
    pub(super) fn inboxes(&self, served: &Buffer, dtype: DType, len: usize) -> Result<Vec<Buffer>> {
        self.sources().iter().map(|_| served.zeroed_same_device(dtype, len)).collect()
    }

    /// Starts sending `part` to every destination and receiving into `place` of every inbox.
    pub(super) fn post(
        &self,
        step: usize,
        part: Part<'_>,
        inboxes: &[Buffer],
        place: Range<usize>,
        land: ReceiveMode,
    ) -> Result<StepMessages<'a>> {
        let Part { buffer, range } = part;
        let to = self.mixing.destinations(self.comm.rank()).iter();
        let sends = to.map(|to| self.call.send(*to, step, buffer, range.clone())).collect::<Result<_>>()?;
        let from = self.sources().iter().zip(inboxes);
        let receives = from
            .map(|((from, _), inbox)| self.call.recv(*from, step, inbox, place.clone(), land))
            .collect::<Result<_>>()?;
        Ok(StepMessages { sends, receives })
    }

    /// Computes `xᵢ ← Σⱼ wᵢⱼ xⱼ` in segments: some are in transit while an arrived one is added.
    pub(super) async fn mix(&self, buffer: &Buffer) -> Result<()> {
        let len = buffer.len();
        let dtype = buffer.dtype();
        let segments = (len * dtype.size()).div_ceil(SEGMENT).clamp(1, BESIDE);
        let room = len.div_ceil(segments);
        let inboxes = self.inboxes(buffer, dtype, room * AHEAD.min(segments))?;
        let slot = |position: usize| {
            let start = position % AHEAD * room;
            start..start + chunk(len, segments, position).len()
        };
        let mut flights = VecDeque::new();
        let mut posted = 0;
        for position in 0..segments {
            while posted < segments.min(position + AHEAD) {
                let part = Part::of(buffer, chunk(len, segments, posted));
                flights.push_back(self.post(posted, part, &inboxes, slot(posted), ReceiveMode::Copy)?);
                posted += 1;
            }
            if let Some(flight) = flights.pop_front() {
                flight.land().await?;
            }
            self.add_up(&inboxes, slot(position), buffer, chunk(len, segments, position))?;
        }
        Ok(())
    }

    /// Adds a segment, in the order of ranks.
    pub(super) fn add_up(
        &self,
        inboxes: &[Buffer],
        slot: Range<usize>,
        to: &Buffer,
        range: Range<usize>,
    ) -> Result<()> {
        let views: Vec<_> = inboxes.iter().map(|inbox| inbox.read(slot.clone())).collect::<Result<_>>()?;
        let rank = self.comm.rank();
        let mut arrived = views.iter();
        let mut term = |(from, weight)| (weight, if from == rank { None } else { arrived.next() });
        let terms: Vec<_> = self.mixing.row(rank).into_iter().map(&mut term).collect();
        to.write(range)?.weighted_sum(&terms)
    }
}
