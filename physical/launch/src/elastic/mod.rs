//! Jobs whose ranks continue in the same processes when one of them dies or one arrives.
//!
//! | module | content |
//! |---|---|
//! | `roster` | which processes form the next generation, and when |
//! | `values` | the store through which the ranks of a generation meet |
//! | `wire` | the connection to each process |

mod roster;
mod values;
mod wire;

use crate::Job;
use crate::console_line as say;
use crate::deadline::reached;
use crate::rendezvous::RendezvousSetup;
use hexagram_physical::launcher::{MemberNotice, MemberRequest, RESTART};
use roster::{Action, Roster};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use values::ProcessId;
use wire::MemberConnection;

/// Time from the end of a process to the start of one in its place.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for which a process that has failed, as the others have found, may still end by itself.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Doublings of the pause, one for each process in a row that ended before it was a member.
const MOST_DOUBLINGS: u32 = 5;

/// Members of an elastic job, and the processes that start in place of others.
pub(super) struct Members {
    job: Job,
    /// Rendezvous, which newcomers inherit. `None` until the first processes have started.
    setup: Option<RendezvousSetup>,
    roster: Roster,
    /// Running processes, by their place in the job.
    places: BTreeMap<usize, Member>,
    /// Sender and receiver of the requests of all processes.
    sender: UnboundedSender<(ProcessId, MemberRequest)>,
    requests: UnboundedReceiver<(ProcessId, MemberRequest)>,
    /// Number of processes started so far.
    started: ProcessId,
    /// Starts in place of other processes so far, of those that are allowed.
    restarts: u32,
    /// Starts in a row that ended before they were members.
    failed_starts: u32,
    /// Next starts: time and place.
    starts: Vec<(Instant, usize)>,
    /// Generation that has ended, and the time at which its members that have not continued are killed.
    patience: Option<(u64, Instant)>,
}

/// Running process.
struct Member {
    process: ProcessId,
    pid: i32,
    connection: MemberConnection,
}

/// Event to which the supervisor reacts.
pub(super) enum MemberEvent {
    /// A process has sent a request.
    Request(ProcessId, MemberRequest),
    /// It is time to start a process at this place.
    Start(usize),
    /// Members have not continued in time.
    Late,
}

impl Members {
    /// Returns the members of an elastic job, before any process starts; `None` for other jobs.
    pub(super) fn of(job: &Job) -> Option<Self> {
        let least = job.elastic?;
        let (sender, requests) = unbounded_channel();
        Some(Members {
            job: job.clone(),
            setup: None,
            roster: Roster::new(job.ranks, least),
            places: BTreeMap::new(),
            sender,
            requests,
            started: 0,
            restarts: 0,
            failed_starts: 0,
            starts: Vec::new(),
            patience: None,
        })
    }

    /// Keeps the rendezvous for newcomers.
    pub(super) fn keep(&mut self, setup: RendezvousSetup) {
        self.setup = Some(setup);
    }

    /// Takes the rendezvous out, to start a newcomer, with its job. [`Members::keep`] puts it back.
    pub(super) fn newcomer(&mut self) -> Option<(Job, RendezvousSetup)> {
        let mut job = self.job.clone();
        job.environment.push((RESTART.into(), self.restarts.to_string().into()));
        job.logs = job.logs.map(|folder| folder.join(format!("newcomer-{}", self.restarts)));
        Some((job, self.setup.take()?))
    }

    /// Opens the connection to a process that starts at `place`, which inherits it from `setup`.
    ///
    /// # Errors
    /// The system errors, if no descriptor is left.
    pub(super) fn connect(&mut self, place: usize, setup: &mut RendezvousSetup) -> io::Result<()> {
        let process = self.started;
        let (connection, theirs) = MemberConnection::open(process, self.sender.clone())?;
        connection.send(MemberNotice::Welcome(self.job.rejoin_wait));
        setup.membership = Some(theirs);
        self.started += 1;
        self.places.insert(place, Member { process, pid: 0, connection });
        Ok(())
    }

    /// Records that the process at `place` has started.
    pub(super) fn has_started(&mut self, place: usize, pid: i32) {
        if let Some(member) = self.places.get_mut(&place) {
            member.pid = pid;
            self.roster.started(member.process);
        }
    }

    /// Records that the process at `place` could not be started. Returns the places of processes to kill.
    pub(super) fn has_not_started(&mut self, place: usize) -> Vec<usize> {
        self.places.remove(&place);
        let actions = self.roster.will_not_start();
        self.perform(actions)
    }

    /// Returns the next event.
    pub(super) async fn next(&mut self) -> MemberEvent {
        let start = self.starts.iter().min().copied();
        let late = self.patience.map(|(_, at)| at);
        tokio::select! {
            Some((process, request)) = self.requests.recv() => MemberEvent::Request(process, request),
            () = reached(start.map(|(at, _)| at)) => {
                let place = start.map_or(0, |(_, place)| place);
                self.starts.retain(|(_, other)| *other != place);
                MemberEvent::Start(place)
            }
            () = reached(late) => MemberEvent::Late,
        }
    }

    /// Serves a request. Returns the places of processes to kill.
    pub(super) fn request(&mut self, process: ProcessId, request: MemberRequest) -> Vec<usize> {
        let actions = self.roster.request(process, request);
        self.perform(actions)
    }

