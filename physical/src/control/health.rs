//! State of the ranks of a world: those that have left, the first failure, and the waits between ranks.
//!
//! The first failure is the *verdict*: it ends every operation of every rank with an error that names the culprit.
//! Transports only suspect failures (a closed socket, a silent ring); the monitors of the processes decide.

use super::wait_graph::{Missing, Waits};
use crate::bootstrap::exhausted;
use crate::error::{Error, ErrorContext, Peer, Result, Straggler};
use crate::runtime::{self, Instant};
use crate::system::environment::variable;
use crate::transport::message::Label;
use crate::waiting::deadline::parse_seconds;
use crate::waiting::doorbell::Bell;
use crate::waiting::stopwatch::Stopwatch;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Time for which a failed connection is only a suspicion, so that the verdict can name the rank that really failed. It is much
/// longer than a verdict takes, since even a starved process must not report a neighbour that has ended because of the verdict.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(10);
/// The variable for the silence of a rank, and its values.
const SILENCE: &str = "HEXAGRAM_SILENCE";
const SILENCES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
/// Help text about that variable, for programs that start ranks.
pub const SILENCE_HELP: &str = "\
Environment: HEXAGRAM_SILENCE is the number of seconds for which a rank may be stopped or disconnected before it counts as failed, 1 to \
86400 [default: 4]; raise it to use a debugger. Set it to the same value on all ranks.";

/// Intervals at which the processes of a job watch each other. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatOptions {
    /// Time between two heartbeats, which a dedicated thread sends (250 ms). Also the time for which an operation
    /// must be pending before its rank reports its waits to the others.
    pub beat: Duration,
    /// A process that is silent for less than this never counts as failed (default 4 s). It counts as failed 1.5
    /// heartbeats after that, so within 5 s by default. Raise it to stop a rank in a debugger; the user that starts
    /// the job does so with `HEXAGRAM_SILENCE`.
    pub silence: Duration,
    /// Time after which a pending operation is logged as a warning with the ranks for which it waits (10 s).
    pub late: Duration,
}

impl Default for HeartbeatOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        HeartbeatOptions { beat: Duration::from_millis(250), silence: seconds(4), late: seconds(10) }
    }
}

impl HeartbeatOptions {
    /// Returns the default, with the silence of `HEXAGRAM_SILENCE`, in seconds, if it is set.
    ///
    /// # Errors
    /// [`Error::Setup`] unless that is a number of seconds from 1 to 86,400.
    pub fn from_env() -> Result<Self> {
        variable(SILENCE).map_or_else(|| Ok(Self::default()), |text| Self::from_seconds(&text))
    }

    /// Decodes the value of `HEXAGRAM_SILENCE`.
    pub(crate) fn from_seconds(text: &str) -> Result<Self> {
        match parse_seconds(text).filter(|silence| SILENCES.contains(silence)) {
            Some(silence) => Ok(HeartbeatOptions { silence, ..Self::default() }),
            None => {
                let low = SILENCES.start().as_secs();
                let high = SILENCES.end().as_secs();
                let what =
                    format!("{SILENCE}={text} is not a number of seconds for which a rank may be silent");
                Err(Error::setup(what, format!("set it to {low} to {high} seconds, or unset it")))
            }
        }
    }

    /// Returns the silence after which a process counts as failed: its last heartbeat came up to one interval before it
    /// fell silent, and may have been late by half of one.
    pub(crate) fn tolerance(&self) -> Duration {
        self.silence.saturating_add(self.beat * 3 / 2)
    }

    /// Returns the time without an acknowledgement after which the system ends a connection. It is longer than the silence,
    /// whose error has more details.
    pub(super) fn system_tolerance(&self) -> Duration {
        self.tolerance().saturating_add(2 * self.beat)
    }

    /// Refuses values with which healthy ranks would count as failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.beat.is_zero() || self.silence < self.beat.saturating_mul(3) {
            let what = format!("ranks would count as failed after {:?} without a heartbeat", self.silence);
            let remedy = format!("allow at least three heartbeats of {:?} each", self.beat);
            return Err(Error::usage(what, remedy));
        }
        Ok(())
    }

    /// Returns the time until all pending operations of other ranks are known here: a beat until they are published,
    /// one until rank 0 has them, one until it answers, and one as a margin.
    pub(crate) fn hearsay(&self) -> Duration {
        self.beat.saturating_mul(4)
    }
}

