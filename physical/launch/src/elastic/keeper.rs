//! The membership of an elastic job on all its machines, kept by the launcher of node 0: which processes start, continue and
//! are killed, and when.

use super::messages::{MemberOrder, MemberReport, ProcessId};
use super::roster::{Action, Roster};
use crate::Job;
use crate::console_line as say;
use crate::machines::{LineSender, MachineEvent};
use hexagram_physical::launcher::MemberNotice;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Time from the end of a process to the start of one in its place.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for which a process that has failed, as the others have found, may still end by itself.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest time for which a newcomer waits for others that are starting, so that they join together.
const GATHER: Duration = Duration::from_secs(1);
/// Longest time until the launcher of another machine reports that it kills a process.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest time until such a launcher reports that a process has started, or has died after a kill.
const REPORT: Duration = Duration::from_secs(60);
/// Doublings of the pause, one for each process in a row that ended before it was a member.
const MOST_DOUBLINGS: u32 = 5;

/// Keeper of the membership.
pub(super) struct Keeper {
    job: Job,
    roster: Roster,
    /// Machines that are here, by number, with the connections to other launchers; `None` for this one.
    machines: BTreeMap<usize, Option<LineSender>>,
    /// Machines that arrived when newcomers would have begun the finished work again.
    idle: BTreeSet<usize>,
    /// Processes that run or are being started.
    processes: BTreeMap<ProcessId, Process>,
    /// Number of processes started so far.
    started: ProcessId,
    /// Processes that started after the first generation began, or in place of others.
    newcomers: u32,
    /// Starts in place of other processes so far, of those that are allowed.
    restarts: u32,
    /// Starts in a row that ended before they were members.
    failed_starts: u32,
    /// Next starts: time, place, and number of the newcomer.
    starts: Vec<(Instant, usize, u32)>,
    /// Time at which newcomers that are ready join without others that are starting.
    gathering: Option<Instant>,
    /// Members of the newest generation that have not continued yet, and the time at which each is killed.
    late: BTreeMap<ProcessId, Instant>,
    /// Processes that are being started or killed, and the time at which the machine of each counts as gone.
    awaited: BTreeMap<ProcessId, Instant>,
    /// First failure of a process without which the others have not continued yet, and its machine.
    failure: Option<(usize, String)>,
    /// Orders for the launcher of this machine.
    orders: Vec<MemberOrder>,
}

/// Process that runs or is being started.
struct Process {
    place: usize,
    /// Process id, once it has started.
    pid: Option<i32>,
}

impl Keeper {
    /// Creates the keeper of a job without machines.
    pub(super) fn new(job: &Job, least: usize) -> Self {
        Keeper {
            job: job.clone(),
            roster: Roster::new(least),
            machines: BTreeMap::new(),
            idle: BTreeSet::new(),
            processes: BTreeMap::new(),
            started: 0,
            newcomers: 0,
            restarts: 0,
            failed_starts: 0,
            starts: Vec::new(),
            gathering: None,
            late: BTreeMap::new(),
            awaited: BTreeMap::new(),
            failure: None,
            orders: Vec::new(),
        }
    }

    /// Returns the orders for the launcher of this machine since the last call.
    pub(super) fn take_orders(&mut self) -> Vec<MemberOrder> {
        std::mem::take(&mut self.orders)
    }

    /// Handles an event of another machine.
    pub(super) fn machine(&mut self, event: MachineEvent) {
        match event {
            MachineEvent::Arrived(node, launcher) => self.arrived(node, Some(launcher)),
            MachineEvent::Message(node, line) if self.machines.contains_key(&node) => {
                if !MemberReport::parse(&line).is_some_and(|report| self.report(node, report)) {
                    self.refuse(node, "has sent a message that belongs to a different build");
                }
            }
            MachineEvent::Message(..) => {}
            MachineEvent::Gone(node) => self.gone(node),
        }
    }

    /// Ends the part of another machine in the job.
    fn refuse(&mut self, node: usize, why: &str) {
        if let Some(Some(launcher)) = self.machines.get(&node) {
            launcher.refuse(&format!("node {node} {why}"));
            self.gone(node);
        }
    }