    /// Returns the places of members that have not continued in time, which are killed.
    pub(super) fn late(&mut self) -> Vec<usize> {
        self.patience = None;
        let late = self.roster.late();
        let places = self.places.iter().filter(|(_, member)| late.contains(&member.process));
        for (place, member) in places.clone() {
            let why = match self.roster.are_late_accused() {
                true => "does not answer the other ranks".to_owned(),
                false => format!("has not continued within {:?} after a change", self.job.rejoin_wait),
            };
            say(&format!("rank {place} (pid {}) {why}, and is killed", member.pid));
        }
        places.map(|(place, _)| *place).collect()
    }

    /// Records the end of the process at `place`, with its description if it failed, and plans the start of one in its place.
    /// Returns the places of processes to kill.
    pub(super) fn ended(&mut self, place: usize, failure: Option<&str>) -> Vec<usize> {
        let Some(member) = self.places.remove(&place) else { return Vec::new() };
        let was_member = self.roster.rank(member.process).is_some();
        self.failed_starts = if was_member { 0 } else { self.failed_starts + 1 };
        let may_start = failure.is_some() && !self.roster.is_finishing();
        let starts = may_start && self.restarts < self.job.max_restarts;
        if starts {
            self.restarts += 1;
            self.roster.will_start();
            let pause = PAUSE * (1 << self.failed_starts.min(MOST_DOUBLINGS));
            self.starts.push((Instant::now() + pause, place));
        }
        let actions = self.roster.ended(member.process, failure);
        if self.roster.is_finishing() {
            self.starts.clear();
        }
        let is_dismissed = self.roster.is_finishing() && !was_member;
        let is_news = !is_dismissed && !self.is_hopeless() && self.roster.remaining() > 0;
        if let Some(how) = failure.filter(|_| is_news) {
            self.announce_end(place, member.pid, how, starts);
        }
        self.perform(actions)
    }

    /// Prints the end of a process that does not end the job.
    fn announce_end(&self, place: usize, pid: i32, how: &str, starts: bool) {
        let continuing = match self.places.len() {
            1 => "1 process continues".to_owned(),
            processes => format!("{processes} processes continue"),
        };
        let (nth, of) = (self.restarts, self.job.max_restarts);
        let start = if starts { format!("; another one starts, {nth} of {of}") } else { String::new() };
        say(&format!("rank {place} (pid {pid}) {how}; {continuing}{start}"));
    }

    /// Returns true if a process starts later.
    pub(super) fn will_start(&self) -> bool {
        !self.starts.is_empty()
    }

    /// Returns true if too few processes are left. The others are notified.
    pub(super) fn is_hopeless(&self) -> bool {
        self.roster.is_hopeless()
    }

    /// Notifies all processes that no further generation begins.
    pub(super) fn end(&mut self, why: &str) {
        self.starts.clear();
        let actions = self.roster.end(why);
        self.perform(actions);
    }

    /// Returns true if failures of processes count: no generation has continued after them.
    pub(super) fn has_failed(&self) -> bool {
        self.roster.has_failed()
    }

    /// Moves all times by that of a stop of the whole job.
    pub(super) fn delay(&mut self, by: Duration) {
        self.starts.iter_mut().for_each(|(at, _)| *at += by);
        self.patience.iter_mut().for_each(|(_, at)| *at += by);
    }

    /// Sends messages. Returns the places of processes to kill.
    fn perform(&mut self, actions: Vec<Action>) -> Vec<usize> {
        let place_of = |members: &Self, process| {
            members.places.iter().find(|(_, member)| member.process == process).map(|(place, _)| *place)
        };
        let mut killed = Vec::new();
        for action in actions {
            match action {
                Action::Send(process, notice) => {
                    let member = place_of(self, process).and_then(|place| self.places.get(&place));
                    if let Some(member) = member {
                        member.connection.send(notice);
                    }
                }
                Action::Dismiss(process) => killed.extend(place_of(self, process)),
                Action::Begun { generation, size, newcomers } => self.begun(generation, size, &newcomers),
            }
        }
        self.watch_patience();
        killed
    }

    /// Reports a generation with newcomers, except the first.
    fn begun(&mut self, generation: u64, size: usize, newcomers: &[ProcessId]) {
        if !newcomers.is_empty() {
            self.failed_starts = 0;
        }
        if generation > 1 && !newcomers.is_empty() {
            let pids = self.places.values().filter(|member| newcomers.contains(&member.process));
            let pids: Vec<String> = pids.map(|member| format!("pid {}", member.pid)).collect();
            say(&format!("joined: {}; generation {generation} has {size} ranks", pids.join(", ")));
        }
    }

    /// Sets the time at which late members are killed, once for each generation.
    fn watch_patience(&mut self) {
        let generation = self.roster.generation();
        if self.roster.late().is_empty() {
            self.patience = None;
        } else if self.patience.is_none_or(|(since, _)| since != generation) {
            let at = Instant::now().checked_add(self.job.rejoin_wait);
            self.patience = at.map(|at| (generation, at));
        }
        let soon = Instant::now() + LAST_WORDS;
        if self.roster.are_late_accused() && self.patience.is_none_or(|(_, at)| at > soon) {
            self.patience = Some((generation, soon));
        }
    }
}