/// The first failure of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Rank that failed.
    pub culprit: Peer,
    /// Cause of the failure, as a verb phrase.
    pub cause: String,
    /// What it is in an elastic world.
    change: Option<Change>,
}

/// Change of the members of an elastic world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// Generation that ends.
    generation: u64,
    /// True if no rank has failed. The culprit is this rank then.
    is_arrival: bool,
}

impl Verdict {
    /// Returns true if the members of an elastic world change, and no rank has failed.
    pub(crate) fn is_arrival(&self) -> bool {
        self.change.is_some_and(|change| change.is_arrival)
    }

    /// Returns the error with which the verdict ends the operation of a rank.
    pub fn error(&self, context: ErrorContext) -> Error {
        let Verdict { culprit, cause, change } = self.clone();
        match change {
            None => Error::PeerFailed { culprit, cause, context },
            Some(Change { generation, is_arrival }) => {
                Error::Membership { generation, culprit: (!is_arrival).then_some(culprit), cause, context }
            }
        }
    }
}

/// Reports a failure to the other processes of a world, unless one has been reported.
pub(crate) trait Reporter: Send + Sync {
    fn report(&self, culprit: usize, cause: &str);
}

/// The state of all ranks; one per process, shared if ranks are threads.
struct SharedHealth {
    peers: Vec<Peer>,
    left: Vec<AtomicBool>,
    verdict: OnceLock<Verdict>,
    bells: Mutex<Vec<Weak<dyn Bell>>>,
    heartbeat: HeartbeatOptions,
    /// Number of the generation, in an elastic world.
    generation: Option<u64>,
    waits: Mutex<Waits>,
    /// Set while a process that distributes verdicts has missed heartbeats, and may be declared failed.
    doubt: AtomicBool,
    /// Set once a rank of this process has given up, before any verdict.
    has_given_up: AtomicBool,
}

impl SharedHealth {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }
}

/// Knowledge of one rank about all ranks.
pub struct Health {
    rank: usize,
    shared: Arc<SharedHealth>,
    reporter: OnceLock<Arc<dyn Reporter>>,
}

impl Health {
    /// Creates the view of one rank, for a world whose ranks are processes. Everyone is well.
    pub(crate) fn new(rank: usize, peers: Vec<Peer>) -> Self {
        Self::watching(rank, peers, HeartbeatOptions::default(), None)
    }

    /// Creates the same view, with heartbeat options that the user chose, and the number of the generation in an elastic world.
    pub(crate) fn watching(
        rank: usize,
        peers: Vec<Peer>,
        heartbeat: HeartbeatOptions,
        generation: Option<u64>,
    ) -> Self {
        let left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        // All ranks report to rank 0, and ranks that are threads share its health.
        let waits = Mutex::new(Waits::new(peers.len(), rank == 0));
        let verdict = OnceLock::new();
        let bells = Mutex::default();
        let doubt = AtomicBool::new(false);
        let has_given_up = AtomicBool::new(false);
        let shared =
            SharedHealth { peers, left, verdict, bells, heartbeat, generation, waits, doubt, has_given_up };
        Health { rank, shared: Arc::new(shared), reporter: OnceLock::new() }
    }

