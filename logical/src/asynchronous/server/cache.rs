//! Parameters that were pulled before, and may serve again.

use super::Pulled;
use super::terms::Piece;
use crate::{Buffer, DType, Result};
use std::ops::Range;

/// A copy of all parameters, as old as each shard's entry says.
pub(super) struct Cache {
    pub(super) parameters: Buffer,
    /// By rank, the clock before which all updates are in, and the version; `None` before the first pull.
    known: Vec<Option<(u64, u64)>>,
}

impl Cache {
    /// Creates a cache beside `served`, in which nothing is known.
    pub(super) fn new(served: &Buffer, len: usize, ranks: usize) -> Result<Self> {
        Ok(Cache { parameters: served.beside(DType::F32, len)?, known: vec![None; ranks] })
    }

    /// Returns true if a shard's copy contains all updates before `clock`.
    pub(super) fn holds(&self, rank: usize, clock: u64) -> bool {
        self.known[rank].is_some_and(|(known, _)| known >= clock)
    }

    /// Records the clock and the version of a shard that was pulled.
    pub(super) fn note(&mut self, rank: usize, clock: u64, version: u64) {
        self.known[rank] = Some((clock, version));
    }

    /// Copies `range`, the union of `pieces`, which are all known.
    pub(super) fn read(&self, pieces: &[Piece], range: &Range<usize>, into: &Buffer) -> Result<Pulled> {
        into.write_all()?.copy_from(&self.parameters.read(range.clone())?)?;
        let known = || pieces.iter().filter_map(|piece| self.known[piece.rank]);
        let clock = known().map(|(clock, _)| clock).min().unwrap_or(0);
        Ok(Pulled { clock, versions: known().map(|(_, version)| version).collect() })
    }
}
