//! The rule by which the ranks of a job end together.
//!
//! ```text
//! Running --a rank fails--> Noticing --2 s--> Terminating (SIGTERM) --grace--> Killing (SIGKILL)
//!    `--------------- a signal ---------------^    `------- SIGINT -------------^
//! ```
//!
//! SIGTSTP stops all processes at any time, this process last, and SIGCONT continues them. Processes that ranks have
//! started elsewhere get the same signals, and are killed when the last rank has ended.

mod members;

use crate::Job;
use crate::console_line as say;
use crate::deadline::reached;
use crate::descendants::Descendants;
use crate::elastic::Members;
use crate::logs::RankLog;
use crate::machines::budget::{Budget, Checkpointed};
use crate::machines::{Decision, Machines, Start};
use crate::outcome::{Outcome, RankFailure, first_failure};
use crate::output::Console;
use crate::rank::RankProcess;
use crate::rendezvous::RendezvousSetup;
use crate::report::EndReporter;
use crate::signals::{SignalRequest, Signals};
use hexagram_physical::launcher::{RESTART, RegisteredFlags};
use hexagram_physical::{Error, Result};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time after a failure in which the other ranks detect and report it themselves.
const NOTICE: Duration = Duration::from_secs(2);
/// Longest time that the system takes to end a killed process. A large memory or a busy driver needs seconds.
const DEATH: Duration = Duration::from_secs(60);

/// Runs `job` to its end on this thread's runtime, which starts the ranks.
///
/// # Errors
/// Those of [`Job::run`].
pub(super) async fn supervise(job: &Job) -> Result<Outcome> {
    // Before the first rank starts, since a Ctrl-C in between would end this process immediately.
    let mut signals = Signals::listen()?;
    let opened = unless_ended(&mut signals, Machines::open(job)).await;
    let mut machines = match opened {
        Ok(machines) => machines?,
        Err(signal) => return Ok(Outcome::Interrupted { signal }),
    };
    // An elastic job starts single processes.
    let mut budget = Budget::new(if job.elastic.is_some() { 0 } else { job.max_restarts });
    let mut why = String::new();
    loop {
        let start = match unless_ended(&mut signals, machines.next_start(why)).await {
            Ok(start) => start?,
            Err(signal) => {
                machines.stop().await;
                return Ok(Outcome::Interrupted { signal });
            }
        };
        announce(&start, job);
        let started = of_start(job, &start);
        let members = Members::of(&started, || machines.elastic_link());
        let mut supervisor = Supervisor::start(&started, start.secret.as_deref(), members)?;
        supervisor.until_all_ended(&mut signals, machines.trouble()).await?;
        supervisor.until_all_written(&mut signals).await;
        let checkpointed = supervisor.checkpointed();
        let outcome = supervisor.outcome()?;
        let decided = machines.decide(&outcome, &mut budget, checkpointed);
        why = match unless_ended(&mut signals, decided).await {
            Ok(decision) => match decision? {
                Decision::Restart(why) => why,
                Decision::Stop(why) => {
                    budget.stall().into_iter().for_each(|stall| say(&stall));
                    let why = why.filter(|_| outcome == Outcome::Success);
                    return Ok(why.map_or(outcome, |why| Outcome::Elsewhere { why }));
                }
            },
            Err(signal) => {
                machines.stop().await;
                let is_success = outcome == Outcome::Success;
                return Ok(if is_success { Outcome::Interrupted { signal } } else { outcome });
            }
        };
    }
}

/// Waits for other launchers. Returns the number of a signal that asked to end the job while `work` was running.
async fn unless_ended<T>(signals: &mut Signals, work: impl Future<Output = T>) -> Result<T, i32> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            request = signals.next() => match request {
                SignalRequest::End(signal) => return Err(signal),
                SignalRequest::Stop => signals.stop_here().await,
                SignalRequest::Continue => {}
            },
        }
    }
}

