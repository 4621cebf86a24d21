//! Named states of windows and pair exchanges, with all that these hold and remember: to be saved with a checkpoint.

use crate::encoding::State;
use crate::{Buffer, DType, Error, Result};

/// Collects states; those that remember nothing are left out.
#[derive(Default)]
pub(super) struct Saved(Vec<(String, State)>);

impl Saved {
    /// Adds a copy of what is remembered as `what` of a rank.
    pub(super) fn add(&mut self, what: &str, rank: usize, state: &State) -> Result<()> {
        if state.operations() > 0 || state.bytes() > 0 {
            self.0.push((format!("{what} {rank}"), state.copied()?));
        }
        Ok(())
    }

    /// Adds the value of a rank, a number that belongs to it, and how often it has changed.
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

/// Returns what was remembered, and of which rank, by the name of a state.
pub(super) fn parse(name: &str) -> Option<(&str, usize)> {
    let (what, rank) = name.rsplit_once(' ')?;
    Some((what, rank.parse().ok()?))
}

/// Puts a value back where it was; returns the number that belongs to it.
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

/// Returns the error for what was saved by something else.
pub(super) fn unknown(what: &str) -> Error {
    let what = format!("unknown place here for what was saved as `{what}`");
    Error::usage(what, "restore what was saved of the same ranks, with the same neighbours and encoding")
}
