//! A pair exchange's calls, blocking on the caller's thread.

use super::PairExchange;
use crate::encoding::State;
use crate::runtime::block_on;
use crate::{Buffer, Result};

/// A pair exchange's calls that wait while its service is at work on the value, blocking on the caller's thread.
/// [`PairExchange::exchange`] returns a [`Pending`](crate::asynchronous::Pending), which has a blocking form of its
/// own.
pub struct BlockingPairExchange<'a>(pub(super) &'a PairExchange);

impl BlockingPairExchange<'_> {
    /// Copies this rank's value: see [`PairExchange::load`].
    ///
    /// # Errors
    /// As [`PairExchange::load`].
    pub fn load(&self, into: &mut Buffer) -> Result<()> {
        block_on(self.0.load(into))
    }

    /// Adds a step of this rank's own: see [`PairExchange::add`].
    ///
    /// # Errors
    /// As [`PairExchange::add`].
    pub fn add(&self, weight: f64, from: &Buffer) -> Result<()> {
        block_on(self.0.add(weight, from))
    }

    /// Returns copies of everything that this rank holds: see [`PairExchange::save`].
    ///
    /// # Errors
    /// As [`PairExchange::save`].
    pub fn save(&self) -> Result<Vec<(String, State)>> {
        block_on(self.0.save())
    }

    /// Goes on where [`PairExchange::save`] was called: see [`PairExchange::restore`].
    ///
    /// # Errors
    /// As [`PairExchange::restore`].
    pub fn restore(&self, states: impl IntoIterator<Item = (String, State)>) -> Result<()> {
        block_on(self.0.restore(states))
    }
}