    /// Starts the processes of a machine that is here from now on, unless the work is done.
    pub(super) fn arrived(&mut self, node: usize, launcher: Option<LineSender>) {
        self.machines.insert(node, launcher);
        match self.roster.is_finishing() {
            true => drop(self.idle.insert(node)),
            false => self.start_all(node),
        }
    }

    /// Starts the processes of a machine.
    fn start_all(&mut self, node: usize) {
        let is_first = self.roster.generation() == 0;
        for place in node * self.job.ranks..(node + 1) * self.job.ranks {
            self.newcomers += u32::from(!is_first);
            self.roster.will_start();
            self.start(place, if is_first { 0 } else { self.newcomers });
        }
    }

    /// Records that a machine is gone, with its processes.
    fn gone(&mut self, node: usize) {
        if self.machines.remove(&node).is_none() {
            return;
        }
        self.idle.remove(&node);
        let ranks = self.job.ranks;
        let is_there = |place: usize| place / ranks == node;
        let mut starting = self.starts.extract_if(.., |(_, place, _)| is_there(*place)).count();
        let mut lost = Vec::new();
        self.processes.retain(|id, process| {
            match process.pid {
                _ if !is_there(process.place) => return true,
                Some(_) => lost.push(*id),
                None => starting += 1,
            }
            false
        });
        if lost.len() + starting > 0 {
            self.failure.get_or_insert_with(|| (node, format!("node {node} is gone")));
        }
        if !self.roster.is_finishing() {
            say(&format!("node {node} is gone; {}", continuing(self.processes.len())));
        }
        let actions = self.roster.lost(&lost, starting);
        self.perform(actions);
    }

    /// Starts a process.
    fn start(&mut self, place: usize, newcomer: u32) {
        let process = self.started;
        self.started += 1;
        self.processes.insert(process, Process { place, pid: None });
        self.awaited.insert(process, Instant::now() + REPORT);
        self.order(process, MemberOrder::Start { process, place, newcomer });
        self.order(process, MemberOrder::send(process, &MemberNotice::Welcome(self.job.rejoin_wait)));
    }

    /// Gives an order to the launcher of a process.
    fn order(&mut self, process: ProcessId, order: MemberOrder) {
        let Some(place) = self.processes.get(&process).map(|process| process.place) else { return };
        match self.machines.get(&self.node_of(place)) {
            Some(Some(launcher)) => launcher.send_message(&order),
            Some(None) => self.orders.push(order),
            None => {}
        }
    }

    /// Gives an order to all launchers.
    fn order_all(&mut self, order: &MemberOrder) {
        self.machines.values().flatten().for_each(|launcher| launcher.send_message(order));
        self.orders.push(order.clone());
    }

    /// Records an event of a process on `node`. Returns false if the process does not belong there.
    pub(super) fn report(&mut self, node: usize, report: MemberReport) -> bool {
        let (MemberReport::Started(process, _)
        | MemberReport::Missing(process)
        | MemberReport::Request(process, _)
        | MemberReport::Killing(process)
        | MemberReport::Ended(process, _)) = report;
        let is_start = matches!(report, MemberReport::Started(..) | MemberReport::Missing(_));
        match self.processes.get(&process) {
            // It counts as dead.
            None => return process < self.started,
            Some(known) if self.node_of(known.place) != node || known.pid.is_none() != is_start => {
                return false;
            }
            Some(_) => {}
        }
        match report {
            MemberReport::Started(process, pid) => self.has_started(process, pid),
            MemberReport::Missing(process) => self.is_missing(process),
            MemberReport::Killing(process) => {
                self.awaited.insert(process, Instant::now() + REPORT);
            }
            MemberReport::Request(process, request) => {
                let actions = self.roster.request(process, request);
                self.perform(actions);
            }
            MemberReport::Ended(process, failure) => self.ended(process, failure.as_deref()),
        }
        true
    }

    fn has_started(&mut self, process: ProcessId, pid: i32) {
        if let Some(started) = self.processes.get_mut(&process) {
            started.pid = Some(pid);
        }
        self.awaited.remove(&process);
        let actions = self.roster.started(process);
        self.perform(actions);
    }

