//! Elastic jobs: the end of one process does not end the others.

use super::{JobPhase, Supervisor};
use crate::console_line as say;
use crate::elastic::{MemberEvent, Members};
use crate::logs::RankLog;
use crate::outcome::how;
use rustix::process::Signal;
use std::future;
use std::io;
use std::process::ExitStatus;

impl Supervisor {
    /// Records the end of a process of an elastic job.
    pub(super) fn member_ended(&mut self, number: usize, status: &io::Result<ExitStatus>) {
        let Some(members) = &mut self.members else { return };
        let is_success = status.as_ref().is_ok_and(ExitStatus::success);
        let failure = (!is_success).then(|| how(status));
        let killed = members.ended(number, failure.as_deref());
        self.kill(&killed);
        self.end_if_hopeless();
    }

    /// Begins the end of an elastic job of which too few processes are left.
    fn end_if_hopeless(&mut self) {
        if let Some(members) = self.members.as_mut().filter(|members| members.is_hopeless()) {
            members.end("fewer ranks are left than --elastic requires");
            self.enter(JobPhase::Noticing);
        }
    }

    /// Reacts to an event of an elastic job.
    pub(super) fn handle(&mut self, event: MemberEvent) {
        let Some(members) = &mut self.members else { return };
        let killed = match event {
            MemberEvent::Request(process, request) => members.request(process, request),
            MemberEvent::Late => members.late(),
            MemberEvent::Start(number) => return self.start_newcomer(number),
        };
        // The ranks have continued without those that failed.
        if !members.has_failed() {
            self.failures.clear();
        }
        self.kill(&killed);
    }

    /// Kills the ranks with these numbers.
    fn kill(&self, numbers: &[usize]) {
        let running = numbers.iter().filter_map(|number| self.running.get(number));
        running.for_each(|running| running.rank.signal(Signal::KILL));
    }

    /// Returns true if a process starts later.
    pub(super) fn will_start(&self) -> bool {
        self.phase == JobPhase::Running && self.members.as_ref().is_some_and(Members::will_start)
    }

    /// Starts a process in place of one that has ended. One that cannot be started is missing, which may end the job.
    fn start_newcomer(&mut self, number: usize) {
        let Some((job, mut setup)) = self.members.as_mut().and_then(Members::newcomer) else { return };
        let logs = job.logs.as_ref().map(|folder| RankLog::create_all(folder, number..number + 1));
        let started = logs.transpose().and_then(|logs| {
            let logs = logs.and_then(|mut logs| logs.pop());
            self.start_rank(number, &job, &mut setup, logs)
        });
        if let Some(members) = &mut self.members {
            members.keep(setup);
            if let Err(error) = started {
                say(&error.to_string());
                let killed = members.has_not_started(number);
                self.kill(&killed);
            }
        }
        self.end_if_hopeless();
    }
}

/// Returns the next event of an elastic job; never in other jobs.
pub(super) async fn next_event(members: &mut Option<Members>) -> MemberEvent {
    match members {
        Some(members) => members.next().await,
        None => future::pending().await,
    }
}
