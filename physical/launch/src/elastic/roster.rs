//! The membership of an elastic job, without processes and clocks: which processes form the next generation, and when.
//!
//! ```text
//! forming --all survivors are ready, and enough processes--> running --a member dies or leaves, or a process arrives--> forming
//! ```
//!
//! The first generation waits for all processes. A later one waits for the survivors of the last one, and takes in the
//! newcomers that are ready. Survivors keep their order; newcomers follow in the order of their starts. A newcomer that is ready
//! ends a generation once no other one is still starting, or [`Roster::admit`] is called.

use super::messages::ProcessId;
use super::values::Values;
use hexagram_physical::launcher::{MemberNotice, MemberRequest};
use std::collections::{BTreeMap, BTreeSet};

/// Effect of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send a message to a process.
    Send(ProcessId, MemberNotice),
    /// Kill a process that is not needed any more.
    Dismiss(ProcessId),
    /// Report that a generation has begun.
    Begun { generation: u64, size: usize, newcomers: Vec<ProcessId> },
}

/// The processes of a job, and its newest generation.
pub(super) struct Roster {
    /// Smallest number of ranks.
    least: usize,
    /// Processes that will start.
    starting: usize,
    /// Processes that run; true if one waits for the next generation.
    processes: BTreeMap<ProcessId, bool>,
    /// Number of the newest generation; 0 before the first.
    generation: u64,
    /// Processes of that generation by rank, also those that have ended.
    members: Vec<ProcessId>,
    /// Processes that are killed because a newcomer would have begun the finished work again.
    dismissed: BTreeSet<ProcessId>,
    /// True while the next generation forms.
    is_forming: bool,
    /// True once a process has ended with success in this generation.
    is_finishing: bool,
    /// True if a process of this generation has failed, and none has ended with success since.
    has_failed: bool,
    /// Processes of this generation that have failed, as the others have found.
    accused: BTreeSet<ProcessId>,
    values: Values,
}

impl Roster {
    /// Creates the roster of a job without processes.
    pub(super) fn new(least: usize) -> Self {
        Roster {
            least,
            starting: 0,
            processes: BTreeMap::new(),
            generation: 0,
            members: Vec::new(),
            dismissed: BTreeSet::new(),
            is_forming: true,
            is_finishing: false,
            has_failed: false,
            accused: BTreeSet::new(),
            values: Values::default(),
        }
    }

    /// Records that a process will start.
    pub(super) fn will_start(&mut self) {
        self.starting += 1;
    }

    /// Records that a process has started.
    pub(super) fn started(&mut self, process: ProcessId) -> Vec<Action> {
        self.starting = self.starting.saturating_sub(1);
        self.processes.insert(process, false);
        self.dismiss()
    }

    /// Records that this many processes will not start after all.
    pub(super) fn will_not_start(&mut self, count: usize) -> Vec<Action> {
        self.lost(&[], count)
    }

    /// Serves a request of a process.
    pub(super) fn request(&mut self, process: ProcessId, request: MemberRequest) -> Vec<Action> {
        if !self.processes.contains_key(&process) {
            return Vec::new();
        }
        match request {
            MemberRequest::Ready => self.ready(process),
            MemberRequest::Failed { generation, rank } => {
                let accused = self.members.get(rank).filter(|_| generation == self.generation);
                self.accused.extend(accused);
                Vec::new()
            }
            request => {
                let answers = self.values.request(self.generation, process, request);
                answers.into_iter().map(|(process, answer)| Action::Send(process, answer)).collect()
            }
        }
    }

    /// Records that a process waits for the next generation.
    fn ready(&mut self, process: ProcessId) -> Vec<Action> {
        self.processes.insert(process, true);
        let mut actions = match self.rank(process) {
            Some(rank) => self.change(Some(rank), "left early, for the next generation"),
            None => self.admit_if_all_ready(),
        };
        actions.extend(self.form());
        actions
    }

    /// Records the end of a process, with its cause as a verb phrase if it failed.
    pub(super) fn ended(&mut self, process: ProcessId, failure: Option<&str>) -> Vec<Action> {
        let mut actions = self.remove(process, failure);
        actions.extend(self.form());
        actions
    }

    /// Records that processes are gone with their machine, and that others of it will not start.
    pub(super) fn lost(&mut self, processes: &[ProcessId], starting: usize) -> Vec<Action> {
        self.starting = self.starting.saturating_sub(starting);
        let all = processes.iter();
        let mut actions: Vec<Action> =
            all.flat_map(|process| self.remove(*process, Some("was lost with its machine"))).collect();
        actions.extend(self.admit_if_all_ready());
        actions.extend(self.form());
        actions
    }

    /// Removes a process that has ended, without the start of the next generation.
    fn remove(&mut self, process: ProcessId, failure: Option<&str>) -> Vec<Action> {
        let rank = self.rank(process);
        self.processes.remove(&process);
        self.dismissed.remove(&process);
        self.values.forget(process);
        match failure {
            Some(cause) if rank.is_some() => {
                self.has_failed = true;
                self.change(rank, cause)
            }
            None if rank.is_some() || self.generation == 0 => self.finish(),
            _ => self.admit_if_all_ready(),
        }
    }

    /// Records that a process has ended with success. The work is done, also that of processes that failed before.
    fn finish(&mut self) -> Vec<Action> {
        self.is_finishing = true;
        self.has_failed = false;
        self.dismiss()
    }

