//! Processes that the ranks of a job have started, wherever they run now.
//!
//! Each rank has a mark of its launcher in its environment, and its child processes inherit the mark. A process with
//! a different environment, or of a different user, is not found.

use hexagram_physical::bootstrap::variable;
use hexagram_physical::launcher::{STARTERS, random, signal_all};
use hexagram_physical::{Error, Result};
use rustix::process::Signal;
use std::process::Command;

/// Number of searches at the end, since a process may start a new one just before it is killed.
const ROUNDS: usize = 10;

/// Descendants of the ranks of one job. They are killed when this is dropped.
pub(super) struct Descendants {
    /// Mark of this job.
    mark: String,
    /// Marks of this launcher and of the launchers around it, the outermost first.
    starters: String,
}

impl Descendants {
    /// Creates the mark of a job without processes.
    ///
    /// # Errors
    /// [`Error::System`] if the system provides no random bytes.
    pub(super) fn none() -> Result<Self> {
        let number = random().map(u64::from_le_bytes).map_err(Error::no_random)?;
        let mark = format!("{}-{number:016x}", std::process::id());
        let starters = variable(STARTERS).map_or_else(String::new, |outer| format!("{outer} ")) + &mark;
        Ok(Descendants { mark, starters })
    }

    /// Marks all processes that `command` will start.
    pub(super) fn mark(&self, command: &mut Command) {
        command.env(STARTERS, &self.starters);
    }

    /// Signals all descendants outside the process groups `but`, and returns their number.
    pub(super) fn signal(&self, signal: Signal, but: &[i32]) -> usize {
        let is_marked = |word: &str| {
            let (name, starters) = word.split_once('=').unwrap_or_default();
            name == STARTERS && starters.split(' ').any(|starter| starter == self.mark)
        };
        signal_all(signal, but, is_marked)
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
