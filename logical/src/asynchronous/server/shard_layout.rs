//! Common terms of the two sides of a server: the shards, their encodings, and the errors of unreadable messages.

use super::super::pool::BufferPool;
use crate::encoding::Encoding;
use crate::{Buffer, DType, Error, Peer, Result};
use hexagram_physical::codec::Codec;
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::native::chunk;
use std::ops::Range;
use std::sync::Arc;

/// Minimum number of elements of a shard, if there are more than [`FEW`]: 64 KiB. For smaller shards, the time per
/// message exceeds that of the bytes.
const SMALLEST: usize = 16 * 1024;
/// Minimum number of shards, if there are at least that many ranks, for any number of elements.
const FEW: usize = 16;

/// Division of a vector into shards, and their ranks, evenly spaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shards {
    pub(super) len: usize,
    ranks: usize,
    count: usize,
}

impl Shards {
    pub(super) fn of(len: usize, ranks: usize) -> Self {
        Shards { len, ranks, count: ranks.min(FEW.max(len / SMALLEST)) }
    }

    /// Returns the elements of a shard.
    fn range(&self, shard: usize) -> Range<usize> {
        chunk(self.len, self.count, shard)
    }

    /// Returns the number of elements of the largest shard.
    fn longest(&self) -> usize {
        self.len.div_ceil(self.count)
    }

    /// Returns the rank of a shard.
    fn owner(&self, shard: usize) -> usize {
        shard * self.ranks / self.count
    }

    /// Returns the elements of a rank; empty, at the end, if it has no shard.
    pub(super) fn of_rank(&self, rank: usize) -> Range<usize> {
        let shard = (rank * self.count).div_ceil(self.ranks);
        if shard < self.count && self.owner(shard) == rank { self.range(shard) } else { self.len..self.len }
    }
}

/// Common terms of the two sides of a server.
pub(super) struct ShardLayout {
    pub(super) fingerprint: Fingerprint,
    pub(super) shards: Shards,
    pub(super) rank: usize,
    pub(super) peers: Vec<Peer>,
    pub(super) pushed: Option<Arc<dyn Codec>>,
    pub(super) pulled: Option<Encoding>,
    /// Buffers for numbers, and for pushed and pulled messages, on the device of the shards.
    pub(super) values: BufferPool,
    pushes: BufferPool,
    pulls: BufferPool,
}

/// Part of a range in one shard.
pub(super) struct ShardRange {
    pub(super) rank: usize,
    /// First element, counted in the shard.
    pub(super) start: usize,
    /// Elements, counted in the whole vector.
    pub(super) range: Range<usize>,
}

impl ShardRange {
    /// Returns a whole shard.
    pub(super) fn of_shard(terms: &ShardLayout, rank: usize) -> Self {
        ShardRange { rank, start: 0, range: terms.shards.of_rank(rank) }
    }

    /// Returns its place in a buffer that holds `range`.
    pub(super) fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.range.start - range.start..self.range.end - range.start
    }
}

impl ShardLayout {
    pub(super) fn new(
        fingerprint: Fingerprint,
        shards: Shards,
        place: &Buffer,
        rank: usize,
        peers: Vec<Peer>,
        pushed: Option<Arc<dyn Codec>>,
        pulled: Option<Encoding>,
    ) -> Result<Self> {
        let longest = shards.longest();
        let pool = |codec: Option<&Arc<dyn Codec>>| match codec {
            Some(codec) => BufferPool::same_device(place, DType::U8, codec.encoded_len(longest)),
            None => BufferPool::same_device(place, DType::F32, longest),
        };
        let pushes = pool(pushed.as_ref())?;
        let pulls = pool(pulled.as_ref().map(Encoding::codec))?;
        let values = pool(None)?;
        Ok(ShardLayout { fingerprint, shards, rank, peers, pushed, pulled, values, pushes, pulls })
    }

    /// Returns a buffer for a message with `len` elements to a shard.
    pub(super) fn push_room(&self, len: usize) -> Result<Arc<Buffer>> {
        self.pushes.take_len(self.pushed.as_ref().map_or(len, |codec| codec.encoded_len(len)))
    }

    /// Returns a buffer for a message with `len` elements from a shard.
    pub(super) fn pull_room(&self, len: usize) -> Result<Arc<Buffer>> {
        self.pulls.take_len(self.pulled.as_ref().map_or(len, |encoding| encoding.codec().encoded_len(len)))
    }

    /// Returns this rank.
    pub(super) fn me(&self) -> &Peer {
        &self.peers[self.rank]
    }

    /// Returns the parts of a range in the shards.
    pub(super) fn pieces(&self, range: &Range<usize>) -> Vec<ShardRange> {
        let piece = |number| {
            let shard = self.shards.range(number);
            let range = range.start.max(shard.start)..range.end.min(shard.end);
            let start = range.start.saturating_sub(shard.start);
            (!range.is_empty()).then(|| ShardRange { rank: self.shards.owner(number), start, range })
        };
        (0..self.shards.count).filter_map(piece).collect()
    }

    /// Fails unless a buffer matches a range of the server.
    pub(super) fn check(&self, range: &Range<usize>, buffer: &Buffer) -> Result<()> {
        if buffer.dtype() != DType::F32 {
            let what = format!("a server holds f32, not {}", buffer.dtype());
            return Err(Error::usage(what, "convert to f32 first"));
        }
        if range.start > range.end || range.end > self.shards.len || range.len() != buffer.len() {
            let len = buffer.len();
            let whole = self.shards.len;
            let what = format!("elements {range:?} of {whole} do not match a buffer of {len} elements");
            return Err(Error::usage(
                what,
                "use a buffer with the length of the range, and a range of the server",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_the_vector_in_order_on_ranks_of_their_own() {
        for ranks in [1, 2, 3, 16, 17, 100, 256] {
            for len in [0, 1, 100, 40 * SMALLEST + 3, 1000 * SMALLEST] {
                let shards = Shards::of(len, ranks);
                let mut end = 0;
                for number in 0..shards.count {
                    let range = shards.range(number);
                    assert!(range.start == end || range.is_empty(), "{shards:?}");
                    assert!(range.len() <= shards.longest());
                    assert_eq!(shards.of_rank(shards.owner(number)), range, "{shards:?}, shard {number}");
                    end = end.max(range.end);
                }
                assert_eq!(end, len, "{shards:?}");
                let with = (0..ranks).filter(|rank| !shards.of_rank(*rank).is_empty()).count();
                assert_eq!(with, shards.count.min(len), "{shards:?}");
            }
        }
    }

    #[test]
    fn there_are_as_many_as_ranks_unless_they_would_be_small() {
        let count = |len, ranks| Shards::of(len, ranks).count;
        assert_eq!([count(5, 1), count(5, 16), count(5, 1024)], [1, 16, 16]);
        assert_eq!([count(100 * SMALLEST, 64), count(100 * SMALLEST, 1024)], [64, 100]);
    }
}