    /// Dismisses all newcomers if a rank has ended with success: they would begin the finished work again.
    fn dismiss(&mut self) -> Vec<Action> {
        if !self.is_finishing || self.generation == 0 {
            return Vec::new();
        }
        let newcomers: Vec<ProcessId> = self.newcomers().map(|(process, _)| process).collect();
        self.dismissed.extend(&newcomers);
        newcomers.into_iter().map(Action::Dismiss).collect()
    }

    /// Returns true if newcomers are ready, for which no generation has ended yet.
    pub(super) fn has_waiting_newcomers(&self) -> bool {
        !self.is_forming && self.newcomers().any(|(_, is_ready)| is_ready)
    }

    /// Ends the newest generation for the newcomers that are ready.
    pub(super) fn admit(&mut self) -> Vec<Action> {
        match self.has_waiting_newcomers() {
            true => self.change(None, "a process waits to join"),
            false => Vec::new(),
        }
    }

    /// Ends the newest generation for newcomers, unless another one is still starting.
    fn admit_if_all_ready(&mut self) -> Vec<Action> {
        match self.starting == 0 && self.newcomers().all(|(_, is_ready)| is_ready) {
            true => self.admit(),
            false => Vec::new(),
        }
    }

    /// Returns the processes that may join the next generation, and whether they are ready.
    fn newcomers(&self) -> impl Iterator<Item = (ProcessId, bool)> {
        let processes = self.processes.iter().map(|(process, is_ready)| (*process, *is_ready));
        processes.filter(|(process, _)| !self.dismissed.contains(process) && self.rank(*process).is_none())
    }

    /// Returns the rank of a process in the newest generation.
    pub(super) fn rank(&self, process: ProcessId) -> Option<usize> {
        self.members.iter().position(|member| *member == process)
    }

    /// Ends the newest generation, unless its end has begun.
    fn change(&mut self, culprit: Option<usize>, cause: &str) -> Vec<Action> {
        if std::mem::replace(&mut self.is_forming, true) {
            return Vec::new();
        }
        let notice = MemberNotice::Changed { generation: self.generation, culprit, cause: cause.to_owned() };
        self.survivors().map(|member| Action::Send(member, notice.clone())).collect()
    }

    /// Returns the members of the newest generation that run.
    fn survivors(&self) -> impl Iterator<Item = ProcessId> {
        self.members.iter().copied().filter(|member| self.processes.contains_key(member))
    }

    /// Returns the survivors that do not wait for the next generation yet, while it forms.
    pub(super) fn late(&self) -> Vec<ProcessId> {
        let late = self.survivors().filter(|member| self.is_forming && !self.processes[member]);
        late.collect()
    }

    /// Returns true if a member of the newest generation has failed, as the others have found.
    pub(super) fn is_accused(&self, process: ProcessId) -> bool {
        self.accused.contains(&process)
    }

    /// Begins the next generation if it is complete.
    fn form(&mut self) -> Vec<Action> {
        let is_awaited = |process: &ProcessId, is_ready: &bool| {
            !is_ready && (self.generation == 0 || self.members.contains(process))
        };
        let is_first_incomplete = self.generation == 0 && self.starting > 0;
        if !self.is_forming
            || is_first_incomplete
            || self.processes.iter().any(|(process, is_ready)| is_awaited(process, is_ready))
        {
            return Vec::new();
        }
        let newcomers: Vec<ProcessId> =
            self.newcomers().filter(|(_, is_ready)| *is_ready).map(|(process, _)| process).collect();
        let members: Vec<ProcessId> = self.survivors().chain(newcomers.iter().copied()).collect();
        if members.len() < if self.is_finishing { 1 } else { self.least } {
            return Vec::new();
        }
        self.begin(members, newcomers)
    }

    fn begin(&mut self, members: Vec<ProcessId>, newcomers: Vec<ProcessId>) -> Vec<Action> {
        self.generation += 1;
        // Ranks that ended with success are not missing.
        self.least = self.least.min(members.len());
        self.is_forming = false;
        self.is_finishing = false;
        self.has_failed = false;
        self.accused.clear();
        self.values = Values::default();
        self.members = members;
        let [number, size] = [self.generation as usize, self.members.len()];
        let mut actions = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            self.processes.insert(*member, false);
            let notice = MemberNotice::Generation { number: number as u64, rank, size };
            actions.push(Action::Send(*member, notice));
        }
        actions.push(Action::Begun { generation: self.generation, size, newcomers });
        actions
    }

    /// Returns the number of processes that run or will start.
    pub(super) fn remaining(&self) -> usize {
        self.processes.len() + self.starting
    }

    /// Returns true if too few processes are left for another generation.
    pub(super) fn is_hopeless(&self) -> bool {
        !self.is_finishing && self.remaining() < self.least
    }

    /// Returns true once a process has ended with success, after which none is started.
    pub(super) fn is_finishing(&self) -> bool {
        self.is_finishing
    }

    /// Returns true if a process of the newest generation failed, and none has ended with success since; also if no generation
    /// has begun.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed || self.generation == 0
    }

    /// Returns the number of the newest generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Notifies all processes that no further generation begins.
    pub(super) fn end(&self, why: &str) -> Vec<Action> {
        let notice = |process: &ProcessId| Action::Send(*process, MemberNotice::Ended(why.to_owned()));
        self.processes.keys().map(notice).collect()
    }
}

#[cfg(test)]
mod tests;