/// Returns the job of one start: with its machines, the number of restarts for the ranks, and logs of its own.
fn of_start(job: &Job, start: &Start) -> Job {
    let may_restart = job.max_restarts > 0 || job.agrees();
    let mut job = job.clone();
    job.node = start.node.clone();
    // Ranks of a job without restarts inherit the number from the launcher of this process, if any.
    if may_restart {
        job.environment.push((RESTART.into(), start.restart.to_string().into()));
    }
    if start.restart > 0 {
        job.logs = job.logs.map(|folder| folder.join(format!("restart-{}", start.restart)));
    }
    job
}

/// Prints why the job starts again.
fn announce(start: &Start, job: &Job) {
    if start.restart == 0 {
        return;
    }
    // Starts for a machine that joins do not count.
    let of =
        if start.restart <= job.max_restarts { format!(" of {}", job.max_restarts) } else { String::new() };
    say(&format!("{}; restart {}{of}", start.why, start.restart));
}

/// Phase of a job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobPhase {
    /// No rank has failed.
    Running,
    /// A rank has failed, and the others have time to detect it.
    Noticing,
    /// All ranks have been sent SIGTERM.
    Terminating,
    /// All ranks have been sent SIGKILL.
    Killing,
}

/// State of a running job.
struct Supervisor {
    /// Time from SIGTERM to SIGKILL.
    grace: Duration,
    /// Ranks that have not ended.
    running: BTreeMap<usize, RunningRank>,
    /// Futures of their ends.
    ends: JoinSet<usize>,
    /// Output of the ranks.
    console: Console,
    /// Current phase.
    phase: JobPhase,
    /// End of the phase, if it ends by itself.
    deadline: Option<Instant>,
    /// Failures seen so far.
    failures: Vec<RankFailure>,
    /// Signal that ended the job, if one did.
    interrupted: Option<i32>,
    /// Failure on another machine that ended the job, if one did.
    elsewhere: Option<String>,
    /// Members of an elastic job.
    members: Option<Members>,
    /// Rendezvous, which the ranks inherit.
    setup: RendezvousSetup,
    /// Flags that the ranks set.
    flags: RegisteredFlags,
    /// Reporter of ranks that end before they have joined.
    reporter: EndReporter,
    /// Descendants of the ranks. Dropped last, when nothing more is started.
    descendants: Descendants,
}

/// Rank that has not ended, and the channel that notifies its output when it has.
struct RunningRank {
    /// Process of the rank.
    rank: RankProcess,
    /// Channel that is closed when this is dropped.
    _gone: watch::Sender<()>,
}

impl Supervisor {
    /// Opens the rendezvous and the logs, and starts the ranks.
    fn start(job: &Job, secret: Option<&[u8]>, members: Option<Members>) -> Result<Self> {
        let setup = RendezvousSetup::open(job, secret)?;
        // Those of an elastic job are opened with each process.
        match job.logs.as_ref().filter(|_| members.is_none()) {
            None => Self::start_ranks(job, setup, Vec::new(), members),
            Some(folder) => {
                let logs = RankLog::create_all(folder, job.numbers())?;
                let started = Self::start_ranks(job, setup, logs, members);
                started.inspect_err(|_| RankLog::remove_all(folder, job.numbers()))
            }
        }
    }

    /// Starts the ranks. If one cannot be started, kills those that were.
    fn start_ranks(
        job: &Job,
        setup: RendezvousSetup,
        logs: Vec<(RankLog, RankLog)>,
        members: Option<Members>,
    ) -> Result<Self> {
        let mut supervisor = Supervisor {
            grace: job.grace,
            running: BTreeMap::new(),
            ends: JoinSet::new(),
            console: Console::default(),
            phase: JobPhase::Running,
            deadline: None,
            failures: Vec::new(),
            interrupted: None,
            elsewhere: None,
            members,
            flags: setup.registered.clone(),
            reporter: EndReporter::new(job, &setup)?,
            setup,
            descendants: Descendants::none()?,
        };
        if let Some(members) = &mut supervisor.members {
            let orders = members.keeper_orders();
            supervisor.perform(orders)?;
            return Ok(supervisor);
        }
        let mut logs = logs.into_iter();
        for number in job.numbers() {
            supervisor.start_rank(number, job, logs.next())?;
        }
        Ok(supervisor)
    }