    /// Returns the view of another rank in the same process.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        Health { rank, shared: Arc::clone(&self.shared), reporter: OnceLock::new() }
    }

    /// Returns this rank's peer.
    pub(crate) fn mine(&self) -> &Peer {
        &self.shared.peers[self.rank]
    }

    /// Returns names and processes, by rank.
    pub fn peers(&self) -> &[Peer] {
        &self.shared.peers
    }

    /// Returns the first failure, if there was one.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.shared.verdict.get()
    }

    /// Returns true if this process has given up for a reason of its own, rather than because of the failure of another rank.
    pub(crate) fn has_given_up(&self) -> bool {
        self.shared.has_given_up.load(Ordering::Acquire)
    }

    /// Returns true if `rank` has finished and announced it.
    pub fn has_left(&self, rank: usize) -> bool {
        self.shared.left[rank].load(Ordering::Acquire)
    }

    /// Gives up for this rank, and reports the reason to the others: `cause` is a verb phrase. Only the first failure
    /// counts.
    pub fn fail_self(&self, cause: &str) {
        if self.verdict().is_none() {
            self.shared.has_given_up.store(true, Ordering::Release);
        }
        self.report_failure(self.rank, cause);
    }

    /// Reports the rank that failed to the other processes before this process is notified, since it may end then.
    /// Only the first failure counts.
    pub(crate) fn report_failure(&self, culprit: usize, cause: &str) {
        if self.verdict().is_some() {
            return;
        }
        if let Some(reporter) = self.reporter.get() {
            reporter.report(culprit, cause);
        }
        self.record_verdict(culprit, cause);
    }

    /// Returns the failure of which `error` is a symptom, for a collective step that failed to begin. The others are
    /// notified that they need not wait for this rank.
    pub(crate) fn explain(&self, error: Error, context: ErrorContext) -> Error {
        // The verdict may be on its way, unless the error is a failure of this rank itself.
        let is_own = matches!(&error, Error::System { cause, .. } if exhausted(cause));
        let mut waited = Stopwatch::start();
        while self.verdict().is_none() && !is_own && (self.is_in_doubt() || waited.elapsed() < GRACE) {
            runtime::sleep(TICK);
        }
        match self.verdict() {
            Some(verdict) => verdict.error(context),
            None => {
                self.fail_self(&format!("gave up{context}: {error}"));
                error
            }
        }
    }

    /// Sets the reporter to other processes; the first one stays.
    pub(crate) fn set_reporter(&self, reporter: Arc<dyn Reporter>) {
        let _ = self.reporter.set(reporter);
    }

    /// Records the verdict unless there is one, and wakes all waiting threads. Returns whether it was the first.
    pub(crate) fn record_verdict(&self, rank: usize, cause: &str) -> bool {
        self.set_verdict(self.failure(rank, cause))
    }

    /// Records that the members of an elastic world change, unless there is a verdict, and wakes all waiting threads. The
    /// launcher notifies the other ranks. Without a `culprit`, a process waits to join.
    pub(crate) fn record_change(&self, culprit: Option<usize>, cause: &str) {
        let mut verdict = self.failure(culprit.unwrap_or(self.rank), cause);
        if let (None, Some(change)) = (culprit, &mut verdict.change) {
            change.is_arrival = true;
        }
        self.set_verdict(verdict);
    }

    /// Creates the verdict that `rank` has failed.
    pub(crate) fn failure(&self, rank: usize, cause: &str) -> Verdict {
        let change = self.shared.generation.map(|generation| Change { generation, is_arrival: false });
        Verdict { culprit: self.shared.peers[rank].clone(), cause: cause.to_owned(), change }
    }

    fn set_verdict(&self, verdict: Verdict) -> bool {
        let first = self.shared.verdict.set(verdict).is_ok();
        if first {
            self.shared.ring();
        }
        first
    }

    /// Records that `rank` has finished, and wakes every thread that waits for it in vain.
    pub(crate) fn leave(&self, rank: usize) {
        self.shared.left[rank].store(true, Ordering::Release);
        self.shared.ring();
    }

    /// Rings `bell` at every change from now on. An endpoint registers its bell here, so that a failure wakes it.
    pub fn wake(&self, bell: Weak<dyn Bell>) {
        let mut bells = self.shared.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(bell);
    }

    /// Records whether a process that distributes verdicts has missed heartbeats.
    pub(crate) fn set_doubt(&self, doubt: bool) {
        self.shared.doubt.store(doubt, Ordering::Release);
    }

    /// Returns true while a silence has not been judged: the verdict with the rank that really failed may not arrive.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.shared.doubt.load(Ordering::Acquire)
    }

    pub(crate) fn heartbeat(&self) -> &HeartbeatOptions {
        &self.shared.heartbeat
    }

    /// Returns the known waits between ranks.
    pub(crate) fn waits(&self) -> MutexGuard<'_, Waits> {
        self.shared.waits()
    }

    /// Publishes that an operation of this rank waits for `ranks`, until the notice is dropped.
    pub(crate) fn notice(&self, label: Label, ranks: &[usize]) -> PublishedWait {
        let number = self.waits().enter(self.rank, label, ranks);
        PublishedWait { shared: Arc::clone(&self.shared), rank: self.rank, number, since: runtime::now() }
    }

    /// Returns the ranks for which all ranks of this operation ultimately wait; empty if unknown.
    pub(crate) fn stragglers(&self, label: &Label) -> Vec<Straggler> {
        let missing = self.waits().missing(label);
        let asked = label.whole();
        let straggler = |Missing { rank, within }: Missing| {
            let context = match within {
                None => ErrorContext::Nothing,
                Some(label) if label == asked => ErrorContext::Device,
                Some(label) => ErrorContext::Operation(label.fingerprint, label.tag),
            };
            Some(Straggler { peer: self.peers().get(rank)?.clone(), context })
        };
        missing.into_iter().filter_map(straggler).collect()
    }

    /// Warns, once per operation, that it has been pending for long, and lists the missing ranks.
    pub(crate) fn warn(&self, label: &Label, waited: Duration, ranks: &[usize]) {
        if !self.waits().first_warning(self.rank, label) {
            return;
        }
        let Label { fingerprint, tag } = label;
        let mut missing = String::new();
        for straggler in self.stragglers(label) {
            // Writing to a string cannot fail.
            let _ = write!(missing, "; missing: {straggler}");
        }
        let ranks: Vec<String> = ranks.iter().map(|rank| self.peers()[*rank].to_string()).collect();
        let ranks = if ranks.is_empty() { "any rank".to_owned() } else { ranks.join(", ") };
        let me = self.rank;
        tracing::warn!("rank {me} has waited {waited:.1?} for {ranks} during {fingerprint}, {tag}{missing}");
    }
}

