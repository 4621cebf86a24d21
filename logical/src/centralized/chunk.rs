//! Common helpers of the centralized primitives.

use crate::{Buffer, Communicator, DType, Error, ReduceOp, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::hash::short_of_bytes;
pub(crate) use hexagram_physical::native::chunk;
use std::ops::Range;

/// Returns block `index` of blocks of `len` elements.
pub(super) fn block(len: usize, index: usize) -> Range<usize> {
    index * len..(index + 1) * len
}

/// Returns the ranges of consecutive blocks of different lengths, one for each rank, in a buffer.
pub(super) fn blocks(counts: &[usize], buffer: &Buffer, ranks: usize) -> Result<Vec<Range<usize>>> {
    let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    if counts.len() != ranks || total != Some(buffer.len()) {
        let what = format!("counts {counts:?} do not divide {} elements among {ranks} ranks", buffer.len());
        return Err(Error::usage(what, "give one count per rank, adding up to the buffer's length"));
    }
    let mut end = 0;
    let block = |count: &usize| {
        end += count;
        end - count..end
    };
    Ok(counts.iter().map(block).collect())
}

/// Returns the fingerprint of an operation on blocks of different lengths in `whole`, where this rank has `own`.
pub(super) fn unequal(
    operation: OperationKind,
    (whole, counts): (&Buffer, &[usize]),
    (own, rank): (&Buffer, usize),
) -> Result<Fingerprint> {
    check_dtypes(own, whole)?;
    if counts.get(rank) != Some(&own.len()) {
        let what = format!("rank {rank} has {} elements where the counts are {counts:?}", own.len());
        return Err(Error::usage(what, "give the count of this rank's elements at its place"));
    }
    let words = counts.iter().flat_map(|count| (*count as u64).to_le_bytes());
    // One bit less than the maximum, since all bits set mean that the field is empty.
    let digest = short_of_bytes(words) >> 1;
    Ok(Fingerprint { root: Some(digest), ..Fingerprint::new(operation, whole.dtype(), whole.len()) })
}

/// Largest scratch piece of an operation, in bytes: large enough for a low overhead, and small relative to the memory
/// of a rank.
const PIECE: usize = 4 << 20;
/// Number of distinct messages of one operation.
pub(crate) const TAGS: usize = 1 << 16;

/// Returns the number of pieces, of `steps` steps each, in which `len` elements pass through scratch memory.
pub(super) fn pieces(len: usize, dtype: DType, steps: usize) -> usize {
    (len * dtype.size()).div_ceil(PIECE).min(TAGS / steps.max(1)).max(1)
}

/// Checks that `whole` holds one block like `part` for every rank.
pub(super) fn check_blocks(part: &Buffer, whole: &Buffer, ranks: usize) -> Result<()> {
    check_dtypes(part, whole)?;
    if part.len().checked_mul(ranks) == Some(whole.len()) {
        return Ok(());
    }
    let what = format!("{ranks} blocks of {} elements do not make {}", part.len(), whole.len());
    Err(Error::usage(what, "make the larger buffer hold one block per rank"))
}

pub(super) fn check_dtypes(one: &Buffer, other: &Buffer) -> Result<()> {
    if one.dtype() == other.dtype() {
        return Ok(());
    }
    let what = format!("one buffer holds {}, the other {}", one.dtype(), other.dtype());
    Err(Error::usage(what, "use one element type in one operation"))
}

/// Fails unless a buffer can be read now. Called before an operation is counted, so that a caller may retry.
pub(crate) fn free_to_read(buffer: &Buffer) -> Result<()> {
    buffer.read_all().map(drop)
}

/// Fails unless a buffer can be written now; see [`free_to_read`].
pub(crate) fn free_to_write(buffer: &Buffer) -> Result<()> {
    buffer.write_all().map(drop)
}

impl Communicator {
    /// Divides a range by the number of ranks.
    fn divide(&self, buffer: &Buffer, range: Range<usize>) -> Result<()> {
        buffer.write(range)?.scale(1.0 / self.size() as f64)
    }

    /// Prepares a contribution: a 16-bit mean is divided before summing, since the sum may overflow.
    pub(super) fn before_reduce(&self, op: ReduceOp, buffer: &Buffer, range: Range<usize>) -> Result<()> {
        if op == ReduceOp::Mean && buffer.dtype().is_half() { self.divide(buffer, range) } else { Ok(()) }
    }

    /// Completes a result: divides a mean that was not divided before summing.
    pub(super) fn after_reduce(&self, op: ReduceOp, buffer: &Buffer, range: Range<usize>) -> Result<()> {
        if op == ReduceOp::Mean && !buffer.dtype().is_half() { self.divide(buffer, range) } else { Ok(()) }
    }
}
