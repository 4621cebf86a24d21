//! Result of a job, and the rank that failed first.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Longest time between two failures that count as simultaneous, since a busy launcher may observe them in either
/// order.
const TIE: Duration = Duration::from_millis(100);

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank exited with code 0.
    Success,
    /// A rank failed, and the others were ended.
    Failed(FirstFailure),
    /// The ranks of another machine failed, and those of this machine were ended.
    Elsewhere {
        /// Description of that failure.
        why: String,
    },
    /// A signal asked the launcher to end the job, before any rank failed.
    Interrupted {
        /// Number of the signal: SIGINT, SIGTERM or SIGHUP.
        signal: i32,
    },
}

impl Outcome {
    /// Returns the exit code, as a shell would: 0, the code of the failed rank, or 128 plus the number of a signal.
    pub fn exit_code(&self) -> i32 {
        match self {
            Outcome::Success => 0,
            Outcome::Failed(first) => first.code,
            Outcome::Elsewhere { .. } => 1,
            Outcome::Interrupted { signal } => 128 + signal,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Success => f.write_str("every rank succeeded"),
            Outcome::Failed(first) => first.fmt(f),
            Outcome::Elsewhere { why } => write!(f, "another node failed: {why}"),
            Outcome::Interrupted { signal } => {
                write!(f, "interrupted by {}", name(ExitStatus::from_raw(*signal)))
            }
        }
    }
}

/// Rank that failed first: the root cause, as far as the order of exits shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstFailure {
    /// The rank.
    pub rank: usize,
    /// Process id of the rank.
    pub pid: u32,
    /// Description of the failure, as a verb phrase: `exited with code 3`, `was killed by signal 9 (SIGKILL)`.
    pub how: String,
    /// Exit code of the rank, or 128 plus the number of the signal that killed it.
    pub code: i32,
}

impl fmt::Display for FirstFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (pid {}) {}", self.rank, self.pid, self.how)
    }
}

/// One of several failures, with the facts that decide which was first.
pub(super) struct RankFailure {
    /// Instant at which the launcher observed it.
    at: Instant,
    /// True if a signal killed the rank.
    by_signal: bool,
    /// Rank and description.
    what: FirstFailure,
}

impl RankFailure {
    /// Creates the failure of a rank with this exit status. Returns `None` if it succeeded. A lost status counts as a
    /// failure.
    pub(super) fn of(rank: usize, pid: u32, status: &io::Result<ExitStatus>) -> Option<Self> {
        if status.as_ref().is_ok_and(ExitStatus::success) {
            return None;
        }
        let signal = status.as_ref().ok().and_then(ExitStatus::signal);
        let code = status.as_ref().ok().and_then(ExitStatus::code).unwrap_or(1);
        let code = signal.map_or(code, |signal| 128 + signal);
        let what = FirstFailure { rank, pid, how: how(status), code };
        Some(RankFailure { at: Instant::now(), by_signal: signal.is_some(), what })
    }
}

/// Describes an exit status, as a verb phrase.
pub(super) fn how(status: &io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) if status.signal().is_some() => format!("was killed by {}", name(*status)),
        Ok(status) => format!("exited with code {}", status.code().unwrap_or(1)),
        Err(cause) => format!("ended with an unknown status ({cause})"),
    }
}

/// Finds the root cause in `failures`, which are in the order of observation.
///
/// If a rank is killed, its peers lose their connections and may exit in the same instant. Therefore, among
/// simultaneous failures, a death by signal precedes an exit code.
pub(super) fn first_failure(failures: Vec<RankFailure>) -> Option<FirstFailure> {
    let earliest = failures.first()?.at;
    let tied = |failure: &&RankFailure| failure.at.duration_since(earliest) <= TIE;
    let culprit = failures.iter().take_while(tied).position(|failure| failure.by_signal).unwrap_or(0);
    failures.into_iter().nth(culprit).map(|failure| failure.what)
}

/// Returns the name of a signal, such as `signal 9 (SIGKILL)`, from the text of the standard library.
fn name(status: ExitStatus) -> String {
    status.to_string().replacen("signal: ", "signal ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT_3: i32 = 3 << 8;
    const SIGKILL: i32 = 9;

    fn failure(rank: usize, status: i32, after: Duration, start: Instant) -> RankFailure {
        let failure = RankFailure::of(rank, 100, &Ok(ExitStatus::from_raw(status))).unwrap();
        RankFailure { at: start + after, ..failure }
    }

    fn blamed(deaths: &[(usize, i32, u64)]) -> Option<usize> {
        let start = Instant::now();
        let failures =
            deaths.iter().map(|&(rank, status, ms)| failure(rank, status, Duration::from_millis(ms), start));
        first_failure(failures.collect()).map(|first| first.rank)
    }

    #[test]
    fn says_how_a_rank_ended() {
        let now = Instant::now();
        let exited = failure(2, EXIT_3, Duration::ZERO, now).what;
        assert_eq!((exited.to_string().as_str(), exited.code), ("rank 2 (pid 100) exited with code 3", 3));
        let killed = failure(0, SIGKILL, Duration::ZERO, now).what;
        assert_eq!((killed.how.as_str(), killed.code), ("was killed by signal 9 (SIGKILL)", 137));
        assert!(RankFailure::of(0, 100, &Ok(ExitStatus::from_raw(0))).is_none());
    }

    #[test]
    fn the_first_to_fail_is_blamed() {
        assert_eq!(blamed(&[]), None);
        assert_eq!(blamed(&[(1, EXIT_3, 0), (0, EXIT_3, 0), (2, EXIT_3, 1)]), Some(1));
        assert_eq!(blamed(&[(1, EXIT_3, 0), (0, SIGKILL, 500)]), Some(1));
    }

    #[test]
    fn at_a_tie_a_death_by_signal_is_blamed() {
        assert_eq!(blamed(&[(1, EXIT_3, 0), (0, EXIT_3, 1), (2, SIGKILL, 2)]), Some(2));
        assert_eq!(blamed(&[(3, SIGKILL, 0), (2, SIGKILL, 0)]), Some(3));
    }
}
