//! Elastic jobs: the end of one process does not end the others.

use super::{JobPhase, Supervisor};
use crate::elastic::{MemberEvent, MemberFailure, MemberOrder, Members, Prepared, ProcessId};
use crate::outcome::how;
use hexagram_physical::Result;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::future;
use std::io;
use std::process::ExitStatus;

impl Supervisor {
    /// Records the end of a process of an elastic job.
    pub(super) fn member_ended(&mut self, number: usize, status: &io::Result<ExitStatus>) -> Result<()> {
        let Some(members) = &mut self.members else { return Ok(()) };
        // While the job ends, only the keeper on another machine needs to know.
        if self.phase != JobPhase::Running && members.are_kept_here() {
            return Ok(());
        }
        let is_success = status.as_ref().is_ok_and(ExitStatus::success);
        let orders = members.ended(number, (!is_success).then(|| how(status)));
        self.perform(orders)
    }

    /// Reacts to an event of an elastic job.
    pub(super) fn handle(&mut self, event: MemberEvent) -> Result<()> {
        let Some(members) = &mut self.members else { return Ok(()) };
        let orders = members.handle(event)?;
        self.perform(orders)
    }

    /// Carries out the orders of the keeper of the membership, and those that follow from them. Begins the end of a job of which
    /// too few processes are left.
    ///
    /// # Errors
    /// As [`Supervisor::start_member`].
    pub(super) fn perform(&mut self, orders: Vec<MemberOrder>) -> Result<()> {
        let mut orders = VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            let Some(members) = &mut self.members else { return Ok(()) };
            match order {
                MemberOrder::Start { process, place, newcomer } => {
                    orders.extend(self.start_member(process, place, newcomer)?);
                }
                MemberOrder::Send(process, notice) => members.send(process, notice),
                MemberOrder::Kill(process) => {
                    let running = members.place(process).and_then(|place| self.running.get(&place));
                    running.into_iter().for_each(|running| running.rank.signal(Signal::KILL));
                    orders.extend(members.kills(process));
                }
                MemberOrder::Continued => self.failures.clear(),
                MemberOrder::Over => {
                    self.failures.clear();
                    members.are_over();
                }
            }
        }
        let Some(members) = self.members.as_mut().filter(|_| self.phase == JobPhase::Running) else {
            return Ok(());
        };
        if let Some(orders) = members.end_if_hopeless() {
            self.enter(JobPhase::Noticing);
            return self.perform(orders);
        }
        Ok(())
    }

    /// Starts a process. Returns the orders that follow. One that cannot be started is missing, which may end the job.
    ///
    /// # Errors
    /// No process of this launcher can be started.
    fn start_member(&mut self, process: ProcessId, place: usize, newcomer: u32) -> Result<Vec<MemberOrder>> {
        let Some(members) = &mut self.members else { return Ok(Vec::new()) };
        let started = members.prepare(process, place, newcomer).and_then(|prepared| {
            let Prepared { job, logs, membership } = prepared;
            self.setup.membership = Some(membership);
            self.start_rank(place, &job, logs)
        });
        let Some(members) = &mut self.members else { return Ok(Vec::new()) };
        match started {
            Ok(pid) => Ok(members.has_started(process, pid)),
            Err(error) => members.has_not_started(process, place, error),
        }
    }

    /// Returns true while processes run or will start, here or on another machine.
    pub(super) fn awaits_members(&self) -> bool {
        self.phase == JobPhase::Running && self.members.as_ref().is_some_and(Members::is_active)
    }

    /// Notifies the other launchers that all processes have ended, unless this launcher ends the job.
    pub(super) fn members_have_ended(&mut self) {
        if let Some(members) = self.members.as_mut().filter(|_| self.phase == JobPhase::Running) {
            members.finish();
        }
    }

    /// Takes this machine out of an elastic job, after a signal to a launcher other than that of node 0.
    pub(super) fn leave(&mut self) {
        if let Some(members) = &mut self.members {
            members.leave();
        }
    }

    /// Keeps only the failures that decide the outcome of an elastic job.
    pub(super) fn settle_failures(&mut self) {
        match self.members.as_ref().map(Members::failure) {
            None => {}
            Some(MemberFailure::None) => self.failures.clear(),
            Some(MemberFailure::Here(why)) if self.failures.is_empty() => self.elsewhere = Some(why),
            Some(MemberFailure::Here(_)) => {}
            // The others have continued without this machine.
            Some(MemberFailure::Unknown) if self.interrupted.is_some() => self.failures.clear(),
            Some(MemberFailure::Unknown) => {}
            Some(MemberFailure::Elsewhere(why)) => {
                self.failures.clear();
                self.elsewhere = Some(why);
            }
        }
    }
}

/// Returns the next event of an elastic job; never in other jobs.
pub(super) async fn next_event(members: &mut Option<Members>) -> MemberEvent {
    match members {
        Some(members) => members.next().await,
        None => future::pending().await,
    }
}
