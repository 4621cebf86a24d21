//! Collectives that a backend executes itself, because it is more efficient than a sequence of messages: shared
//! memory reads the buffers of peers directly; MPI and NCCL have their own algorithms.
//!
//! The fingerprint of the label defines the operation; the views are the buffers of this rank:
//!
//! | operation | input | output |
//! |---|---|---|
//! | barrier | – | empty |
//! | all-reduce, broadcast | – (in place) | the whole buffer |
//! | all-gather | this rank's block | all blocks |
//! | reduce-scatter | all blocks | this rank's block |
//!
//! [`ReduceOp::Mean`](crate::ReduceOp::Mean) is done here completely: the sum divided by the number of ranks, of 16-bit
//! floats the sum of contributions that were divided before.

use super::fingerprint::{Fingerprint, OperationKind};
use super::message::Label;
use super::tickets::Ticket;
use crate::error::{Error, Result};
use crate::memory::{ReadView, WriteView};
use crate::system::environment::variable;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a rank posts to begin a native collective over shared memory, in addition to its contribution or the 12
/// bytes of its place.
pub const NOTICE_BYTES: usize = 40;

/// Size classes of an all-reduce, which determine its best algorithm, and, for native collectives, the order in which
/// contributions are combined. bench/results/measurements.md has the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Every rank reduces all contributions, in the order of the ring.
    Small,
    /// By halving, in the order of a balanced tree: ranks that differ in the highest bit first.
    Middle,
    /// Around a ring: chunk c in the order of ranks c + 1, c + 2, …, c.
    Large,
}

impl Size {
    /// Largest size of all contributions together, in bytes, that counts as small.
    pub const SMALL: usize = 64 * 1024;
    /// Largest contribution, in bytes, that is not large.
    pub const MIDDLE: usize = 256 * 1024;

    /// Returns the class of a contribution of `bytes` bytes, among `ranks` ranks.
    pub fn of(bytes: usize, ranks: usize) -> Self {
        match bytes {
            _ if bytes.saturating_mul(ranks) <= Self::SMALL => Size::Small,
            _ if bytes <= Self::MIDDLE => Size::Middle,
            _ => Size::Large,
        }
    }
}

/// Returns the range of elements in chunk `index` when `len` elements are shared among `ranks`: sizes differ by one at
/// most.
pub fn chunk(len: usize, ranks: usize, index: usize) -> Range<usize> {
    let edge = |index: usize| match len.checked_mul(index) {
        Some(product) => product / ranks,
        None => (len as u128 * index as u128 / ranks as u128) as usize,
    };
    edge(index)..edge(index + 1)
}

/// Returns the bytes, without headers, that `rank` would send in a native collective of `ranks` if messages executed
/// it, so that algorithms can be compared on any transport. The sum over ranks is exact. If an all-reduce halves
/// among a number of ranks that is not a power of two, or halves an odd number, single ranks send more or less.
pub fn payload(fingerprint: &Fingerprint, ranks: usize, rank: usize) -> usize {
    let Fingerprint { operation, dtype, root, count, .. } = *fingerprint;
    let count = count as usize;
    let bytes = count * dtype.size();
    let of_others = || (count - chunk(count, ranks, rank).len()) * dtype.size();
    match operation {
        OperationKind::AllReduce if Size::of(bytes, ranks) == Size::Small => (ranks - 1) * bytes,
        OperationKind::AllReduce => 2 * of_others(),
        OperationKind::ReduceScatter => of_others(),
        OperationKind::AllGather => (ranks - 1) * bytes,
        OperationKind::Broadcast => {
            let place = (rank + ranks - root.map_or(0, |root| root as usize) % ranks) % ranks;
            let rounds = (0..usize::BITS).map(|round| 1usize << round).take_while(|reach| *reach < ranks);
            rounds.filter(|reach| place < *reach && place + reach < ranks).count() * bytes
        }
        _ => 0,
    }
}

/// Frequency at which ranks compare their calls before a collective of a backend that does not compare itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// At the first use of each operation, element type, count, reduction and root. A rank that goes wrong later, with
    /// calls that all were right before, is noticed by the deadline, or not at all.
    #[default]
    FirstUse,
    /// Every time; one round trip more for every doubling of the number of ranks.
    Full,
}

impl Check {
    /// Returns the frequency that `HEXAGRAM_CHECK` asks for; the default if it is not set.
    ///
    /// # Errors
    /// [`Error::Setup`] if it is neither `full` nor `first-use`.
    pub fn from_env() -> Result<Self> {
        variable("HEXAGRAM_CHECK").map_or_else(|| Ok(Check::default()), |text| Self::parse(&text))
    }

    /// Decodes the value of `HEXAGRAM_CHECK`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text.trim() {
            "full" => Ok(Check::Full),
            "first-use" => Ok(Check::FirstUse),
            _ => {
                let what = format!("HEXAGRAM_CHECK={text} is unknown");
                Err(Error::setup(what, "use full or first-use, or unset it"))
            }
        }
    }
}

/// Progress of an operation that was tried immediately.
#[derive(Debug)]
pub enum AtOnce {
    /// It has ended.
    Done(Result<()>),
    /// This rank has begun it, but other ranks have not arrived: continue with [`Collectives::post`] under the same
    /// label, on the same bytes, as the next operation of its lane.
    Begun,
    /// Nothing has happened, since this backend does not execute it immediately.
    Not,
}

/// Native collectives of a backend, over all ranks of its endpoint or, if supported, over a group of them: `members`
/// are its ranks, including this one, in the order of the group.
pub trait Collectives {
    /// Returns true if the backend executes this operation itself. The answer depends only on values that are equal
    /// on all members if all calls match; otherwise, the operation fails as a mismatch.
    fn offers(&self, label: &Label, members: &[usize], input: Option<&ReadView>, output: &WriteView) -> bool;

    /// Carries out a small operation in place that all ranks begin at about the same time. It needs no views and no
    /// ticket, which take longer than the operation itself.
    fn at_once(&self, _label: &Label, _bytes: &mut [u8]) -> AtOnce {
        AtOnce::Not
    }

    /// Starts an operation that was offered. Poll and cancel its ticket as any other; the peer and the bytes of its
    /// [`Received`](crate::transport::Received) are this rank and the output's size.
    fn post(
        &self,
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Ticket;

    /// Returns the ranks for which a pending collective still waits; empty for the tickets of sends and receives.
    fn missing(&self, _ticket: Ticket) -> Vec<usize> {
        Vec::new()
    }

    /// Returns true if a pending collective has not begun, because it is behind others of this endpoint.
    fn is_queued(&self, _ticket: Ticket) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once_and_evenly() {
        for ranks in 1..20 {
            for len in [0, 1, 2, 7, 100, 1_000_003] {
                let mut end = 0;
                for index in 0..ranks {
                    let chunk = chunk(len, ranks, index);
                    assert_eq!(chunk.start, end);
                    assert!(chunk.len().abs_diff(len / ranks) <= 1);
                    end = chunk.end;
                }
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn chunks_of_the_largest_buffers_do_not_overflow() {
        assert_eq!(chunk(usize::MAX, 1024, 1023).end, usize::MAX);
    }
}
