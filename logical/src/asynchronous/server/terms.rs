//! Terms that the two sides of a server share: who has what, how it travels, and what is wrong when it cannot be read.

use super::super::pool::BufferPool;
use crate::encoding::Encoding;
use crate::{Buffer, DType, Error, Peer, Result};
use hexagram_physical::codec::Codec;
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::native::chunk;
use std::ops::Range;
use std::sync::Arc;

/// Terms that the two sides of a server share.
pub(super) struct Terms {
    pub(super) fingerprint: Fingerprint,
    pub(super) len: usize,
    pub(super) rank: usize,
    pub(super) peers: Vec<Peer>,
    pub(super) pushed: Option<Arc<dyn Codec>>,
    pub(super) pulled: Option<Encoding>,
    /// Buffers for numbers, and for what is pushed and pulled as it travels: on the host, where shards are.
    pub(super) values: BufferPool,
    pushes: BufferPool,
    pulls: BufferPool,
}

/// Part of a range that one shard has.
pub(super) struct Piece {
    pub(super) rank: usize,
    /// First element, counted in the shard.
    pub(super) start: usize,
    /// Elements, counted in the whole vector.
    pub(super) range: Range<usize>,
}

impl Piece {
    /// Returns a whole shard.
    pub(super) fn of_shard(terms: &Terms, rank: usize) -> Self {
        Piece { rank, start: 0, range: terms.shard(rank) }
    }

    /// Returns where it is within a buffer that holds `range`.
    pub(super) fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.range.start - range.start..self.range.end - range.start
    }
}

impl Terms {
    pub(super) fn new(
        fingerprint: Fingerprint,
        rank: usize,
        peers: Vec<Peer>,
        pushed: Option<Arc<dyn Codec>>,
        pulled: Option<Encoding>,
    ) -> Result<Self> {
        let len = fingerprint.count as usize;
        let shard = len.div_ceil(peers.len());
        let pool = |codec: Option<&Arc<dyn Codec>>| match codec {
            Some(codec) => BufferPool::on_host(DType::U8, codec.encoded_len(shard)),
            None => BufferPool::on_host(DType::F32, shard),
        };
        let pushes = pool(pushed.as_ref())?;
        let pulls = pool(pulled.as_ref().map(Encoding::codec))?;
        let values = BufferPool::on_host(DType::F32, shard)?;
        Ok(Terms { fingerprint, len, rank, peers, pushed, pulled, values, pushes, pulls })
    }

    /// Returns a buffer with room for `len` elements on their way to a shard.
    pub(super) fn push_room(&self, len: usize) -> Result<Arc<Buffer>> {
        self.pushes.take_len(self.pushed.as_ref().map_or(len, |codec| codec.encoded_len(len)))
    }

    /// Returns a buffer with room for `len` elements on their way from a shard.
    pub(super) fn pull_room(&self, len: usize) -> Result<Arc<Buffer>> {
        self.pulls.take_len(self.pulled.as_ref().map_or(len, |encoding| encoding.codec().encoded_len(len)))
    }

    /// Returns this rank.
    pub(super) fn me(&self) -> &Peer {
        &self.peers[self.rank]
    }

    /// Returns the elements that a rank has.
    pub(super) fn shard(&self, rank: usize) -> Range<usize> {
        chunk(self.len, self.peers.len(), rank)
    }

    /// Returns the parts of a range that the shards have.
    pub(super) fn pieces(&self, range: &Range<usize>) -> Vec<Piece> {
        let piece = |rank| {
            let shard = self.shard(rank);
            let range = range.start.max(shard.start)..range.end.min(shard.end);
            (!range.is_empty()).then(|| Piece { rank, start: range.start - shard.start, range })
        };
        (0..self.peers.len()).filter_map(piece).collect()
    }

    /// Fails unless a buffer fits a range of the server's.
    pub(super) fn check(&self, range: &Range<usize>, buffer: &Buffer) -> Result<()> {
        if buffer.dtype() != DType::F32 {
            let what = format!("a server has f32, not {}", buffer.dtype());
            return Err(Error::usage(what, "convert to f32 first"));
        }
        if range.start > range.end || range.end > self.len || range.len() != buffer.len() {
            let len = buffer.len();
            let whole = self.len;
            let what = format!("elements {range:?} of {whole} and a buffer of {len} elements do not fit");
            return Err(Error::usage(what, "use a buffer as long as the range, and a range of the server's"));
        }
        Ok(())
    }
}