/// Keeps a wait published.
pub(crate) struct PublishedWait {
    shared: Arc<SharedHealth>,
    rank: usize,
    number: u64,
    pub(crate) since: Instant,
}

impl Drop for PublishedWait {
    fn drop(&mut self) {
        self.shared.waits().withdraw(self.rank, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vigilance_that_would_blame_the_living_is_refused() {
        let second = Duration::from_secs(1);
        let silence = |silence| HeartbeatOptions { silence, ..HeartbeatOptions::default() };
        assert!(HeartbeatOptions::default().check().is_ok() && silence(3 * second / 4).check().is_ok());
        let error = silence(second / 2).check().unwrap_err().to_string();
        assert!(error.contains("500ms") && error.contains("heartbeats of 250ms each"), "{error}");
        for beat in [Duration::ZERO, Duration::MAX] {
            assert!(HeartbeatOptions { beat, ..HeartbeatOptions::default() }.check().is_err());
        }
    }

    #[test]
    fn a_silence_of_the_environment_is_a_number_of_seconds_within_bounds() {
        for (text, silence) in [("60", 60_000), ("1", 1000), ("2.5", 2500), ("86400", 86_400_000)] {
            assert_eq!(HeartbeatOptions::from_seconds(text).unwrap().silence, Duration::from_millis(silence));
        }
        for text in ["0.9", "86401", "-3", "4s", "inf", "NaN", "1e30"] {
            let error = HeartbeatOptions::from_seconds(text).unwrap_err().to_string();
            assert!(error.contains(&format!("={text} ")) && error.contains("1 to 86400 seconds"), "{error}");
        }
    }

    #[test]
    fn the_first_failure_stays() {
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = Health::new(0, (0..3).map(peer).collect());
        assert!(health.record_verdict(2, "died") && !health.record_verdict(1, "died too"));
        assert_eq!(health.verdict().map(|verdict| verdict.culprit.rank), Some(2));
    }

    #[test]
    fn failures_and_arrivals_in_an_elastic_world_are_changes_of_its_members() {
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = || Health::watching(0, vec![peer(0), peer(1)], HeartbeatOptions::default(), Some(7));
        let text = |health: &Health| health.verdict().unwrap().error(ErrorContext::Joining).to_string();
        let (died, arrived) = (health(), health());
        died.record_verdict(1, "died");
        assert_eq!(
            text(&died),
            "generation 7 ends: rank 1 (host here, pid 1) died before all ranks had joined; continue with \
             World::next, or from the last checkpoint"
        );
        arrived.record_change(None, "a process waits to join");
        assert!(text(&arrived).starts_with("generation 7 ends: a process waits to join before"));
        assert!(arrived.verdict().unwrap().is_arrival() && !died.verdict().unwrap().is_arrival());
    }

    #[test]
    fn only_a_failure_before_all_others_is_of_this_rank_itself() {
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let [first, second] = [(); 2].map(|()| Health::new(0, vec![peer(0), peer(1)]));
        first.fail_self("gave up");
        second.record_verdict(1, "died");
        second.fail_self("gave up");
        assert!(first.has_given_up() && !second.has_given_up());
    }
}