    /// Starts one rank. Returns its process id.
    fn start_rank(&mut self, number: usize, job: &Job, logs: Option<(RankLog, RankLog)>) -> Result<i32> {
        let out_of_files = |cause| job.out_of_files(format!("watch rank {number}"), cause);
        let rank = RankProcess::start(number, job, &mut self.setup, &self.descendants)?;
        let pid = rank.group();
        let is_shown = job.show.as_ref().is_none_or(|show| show.contains(number));
        self.adopt(number, rank, logs, is_shown).map_err(out_of_files)?;
        Ok(pid)
    }

    /// Watches a rank that was started.
    fn adopt(
        &mut self,
        number: usize,
        mut rank: RankProcess,
        logs: Option<(RankLog, RankLog)>,
        is_shown: bool,
    ) -> io::Result<()> {
        let ended = rank.ended()?;
        self.ends.spawn(async move {
            ended.await;
            number
        });
        let (gone, is_gone) = watch::channel(());
        if let Some(output) = rank.take_output() {
            self.console.follow(number, output, is_gone, logs, is_shown)?;
        }
        self.running.insert(number, RunningRank { rank, _gone: gone });
        Ok(())
    }

    /// Waits until all ranks have ended, and acts on signals, on `trouble` of other machines, and on the ends of phases.
    async fn until_all_ended(
        &mut self,
        signals: &mut Signals,
        trouble: impl Future<Output = String>,
    ) -> Result<()> {
        let mut trouble = pin!(trouble);
        while !self.running.is_empty() || self.awaits_members() {
            tokio::select! {
                why = &mut trouble, if self.elsewhere.is_none() => {
                    self.elsewhere = Some(why);
                    if self.phase == JobPhase::Running {
                        self.enter(JobPhase::Noticing);
                    }
                }
                Some(Ok(rank)) = self.ends.join_next() => self.rank_ended(rank)?,
                event = members::next_event(&mut self.members), if self.phase == JobPhase::Running => self.handle(event)?,
                request = signals.next() => self.obey(request, signals).await,
                () = reached(self.deadline) => self.phase_is_over()?,
            }
        }
        self.members_have_ended();
        Ok(())
    }

    /// Records the end of a rank. A failure begins the next phase, unless the job is elastic.
    fn rank_ended(&mut self, number: usize) -> Result<()> {
        let Some(RunningRank { mut rank, .. }) = self.running.remove(&number) else { return Ok(()) };
        let pid = rank.pid.as_raw_nonzero().get().unsigned_abs();
        let status = rank.reap();
        // Later ends are caused by this launcher.
        if matches!(self.phase, JobPhase::Running | JobPhase::Noticing) {
            if self.members.is_none() {
                self.reporter.rank_ended(number, pid, &status);
            }
            self.failures.extend(RankFailure::of(number, pid, &status));
        }
        if self.members.is_some() {
            return self.member_ended(number, &status);
        }
        if self.phase == JobPhase::Running && !self.failures.is_empty() {
            self.enter(JobPhase::Noticing);
        }
        Ok(())
    }

    /// Performs the request of a signal.
    async fn obey(&mut self, request: SignalRequest, signals: &mut Signals) {
        match request {
            SignalRequest::End(signal) => self.end(signal),
            SignalRequest::Stop => self.stop(signals).await,
            SignalRequest::Continue => self.signal(Signal::CONT),
        }
    }

    /// Stops all processes, and continues them when this process continues.
    async fn stop(&mut self, signals: &mut Signals) {
        let since = Instant::now();
        self.signal(Signal::STOP);
        signals.stop_here().await;
        self.signal(Signal::CONT);
        // Stopped ranks have lost that time, so their deadline moves.
        self.deadline = self.deadline.and_then(|deadline| deadline.checked_add(since.elapsed()));
        if let Some(members) = &mut self.members {
            members.delay(since.elapsed());
        }
    }

