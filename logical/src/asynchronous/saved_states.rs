//! Named states of windows and pair exchanges, for checkpoints: their values and feedback memory.

use crate::encoding::State;
use crate::{Buffer, DType, Error, Result};

/// Collects states, except empty ones.
#[derive(Default)]
pub(super) struct SavedStates(Vec<(String, State)>);

impl SavedStates {
    /// Adds a copy of the memory `what` for a rank.
    pub(super) fn add(&mut self, what: &str, rank: usize, state: &State) -> Result<()> {
        if state.operations() > 0 || state.bytes() > 0 {
            self.0.push((format!("{what} {rank}"), state.copied()?));
        }
        Ok(())
    }

    /// Adds the value of a rank, its number, and its count of changes.
    pub(super) fn add_value(&mut self, rank: usize, value: &Buffer, mass: f64, changes: u64) -> Result<()> {
        let own = value.copied()?;
        let mut state = State::default();
        state.restore(changes, [(VALUE.to_owned(), own), (MASS.to_owned(), Buffer::from_slice(&[mass])?)]);
        self.0.push((format!("{OF} {rank}"), state));
        Ok(())
    }

    pub(super) fn into_states(self) -> Vec<(String, State)> {
        self.0
    }
}

/// Name under which a value is saved, before its rank.
pub(super) const OF: &str = "value of";
const VALUE: &str = "value";
const MASS: &str = "mass";

/// Splits the name of a state into its kind and its rank.
pub(super) fn parse(name: &str) -> Option<(&str, usize)> {
    let (what, rank) = name.rsplit_once(' ')?;
    Some((what, rank.parse().ok()?))
}

/// Restores a value; returns its number.
pub(super) fn restore_value(state: &State, to: &Buffer) -> Result<f64> {
    let (Some(value), Some(mass)) = (state.get(VALUE), state.get(MASS)) else {
        return Err(unknown("a value without its parts"));
    };
    if (mass.dtype(), mass.len()) != (DType::F64, 1) {
        return Err(unknown("a mass that is not a number"));
    }
    to.write_all()?.copy_from(&value.read_all()?)?;
    Ok(mass.host::<f64>()?[0])
}

/// Returns the error for a state that does not match.
pub(super) fn unknown(what: &str) -> Error {
    let what = format!("the saved state `{what}` does not match");
    Error::usage(what, "restore a state of the same ranks, neighbours and encoding")
}