    /// Records that a process cannot be started.
    fn is_missing(&mut self, process: ProcessId) {
        let Some(Process { place, .. }) = self.processes.remove(&process) else { return };
        let who = format!("rank {place}{} cannot be started", self.on_node(place));
        let node = self.node_of(place);
        self.failure.get_or_insert((node, who));
        let actions = self.roster.will_not_start(1);
        self.perform(actions);
    }

    /// Records the end of a process, and plans the start of one in its place.
    fn ended(&mut self, process: ProcessId, failure: Option<&str>) {
        let Some(Process { place, pid: Some(pid) }) = self.processes.remove(&process) else { return };
        let was_member = self.roster.rank(process).is_some();
        self.failed_starts = if was_member { 0 } else { self.failed_starts + 1 };
        let may_start = failure.is_some() && !self.roster.is_finishing();
        let starts = may_start && self.restarts < self.job.max_restarts;
        if starts {
            self.restarts += 1;
            self.newcomers += 1;
            self.roster.will_start();
            let pause = PAUSE * (1 << self.failed_starts.min(MOST_DOUBLINGS));
            self.starts.push((Instant::now() + pause, place, self.newcomers));
        }
        let who = format!("rank {place} (pid {pid}{})", self.on_node(place));
        if let Some(how) = failure {
            let node = self.node_of(place);
            self.failure.get_or_insert_with(|| (node, format!("{who} {how}")));
        }
        let mut actions = self.roster.ended(process, failure);
        if self.roster.is_finishing() {
            let planned = std::mem::take(&mut self.starts).len();
            actions.extend(self.roster.will_not_start(planned));
        }
        let is_dismissed = self.roster.is_finishing() && !was_member;
        let is_news = !is_dismissed && !self.is_hopeless() && self.roster.remaining() > 0;
        if let Some(how) = failure.filter(|_| is_news) {
            self.announce_end(&format!("{who} {how}"), starts);
        }
        self.perform(actions);
    }

    /// Prints the end of a process that does not end the job.
    fn announce_end(&self, end: &str, starts: bool) {
        let continuing = continuing(self.processes.len());
        let (nth, of) = (self.restarts, self.job.max_restarts);
        let start = if starts { format!("; another one starts, {nth} of {of}") } else { String::new() };
        say(&format!("{end}; {continuing}{start}"));
    }

    /// Returns the machine of a place.
    fn node_of(&self, place: usize) -> usize {
        place / self.job.ranks
    }

    /// Names the machine of a place, in a job on several machines.
    fn on_node(&self, place: usize) -> String {
        match self.job.node {
            Some(_) => format!(" on node {}", self.node_of(place)),
            None => String::new(),
        }
    }

