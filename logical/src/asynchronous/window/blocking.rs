//! A window's calls, blocking on the caller's thread.

use super::Window;
use crate::encoding::State;
use crate::runtime::block_on;
use crate::{Buffer, Result};

/// A window's calls that wait while its service is at work on it, blocking on the caller's thread. Those that send
/// return a [`Pending`](crate::asynchronous::Pending), which has a blocking form of its own.
pub struct BlockingWindow<'a>(pub(super) &'a Window);

impl BlockingWindow<'_> {
    /// Combines what has arrived: see [`Window::update`].
    ///
    /// # Errors
    /// As [`Window::update`].
    pub fn update(&self, self_weight: f64, weights: &[(usize, f64)], reset: bool) -> Result<()> {
        block_on(self.0.update(self_weight, weights, reset))
    }

    /// Takes in all that has arrived: see [`Window::collect`].
    ///
    /// # Errors
    /// As [`Window::collect`].
    pub fn collect(&self) -> Result<()> {
        block_on(self.0.collect())
    }

    /// Copies this rank's value: see [`Window::load`].
    ///
    /// # Errors
    /// As [`Window::load`].
    pub fn load(&self, into: &mut Buffer) -> Result<()> {
        block_on(self.0.load(into))
    }

    /// Computes push-sum's estimate of the mean: see [`Window::estimate`].
    ///
    /// # Errors
    /// As [`Window::estimate`].
    pub fn estimate(&self, into: &mut Buffer) -> Result<()> {
        block_on(self.0.estimate(into))
    }

    /// Copies the buffer of an in-neighbour: see [`Window::load_neighbour`].
    ///
    /// # Errors
    /// As [`Window::load_neighbour`].
    pub fn load_neighbour(&self, of: usize, into: &mut Buffer) -> Result<()> {
        block_on(self.0.load_neighbour(of, into))
    }

    /// Replaces this rank's value: see [`Window::store`].
    ///
    /// # Errors
    /// As [`Window::store`].
    pub fn store(&self, from: &Buffer) -> Result<()> {
        block_on(self.0.store(from))
    }

    /// Adds to this rank's value: see [`Window::add`].
    ///
    /// # Errors
    /// As [`Window::add`].
    pub fn add(&self, weight: f64, from: &Buffer) -> Result<()> {
        block_on(self.0.add(weight, from))
    }

    /// Returns copies of everything that this rank's part holds: see [`Window::save`].
    ///
    /// # Errors
    /// As [`Window::save`].
    pub fn save(&self) -> Result<Vec<(String, State)>> {
        block_on(self.0.save())
    }

    /// Goes on where [`Window::save`] was called: see [`Window::restore`].
    ///
    /// # Errors
    /// As [`Window::restore`].
    pub fn restore(&self, states: impl IntoIterator<Item = (String, State)>) -> Result<()> {
        block_on(self.0.restore(states))
    }
}
