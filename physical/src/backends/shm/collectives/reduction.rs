//! Combines the contributions of all ranks in the order of messages, so that results are equal to the last bit,
//! whichever rank computes them. *Ring*: for the part of rank `owner`, in the order of ranks owner + 1, owner + 2, …,
//! owner. *Tree*: ranks beyond the largest power of two fold into those below; then pairs at half of that distance, a
//! quarter, …, 1.

use crate::backends::shm::bytes::SharedBytes;
use crate::device;
use crate::memory::dtype::{DType, ReduceOp};
use std::mem::MaybeUninit;

/// Bytes that are combined at a time: a few such blocks stay in the first-level cache.
const BLOCK: usize = 8 * 1024;

/// Memory for the copy of a peer's bytes that is then combined.
#[repr(align(64))]
struct ReductionScratch([MaybeUninit<u8>; BLOCK]);

impl ReductionScratch {
    /// Creates uninitialised memory.
    fn new() -> Self {
        ReductionScratch([MaybeUninit::uninit(); BLOCK])
    }

    /// Copies at most one block.
    fn copy(&mut self, from: SharedBytes<'_>) -> &mut [u8] {
        from.load_to(&mut self.0)
    }
}

/// Order in which contributions are combined; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CombineOrder {
    Ring,
    Tree,
}

/// Reduction of one part of the result.
pub(crate) struct OrderedReduction {
    pub(crate) op: ReduceOp,
    pub(crate) dtype: DType,
    pub(crate) ranks: usize,
    /// Rank that owns the part of the result.
    pub(crate) owner: usize,
    pub(crate) order: CombineOrder,
    /// True if the contributions have yet to be divided, for the mean of 16-bit floats.
    pub(crate) divide_first: bool,
}

impl OrderedReduction {
    /// Returns the ranks in order without the owner, who is last.
    fn others(&self) -> impl Iterator<Item = usize> {
        let ranks = self.ranks;
        let owner = self.owner;
        (1..ranks).map(move |distance| (owner + distance) % ranks)
    }

    /// Stores the reduction of all contributions, each as long as `to`, in `to`.
    pub(crate) fn store<'a>(&self, from: impl Fn(usize) -> SharedBytes<'a>, to: &mut [u8]) {
        for start in (0..to.len()).step_by(BLOCK) {
            let end = to.len().min(start + BLOCK);
            let to = &mut to[start..end];
            let from = |rank| from(rank).part(start..end);
            match self.order {
                CombineOrder::Ring => self.ring(from, to),
                CombineOrder::Tree => {
                    let rank = self.owner % self.core();
                    from(rank).load(to);
                    self.tree(&from, rank, 1, to);
                }
            }
            self.finish(to);
        }
    }

    /// Combines the contributions of all other ranks into `to`, which holds the owner's.
    pub(crate) fn add<'a>(&self, from: impl Fn(usize) -> SharedBytes<'a>, to: &mut [u8]) {
        for start in (0..to.len()).step_by(BLOCK) {
            let end = to.len().min(start + BLOCK);
            let to = &mut to[start..end];
            let from = |rank| from(rank).part(start..end);
            match self.order {
                // Two contributions are combined in one order only.
                _ if self.ranks == 2 => self.land(from(1 - self.owner), to),
                CombineOrder::Ring => self.ring_onto(from, to),
                CombineOrder::Tree if self.owner < self.core() => self.tree(&from, self.owner, 1, to),
                CombineOrder::Tree => {
                    let own = to.to_vec();
                    let from = |rank| if rank == self.owner { SharedBytes::of(&own) } else { from(rank) };
                    let rank = self.owner - self.core();
                    from(rank).load(to);
                    self.tree(&from, rank, 1, to);
                }
            }
            self.finish(to);
        }
    }

    /// Combines one contribution into `to`.
    fn land(&self, from: SharedBytes<'_>, to: &mut [u8]) {
        if let Some(own) = from.own() {
            return device::land(self.op, self.dtype, own, to);
        }
        let sum = self.dtype == DType::F32 && matches!(self.op, ReduceOp::Sum | ReduceOp::Mean);
        // By far the most frequent case, without a copy.
        if let Some(floats) = from.floats().filter(|_| sum) {
            return device::add_shared(floats, to);
        }
        device::land(self.op, self.dtype, ReductionScratch::new().copy(from), to);
    }

    /// Combines all contributions in the order of the ring.
    fn ring<'a>(&self, from: impl Fn(usize) -> SharedBytes<'a>, to: &mut [u8]) {
        for (nth, rank) in self.others().chain([self.owner]).enumerate() {
            if nth == 0 {
                from(rank).load(to);
                self.prepare(to);
            } else if self.divide_first {
                let mut scratch = ReductionScratch::new();
                let scratch = scratch.copy(from(rank));
                self.prepare(scratch);
                device::land(self.op, self.dtype, scratch, to);
            } else {
                self.land(from(rank), to);
            }
        }
    }

    /// Combines the contributions of the other ranks in the order of the ring into `to`, which holds the owner's.
    fn ring_onto<'a>(&self, from: impl Fn(usize) -> SharedBytes<'a>, to: &mut [u8]) {
        let mut others = self.others().map(from);
        let Some(first) = others.next() else { return };
        let mut partial = ReductionScratch::new();
        let partial = partial.copy(first);
        others.for_each(|from| self.land(from, partial));
        device::land(self.op, self.dtype, partial, to);
    }

    /// Returns the largest power of two that does not exceed the number of ranks.
    fn core(&self) -> usize {
        1 << self.ranks.ilog2()
    }

    /// Computes, in `to`, which holds the contribution of rank `rank` of the core, its value after the steps at
    /// distances from the largest down to `distance`.
    fn tree<'a>(
        &self,
        from: &impl Fn(usize) -> SharedBytes<'a>,
        rank: usize,
        distance: usize,
        to: &mut [u8],
    ) {
        if distance >= self.core() {
            if rank + self.core() < self.ranks {
                self.land(from(rank + self.core()), to);
            }
            return;
        }
        self.tree(from, rank, 2 * distance, to);
        let partner = rank ^ distance;
        if 2 * distance >= self.core() && partner + self.core() >= self.ranks {
            return self.land(from(partner), to);
        }
        let mut scratch = ReductionScratch::new();
        let scratch = scratch.copy(from(partner));
        self.tree(from, partner, 2 * distance, scratch);
        device::land(self.op, self.dtype, scratch, to);
    }

    /// Divides a contribution if that has yet to be done.
    fn prepare(&self, contribution: &mut [u8]) {
        if self.divide_first {
            device::divide(self.ranks, self.dtype, contribution);
        }
    }

    /// Divides the sum for a mean, unless the contributions were divided.
    fn finish(&self, to: &mut [u8]) {
        if self.op == ReduceOp::Mean && !self.dtype.is_half() {
            device::divide(self.ranks, self.dtype, to);
        }
    }
}