    /// Signals all ranks and their descendants.
    fn signal(&self, signal: Signal) {
        for RunningRank { rank, .. } in self.running.values() {
            rank.signal(signal);
        }
        let groups: Vec<i32> = self.running.values().map(|running| running.rank.group()).collect();
        self.descendants.signal(signal, &groups);
    }

    /// Begins the phase that a signal requests.
    fn end(&mut self, signal: i32) {
        match self.phase {
            JobPhase::Running | JobPhase::Noticing => {
                self.interrupted = Some(signal);
                self.leave();
                self.enter(JobPhase::Terminating);
            }
            JobPhase::Terminating if signal == SignalKind::interrupt().as_raw_value() => {
                self.enter(JobPhase::Killing)
            }
            JobPhase::Terminating | JobPhase::Killing => {}
        }
    }

    /// Begins the phase that follows the current one.
    fn phase_is_over(&mut self) -> Result<()> {
        match self.phase {
            JobPhase::Running => {}
            JobPhase::Noticing => self.enter(JobPhase::Terminating),
            JobPhase::Terminating => self.enter(JobPhase::Killing),
            JobPhase::Killing => return Err(self.give_up()),
        }
        Ok(())
    }

    /// Begins `phase`: sends its signal, and sets its deadline.
    fn enter(&mut self, phase: JobPhase) {
        let (signal, lasts) = match phase {
            JobPhase::Running => return,
            JobPhase::Noticing => (None, NOTICE),
            JobPhase::Terminating => (Some(Signal::TERM), self.grace),
            JobPhase::Killing => (Some(Signal::KILL), DEATH),
        };
        if let Some(signal) = signal {
            self.signal(signal);
        }
        // A stopped process receives nothing but SIGKILL until it continues.
        if phase == JobPhase::Terminating {
            self.signal(Signal::CONT);
        }
        self.phase = phase;
        // A grace period beyond the range of the clock means no deadline.
        self.deadline = Instant::now().checked_add(lasts);
    }

    /// Creates the error for ranks that survive SIGKILL.
    fn give_up(&mut self) -> Error {
        let mut stuck = Vec::new();
        for (number, RunningRank { rank, .. }) in &mut self.running {
            rank.abandon();
            stuck.push(format!("rank {number} (pid {})", rank.pid));
        }
        let remedy =
            "check for a hung file system or driver, which holds them in the kernel, and reboot if necessary";
        Error::system(format!("kill {}", stuck.join(", ")), io::ErrorKind::TimedOut, remedy)
    }

    /// Waits until the output has been written, but not beyond the next signal, nor beyond the grace period after
    /// one.
    async fn until_all_written(&mut self, signals: &mut Signals) {
        let deadline = self.interrupted.and_then(|_| Instant::now().checked_add(self.grace));
        loop {
            tokio::select! {
                () = self.console.finish() => return,
                request = signals.next() => match request {
                    SignalRequest::End(_) => return,
                    SignalRequest::Stop => signals.stop_here().await,
                    SignalRequest::Continue => {}
                },
                () = reached(deadline) => return,
            }
        }
    }

    /// Returns whether the ranks use checkpoints, and have saved one.
    fn checkpointed(&self) -> Checkpointed {
        Checkpointed { is_used: self.flags.uses_checkpoints(), has_saved: self.flags.has_saved() }
    }

    /// Returns the result of the job. Success with lost output is an error.
    fn outcome(mut self) -> Result<Outcome> {
        self.settle_failures();
        match (first_failure(self.failures), self.interrupted, self.console.lost()) {
            (Some(first), ..) => Ok(Outcome::Failed(first)),
            (None, Some(signal), _) => Ok(Outcome::Interrupted { signal }),
            (None, None, None) => {
                Ok(self.elsewhere.map_or(Outcome::Success, |why| Outcome::Elsewhere { why }))
            }
            (None, None, Some(cause)) => {
                let remedy = "free space at the destination: every rank succeeded, but some output is lost";
                // An io::Error cannot be cloned.
                let cause = io::Error::new(cause.kind(), cause.to_string());
                Err(Error::system("write the output of the ranks", cause, remedy))
            }
        }
    }
}
