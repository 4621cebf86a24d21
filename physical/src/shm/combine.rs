//! Contributions of all ranks become one, in the ring's order: for what rank `owner` completes, those of the ranks
//! owner + 1, owner + 2, …, owner. Whoever computes it, the result is the same to the last bit.

use crate::device;
use crate::dtype::{DType, ReduceOp};

/// Bytes that are combined at a time: a few of these stay in the first-level cache.
const BLOCK: usize = 8 * 1024;

#[repr(align(64))]
struct Scratch([u8; BLOCK]);

/// What is combined, and how.
pub(super) struct Combination {
    pub(super) op: ReduceOp,
    pub(super) dtype: DType,
    pub(super) ranks: usize,
    /// Whose part of the result it is.
    pub(super) owner: usize,
    /// Whether the contributions have yet to be divided, for the mean of 16-bit floats.
    pub(super) divide_first: bool,
}

impl Combination {
    /// The ranks in order, without the owner, who is last.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (ranks, owner) = (self.ranks, self.owner);
        (1..ranks).map(move |distance| (owner + distance) % ranks)
    }

    /// `to ← all contributions`, of `to`'s length each.
    pub(super) fn store<'a>(&self, from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
        for start in (0..to.len()).step_by(BLOCK) {
            let end = to.len().min(start + BLOCK);
            let to = &mut to[start..end];
            for (nth, rank) in self.others().chain([self.owner]).enumerate() {
                let from = &from(rank)[start..end];
                if nth == 0 {
                    self.prepare(from, to);
                } else if self.divide_first {
                    let mut scratch = Scratch([0; BLOCK]);
                    let scratch = &mut scratch.0[..to.len()];
                    self.prepare(from, scratch);
                    device::land(self.op, self.dtype, scratch, to);
                } else {
                    device::land(self.op, self.dtype, from, to);
                }
            }
            self.finish(to);
        }
    }

    /// `to ← to and all other contributions`, where `to` holds the owner's.
    pub(super) fn add<'a>(&self, from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
        let mut scratch = Scratch([0; BLOCK]);
        for start in (0..to.len()).step_by(BLOCK) {
            let end = to.len().min(start + BLOCK);
            let to = &mut to[start..end];
            let mut others = self.others().map(|rank| &from(rank)[start..end]);
            let Some(first) = others.next() else { return self.finish(to) };
            if self.ranks == 2 {
                device::land(self.op, self.dtype, first, to);
            } else {
                let scratch = &mut scratch.0[..to.len()];
                scratch.copy_from_slice(first);
                others.for_each(|from| device::land(self.op, self.dtype, from, scratch));
                device::land(self.op, self.dtype, scratch, to);
            }
            self.finish(to);
        }
    }

    fn prepare(&self, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
        if self.divide_first {
            device::divide(self.ranks, self.dtype, to);
        }
    }

    fn finish(&self, to: &mut [u8]) {
        if self.op == ReduceOp::Mean && !self.dtype.is_half() {
            device::divide(self.ranks, self.dtype, to);
        }
    }
}
