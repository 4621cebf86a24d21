//! Cache of pulled parameters.

use super::Pulled;
use super::shard_layout::ShardRange;
use crate::{Buffer, DType, Result};
use std::ops::Range;

/// A copy of all parameters; the age of each shard is in its entry.
pub(super) struct Cache {
    pub(super) parameters: Buffer,
    /// By rank, the clock whose earlier updates are all included, and the version; `None` before the first pull.
    known: Vec<Option<(u64, u64)>>,
}

impl Cache {
    /// Creates an empty cache on the device of `served`.
    pub(super) fn new(served: &Buffer, len: usize, ranks: usize) -> Result<Self> {
        Ok(Cache { parameters: served.zeroed_same_device(DType::F32, len)?, known: vec![None; ranks] })
    }

    /// Returns true if the copy of a shard contains all updates before `clock`.
    pub(super) fn holds(&self, rank: usize, clock: u64) -> bool {
        self.known[rank].is_some_and(|(known, _)| known >= clock)
    }

    /// Records the clock and the version of a shard that was pulled.
    pub(super) fn note(&mut self, rank: usize, clock: u64, version: u64) {
        self.known[rank] = Some((clock, version));
    }

    /// Copies `range`, the union of `pieces`, all of which must be cached.
    pub(super) fn read(&self, pieces: &[ShardRange], range: &Range<usize>, into: &Buffer) -> Result<Pulled> {
        into.write_all()?.copy_from(&self.parameters.read(range.clone())?)?;
        let known = || pieces.iter().filter_map(|piece| self.known[piece.rank]);
        let clock = known().map(|(clock, _)| clock).min().unwrap_or(0);
        Ok(Pulled { clock, versions: known().map(|(_, version)| version).collect() })
    }
}
