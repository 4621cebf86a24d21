//! Schedules: the mixing matrix of each step. Implement [`Schedule`] for a schedule of your own.

use super::mixing::Mixing;
use crate::options_text::OptionsText;
use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Schedule of mixing matrices, one for every step.
///
/// Every rank has its own copy, and all copies must return the same matrix, computed from the number of ranks and the
/// step alone. If the matrices differ, a gossip ends in [`Error::Mismatch`], or, if no messages meet, in an
/// [`Error::Deadline`] that names the ranks that wait for each other.
///
/// A schedule is an option of algorithms, so that its `Debug` output must contain all parameters of its matrices:
/// ranks compare it.
///
/// ```
/// # use hexagram_logical::testing::spawn;
/// # use hexagram_logical::{Buffer, Result, TransportKind};
/// # use hexagram_logical::decentralized::{Mixing, Schedule};
/// /// Two ranks, each of which keeps three quarters of its own.
/// #[derive(Debug)]
/// struct Lazy;
/// impl Schedule for Lazy {
///     fn mixing(&self, size: usize, _step: u64) -> Result<Mixing> {
///         Mixing::of_matrix(size, &[0.75, 0.25, 0.25, 0.75])
///     }
/// }
/// # spawn(TransportKind::Thread, 2, |comm| {
/// let mut x = Buffer::from_slice(&[comm.rank() as f32])?;
/// comm.block_on(comm.gossip(&mut x, &Lazy, 0))?;
/// assert_eq!(*x.host::<f32>()?, [[0.25], [0.75]][comm.rank()]);
/// # Ok(())
/// # }).unwrap();
/// ```
pub trait Schedule: fmt::Debug + Send + Sync {
    /// Returns the matrix of one step, among `size` ranks. Computed once per operation, in time and memory
    /// proportional to its number of weights; store a static one as [`Mixing`].
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no matrix for this number of ranks.
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing>;

    /// Returns true if all steps among `size` ranks have one matrix, which algorithms with estimates of neighbours
    /// require. The default compares the first 64 steps; implement it if a later step may differ, or if that takes
    /// long.
    ///
    /// # Errors
    /// As [`Schedule::mixing`].
    fn is_static(&self, size: usize) -> Result<bool> {
        looks_static(self, size)
    }

    /// Returns the spelling, as users type it. For a schedule without one, this is its `Debug` output, which cannot
    /// be parsed.
    fn spelling(&self) -> OptionsText {
        OptionsText::of(format!("{self:?}"))
    }

    /// Checks the options, before an algorithm with this graph starts. The default has none; for a
    /// [`NamedOptions`](crate::options_text::NamedOptions) schedule, call its `check`.
    ///
    /// # Errors
    /// [`Error::Usage`] with option, value and range, for the first option out of range.
    fn check_options(&self) -> Result<()> {
        Ok(())
    }
}

/// Returns the matrix of one step of a schedule, which may be user code.
///
/// # Errors
/// As [`Schedule::mixing`]; [`Error::Usage`] if the matrix has a different number of ranks.
pub fn mixing_at(schedule: &dyn Schedule, size: usize, step: u64) -> Result<Mixing> {
    let mixing = schedule.mixing(size, step)?;
    if mixing.size() == size {
        return Ok(mixing);
    }
    let what = format!("a schedule returned a matrix for {} ranks instead of {size}", mixing.size());
    Err(Error::usage(what, "correct the schedule: return a matrix for the requested number of ranks"))
}

/// Returns true if the first 64 steps have the same matrix.
pub(super) fn looks_static(schedule: &(impl Schedule + ?Sized), size: usize) -> Result<bool> {
    let first = schedule.mixing(size, 0)?;
    for step in 1..64 {
        if schedule.mixing(size, step)? != first {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Schedule behind a pointer, as in the options of algorithms.
impl<S: Schedule + ?Sized> Schedule for Arc<S> {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        (**self).mixing(size, step)
    }

    fn is_static(&self, size: usize) -> Result<bool> {
        (**self).is_static(size)
    }

    fn spelling(&self) -> OptionsText {
        (**self).spelling()
    }

    fn check_options(&self) -> Result<()> {
        (**self).check_options()
    }
}

/// The same matrix at every step.
impl Schedule for Mixing {
    fn mixing(&self, size: usize, _step: u64) -> Result<Mixing> {
        if self.size() == size {
            return Ok(self.clone());
        }
        let what = format!("a mixing matrix for {} ranks was used among {size}", self.size());
        Err(Error::usage(what, "create a matrix for the ranks of this communicator"))
    }

    fn is_static(&self, size: usize) -> Result<bool> {
        self.mixing(size, 0).map(|_| true)
    }
}

/// The matrices in turn, in a cycle.
impl Schedule for Vec<Mixing> {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        let turn = step.checked_rem(self.len() as u64).and_then(|turn| self.get(turn as usize));
        turn.ok_or_else(empty)?.mixing(size, step)
    }

    fn is_static(&self, size: usize) -> Result<bool> {
        self.mixing(size, 0).map(|first| self.iter().all(|mixing| *mixing == first))
    }

    fn check_options(&self) -> Result<()> {
        if self.is_empty() { Err(empty()) } else { Ok(()) }
    }
}

/// Returns the error of a schedule without matrices.
fn empty() -> Error {
    Error::usage("a schedule has no mixing matrix", "choose one or more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decentralized::Topology;

    #[test]
    fn a_pointer_to_a_schedule_is_one() {
        let ring: Arc<dyn Schedule> = Arc::new(Topology::Ring);
        assert_eq!(ring.mixing(4, 0).unwrap(), Topology::Ring.mixing(4, 0).unwrap());
        let shared: Arc<Arc<dyn Schedule>> = Arc::new(ring);
        assert_eq!(shared.mixing(3, 5).unwrap(), Topology::Ring.mixing(3, 5).unwrap());
    }
}
