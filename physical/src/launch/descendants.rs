//! Whatever the ranks of a job have started, wherever it is by now. Open this to see how a process is ended that has left
//! its rank's process group, as daemons do.
//!
//! Each rank is told by whom it was started, and what it starts inherits that with the rest of the environment: nobody else
//! has it. Only what was given another environment, or runs as another user, is not found.

use crate::bootstrap::parent::STARTERS;
use crate::bootstrap::{random, variable};
use crate::error::{Error, Result};
use crate::process;
use rustix::process::Signal;
use std::process::Command;

/// Looks for what is still there, at the end: what is about to be killed may start something meanwhile.
const ROUNDS: usize = 10;

/// The descendants of one job's ranks. Dropped, they are killed.
pub(super) struct Descendants {
    /// What marks them.
    mark: String,
    /// Of this launcher and of those around it, the outermost first.
    starters: String,
}

impl Descendants {
    /// Of a job that has none yet.
    ///
    /// # Errors
    /// [`Error::System`] if the system gives no random bytes.
    pub(super) fn none() -> Result<Self> {
        let number = random().map(u64::from_le_bytes).map_err(Error::no_random)?;
        let mark = format!("{}-{number:016x}", std::process::id());
        let starters = variable(STARTERS).map_or_else(String::new, |outer| format!("{outer} ")) + &mark;
        Ok(Descendants { mark, starters })
    }

    /// Marks what `command` will start.
    pub(super) fn mark(&self, command: &mut Command) {
        command.env(STARTERS, &self.starters);
    }

    /// Signals all but those in the process groups `but`; how many there are.
    pub(super) fn signal(&self, signal: Signal, but: &[i32]) -> usize {
        let is_marked = |word: &str| {
            let (name, starters) = word.split_once('=').unwrap_or_default();
            name == STARTERS && starters.split(' ').any(|starter| starter == self.mark)
        };
        process::signal_all(signal, but, is_marked)
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        for _ in 0..ROUNDS {
            if self.signal(Signal::KILL, &[]) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}
