//! Sizes of a segment, which depend on the number of ranks on the host.
//!
//! With n ranks, in bytes (all logarithms and quotients rounded down, but for `pages`, which is rounded up to 4096):
//!
//! ```text
//! ring(n)    = 2 ^ log2(2 MiB / (n − 1)), at least 4 KiB and at most 256 KiB
//! block(n)   = min(1 MiB, 128 MiB / n) / 2n, a multiple of 64, at most 64 KiB
//! head(n)    = pages(384 + 270,336 + 384 (n − 1) + 2n block(n))      parking, control block, ring counters, stage
//! segment(n) = head(n) + (n − 1) ring(n)
//! mapped(n)  = n head(n) + 2 (n − 1) ring(n)                         by each rank: all heads, its rings, one ring in each peer
//! host(n)    = n (segment(n) + pages(mapped(n) / 512) + 16 KiB)      segments and page tables, for one channel
//! ```
//!
//! The total of a host grows with n rather than its square as long as rings can shrink: 1.6 MiB a channel for 2
//! ranks, 25 MiB for 8, 220 MiB for 64, 843 MiB for 256.

use super::LINE_PAIR;
use crate::backends::shm::control_block::CONTROL_BLOCK;

/// Bytes of a ring between few ranks; a few such rings fit into the second-level cache.
const LARGEST_RING: usize = 256 * 1024;
/// Minimum number of bytes of a ring.
const SMALLEST_RING: usize = PAGE;
/// Bytes of all rings of one segment, as long as none is the smallest.
const RINGS: usize = 2 << 20;

/// Maximum number of bytes of one block of a stage.
const LARGEST_BLOCK: usize = 64 * 1024;
/// Maximum number of bytes of a stage; the stages of a few ranks fit into a shared cache.
const STAGE: usize = 1 << 20;
/// Maximum number of bytes of all stages of a host.
const STAGES: usize = 128 << 20;
/// Alignment of blocks: one cache line.
const LINE: usize = 64;

/// Smallest unit of memory that the kernel maps. With larger pages, mappings extend beyond the requested size.
const PAGE: usize = 4096;
/// Bytes of the bell, the parked word and the proof.
const PARKING: usize = 3 * LINE_PAIR;
/// Bytes of head, tail and blocked of one ring, each in a separate line.
pub(crate) const COUNTERS: usize = 3 * LINE_PAIR;

/// Sizes of a segment for a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentShape {
    /// Number of ranks on the host, the owner of the segment included.
    pub(crate) ranks: usize,
    /// Bytes of one ring, a power of two.
    pub(crate) ring: usize,
    /// Bytes of one block of the stage.
    pub(crate) block: usize,
}

impl SegmentShape {
    /// Computes the shape of segments among `ranks` ranks, at least 1.
    pub(crate) fn new(ranks: usize) -> Self {
        let share = (RINGS / (ranks - 1).max(1)).max(SMALLEST_RING);
        let ring = (1 << share.ilog2()).min(LARGEST_RING);
        let stage = STAGE.min(STAGES / ranks);
        let block = (stage / (2 * ranks) / LINE * LINE).min(LARGEST_BLOCK);
        SegmentShape { ranks, ring, block }
    }

    /// Returns the bytes of half a stage: one block for each rank.
    pub(crate) fn half(&self) -> usize {
        self.ranks * self.block
    }

    /// Returns the offset of the control block.
    pub(crate) fn control_block(&self) -> usize {
        PARKING
    }

    /// Returns the offset of the ring counters.
    pub(crate) fn counters(&self) -> usize {
        PARKING + CONTROL_BLOCK
    }

    /// Returns the offset of the stage.
    pub(crate) fn stage(&self) -> usize {
        self.counters() + (self.ranks - 1) * COUNTERS
    }

    /// Returns the number of bytes before the rings, which every rank maps.
    pub(crate) fn head(&self) -> usize {
        (self.stage() + 2 * self.half()).next_multiple_of(PAGE)
    }

    /// Returns the bytes of all rings.
    pub(crate) fn rings(&self) -> usize {
        (self.ranks - 1) * self.ring
    }

    /// Returns the bytes of a segment.
    pub(crate) fn segment(&self) -> usize {
        self.head() + self.rings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of one channel on a host, by the formula above.
    fn host(shape: &SegmentShape) -> usize {
        let mapped = shape.ranks * shape.head() + 2 * shape.rings();
        shape.ranks * (shape.segment() + (mapped / 512).next_multiple_of(4096) + 16 * 1024)
    }

    #[test]
    fn sizes_are_those_of_the_formula() {
        for n in 1..=4096_usize {
            let ring = match (2 << 20) / (n - 1).max(1) {
                room if room >= 256 << 10 => 256 << 10,
                room => (12..18).map(|log| 1 << log).rev().find(|ring| *ring <= room).unwrap_or(4096),
            };
            let block = ((1 << 20).min((128 << 20) / n) / (2 * n) / 64 * 64).min(64 << 10);
            let head = (384 + 270_336 + 384 * (n - 1) + 2 * n * block).div_ceil(4096) * 4096;
            let shape = SegmentShape::new(n);
            assert_eq!((shape.ring, shape.block, shape.head()), (ring, block, head), "{n} ranks");
            assert_eq!(shape.segment(), head + (n - 1) * ring, "{n} ranks");
            assert!(shape.stage().is_multiple_of(LINE) && shape.ring.is_power_of_two(), "{n} ranks");
        }
    }

    #[test]
    fn few_ranks_have_the_largest_rings_and_blocks() {
        for n in 2..=8 {
            let shape = SegmentShape::new(n);
            assert_eq!((shape.ring, shape.block), (256 << 10, 64 << 10), "{n} ranks");
        }
    }

    #[test]
    fn a_channel_of_256_ranks_takes_less_than_a_gibibyte() {
        let mib = |ranks| host(&SegmentShape::new(ranks)).div_ceil(1 << 20);
        assert_eq!([2, 8, 64, 256].map(mib), [2, 25, 220, 843]);
        assert!((1..=256).all(|ranks| mib(ranks) < 1024));
    }
}