    /// Returns the time of the next action that no event causes.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let starts = self.starts.iter().map(|(at, ..)| *at);
        starts
            .chain(self.gathering)
            .chain(self.late.values().copied())
            .chain(self.awaited.values().copied())
            .min()
    }

    /// Starts the processes whose time has come, and kills members that have not continued in time.
    pub(super) fn timer(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.starts.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, place, newcomer) in due {
            self.start(place, newcomer);
        }
        if self.gathering.is_some_and(|until| until <= now) {
            let actions = self.roster.admit();
            self.perform(actions);
        }
        for process in take_due(&mut self.awaited, now) {
            self.lose_patience(process);
        }
        for process in take_due(&mut self.late, now) {
            self.kill(process);
        }
    }

    /// Kills a member that has not continued in time.
    fn kill(&mut self, process: ProcessId) {
        let Some(Process { place, pid: Some(pid) }) = self.processes.get(&process) else { return };
        let why = match self.roster.is_accused(process) {
            true => "does not answer the other ranks".to_owned(),
            false => format!("has not continued within {:?} after a change", self.job.rejoin_wait),
        };
        say(&format!("rank {place} (pid {pid}{}) {why}, and is killed", self.on_node(*place)));
        self.awaited.insert(process, Instant::now() + ANSWER);
        self.order(process, MemberOrder::Kill(process));
    }

    /// Counts the machine of a process as gone, whose launcher has not started or killed it in time.
    fn lose_patience(&mut self, process: ProcessId) {
        if let Some(process) = self.processes.get(&process) {
            self.refuse(self.node_of(process.place), "has not started or ended its ranks in time");
        }
    }

    /// Returns true while processes run or will start, on any machine.
    pub(super) fn is_active(&self) -> bool {
        self.roster.remaining() > 0
    }

    /// Returns true if too few processes are left. The others are notified.
    pub(super) fn is_hopeless(&self) -> bool {
        self.roster.is_hopeless()
    }

    /// Notifies all processes that no further generation begins.
    pub(super) fn end(&mut self, why: &str) {
        self.starts.clear();
        self.failure.get_or_insert_with(|| (0, why.to_owned()));
        let actions = self.roster.end(why);
        self.perform(actions);
    }

    /// Notifies the launchers that the processes of all machines have ended, unless the job has failed.
    pub(super) fn finish(&mut self) {
        if self.failure().is_none() {
            self.order_all(&MemberOrder::Over);
        }
    }

    /// Returns the first failure of a process and its machine, if failures count: no generation has continued after it.
    pub(super) fn failure(&self) -> Option<(usize, String)> {
        self.failure.clone().filter(|_| self.roster.has_failed())
    }

    /// Moves all times by that of a stop of the whole job.
    pub(super) fn delay(&mut self, by: Duration) {
        self.starts.iter_mut().for_each(|(at, ..)| *at += by);
        let times = self.late.values_mut().chain(self.awaited.values_mut());
        times.chain(&mut self.gathering).for_each(|at| *at += by);
    }

    /// Gives the orders that follow from an event.
    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(process, notice) => self.order(process, MemberOrder::send(process, &notice)),
                Action::Dismiss(process) => self.order(process, MemberOrder::Kill(process)),
                Action::Begun { generation, size, newcomers } => self.begun(generation, size, &newcomers),
            }
        }
        if self.failure.is_some() && !self.roster.has_failed() {
            self.failure = None;
            self.order_all(&MemberOrder::Continued);
        }
        self.set_times();
    }

    /// Starts the processes of idle machines. Reports a generation with newcomers, except the first.
    fn begun(&mut self, generation: u64, size: usize, newcomers: &[ProcessId]) {
        let idle = std::mem::take(&mut self.idle);
        idle.into_iter().for_each(|node| self.start_all(node));
        if newcomers.is_empty() {
            return;
        }
        self.failed_starts = 0;
        if generation > 1 {
            let joined = newcomers.iter().filter_map(|process| self.processes.get(process));
            let name = |process: &Process| {
                format!("pid {}{}", process.pid.unwrap_or_default(), self.on_node(process.place))
            };
            let joined: Vec<String> = joined.map(name).collect();
            say(&format!("joined: {}; generation {generation} has {size} ranks", joined.join(", ")));
        }
    }

    /// Sets the times of later actions.
    fn set_times(&mut self) {
        let until = *self.gathering.get_or_insert_with(|| Instant::now() + GATHER);
        self.gathering = self.roster.has_waiting_newcomers().then_some(until);
        self.set_kills();
    }

    /// Sets the time at which each late member is killed.
    fn set_kills(&mut self) {
        self.awaited.retain(|process, _| self.processes.contains_key(process));
        let late = self.roster.late();
        self.late.retain(|process, _| late.contains(process));
        let now = Instant::now();
        // A wait beyond the range of the clock has no end.
        let patient = now.checked_add(self.job.rejoin_wait);
        for process in late.into_iter().filter(|process| !self.awaited.contains_key(process)) {
            let soon = self.roster.is_accused(process).then_some(now + LAST_WORDS);
            let until = self.late.get(&process).copied().or(patient).into_iter().chain(soon).min();
            self.late.extend(until.map(|until| (process, until)));
        }
    }
}

/// Takes the processes whose time has come.
fn take_due(times: &mut BTreeMap<ProcessId, Instant>, now: Instant) -> Vec<ProcessId> {
    let due: Vec<ProcessId> =
        times.iter().filter(|(_, at)| **at <= now).map(|(process, _)| *process).collect();
    times.retain(|process, _| !due.contains(process));
    due
}

fn continuing(processes: usize) -> String {
    match processes {
        1 => "1 process continues".to_owned(),
        processes => format!("{processes} processes continue"),
    }
}

#[cfg(test)]
mod tests;
