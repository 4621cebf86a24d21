//! Jobs whose ranks continue in the same processes when one of them dies or one arrives.
//!
//! The launcher of node 0 keeps the membership. The launchers of all machines report the events of their processes to it, and
//! carry out its orders.
//!
//! | module | content |
//! |---|---|
//! | `keeper` | the membership: which processes start, continue and are killed |
//! | `roster` | which processes form the next generation, and when |
//! | `values` | the store through which the ranks of a generation meet |
//! | `messages` | messages between the keeper and the launchers |
//! | `wire` | the connection to each process |

mod keeper;
mod messages;
mod roster;
mod values;
mod wire;

use crate::Job;
use crate::console_line as say;
use crate::deadline::reached;
use crate::logs::RankLog;
use crate::machines::{ElasticLink, LineSender, MachineEvent, interrupted, refusal};
use hexagram_physical::launcher::{MemberRequest, RESTART};
use hexagram_physical::{Error, Result};
use keeper::Keeper;
use messages::MemberReport;
pub(super) use messages::{MemberOrder, ProcessId};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use wire::MemberConnection;

/// Number of the machine whose launcher keeps the membership.
const KEEPER_NODE: usize = 0;

/// Processes of this machine in an elastic job.
pub(super) struct Members {
    job: Job,
    /// Logs of the first processes, from the start of one of them.
    logs: Option<BTreeMap<usize, (RankLog, RankLog)>>,
    /// True once a process has started.
    has_started: bool,
    /// Running processes, by their place in the job.
    places: BTreeMap<usize, (ProcessId, MemberConnection)>,
    /// Sender and receiver of the requests of all processes.
    sender: UnboundedSender<(ProcessId, MemberRequest)>,
    requests: UnboundedReceiver<(ProcessId, MemberRequest)>,
    authority: Authority,
}

/// Place of the membership.
enum Authority {
    /// This launcher keeps it, for the launchers of other machines, too.
    Here { keeper: Box<Keeper>, machines: UnboundedReceiver<MachineEvent> },
    /// The launcher of node 0 keeps it, until all processes of the job have ended.
    Elsewhere { keeper: LineSender, orders: UnboundedReceiver<String>, is_over: bool },
}

/// Failure that decides the outcome of a job.
pub(super) enum MemberFailure {
    None,
    /// That of a process of this machine or, without any, for this reason.
    Here(String),
    /// That of a process of another machine, with this description.
    Elsewhere(String),
    /// Only the launcher of node 0 knows.
    Unknown,
}

/// A process that is to be started.
pub(super) struct Prepared {
    pub(super) job: Job,
    pub(super) logs: Option<(RankLog, RankLog)>,
    /// Its end of the connection to this launcher.
    pub(super) membership: OwnedFd,
}

/// Event to which the supervisor reacts.
pub(super) enum MemberEvent {
    /// A process has sent a request.
    Request(ProcessId, MemberRequest),
    /// A machine has arrived, has sent a report, or is gone.
    Machine(MachineEvent),
    /// The keeper has given an order.
    Order(String),
    /// The time of an action of the keeper has come.
    Timer,
}

impl Members {
    /// Returns the members of an elastic job, before any process starts; `None` for other jobs.
    pub(super) fn of(job: &Job, link: impl FnOnce() -> ElasticLink) -> Option<Self> {
        let least = job.elastic?;
        let (sender, requests) = unbounded_channel();
        let authority = match link() {
            ElasticLink::Keeper(mut machines) => {
                let mut keeper = Box::new(Keeper::new(job, least));
                keeper.arrived(KEEPER_NODE, None);
                while let Ok(machine) = machines.try_recv() {
                    keeper.machine(machine);
                }
                Authority::Here { keeper, machines }
            }
            ElasticLink::Member { keeper, orders } => Authority::Elsewhere { keeper, orders, is_over: false },
        };
        let (job, places) = (job.clone(), BTreeMap::new());
        Some(Members { job, logs: None, has_started: false, places, sender, requests, authority })
    }

    /// Returns the orders of the keeper for this launcher since the last call, if it is here.
    pub(super) fn keeper_orders(&mut self) -> Vec<MemberOrder> {
        match &mut self.authority {
            Authority::Here { keeper, .. } => keeper.take_orders(),
            Authority::Elsewhere { .. } => Vec::new(),
        }
    }

    /// Prepares the start of a process at `place`.
    ///
    /// # Errors
    /// The system errors, if no descriptor is left, or a log cannot be created.
    pub(super) fn prepare(&mut self, process: ProcessId, place: usize, newcomer: u32) -> Result<Prepared> {
        let opened = MemberConnection::open(process, self.sender.clone());
        let (connection, membership) =
            opened.map_err(|cause| self.job.out_of_files(format!("watch rank {place}"), cause))?;
        let mut job = self.job.clone();
        if newcomer > 0 {
            job.environment.push((RESTART.into(), newcomer.to_string().into()));
        }
        let logs = self.open_logs(place, newcomer)?;
        self.places.insert(place, (process, connection));
        Ok(Prepared { job, logs, membership })
    }

    /// Opens the logs of a process, if the job has any.
    fn open_logs(&mut self, place: usize, newcomer: u32) -> Result<Option<(RankLog, RankLog)>> {
        let Some(folder) = &self.job.logs else { return Ok(None) };
        if newcomer > 0 {
            let folder = folder.join(format!("newcomer-{newcomer}"));
            return Ok(RankLog::create_all(&folder, place..place + 1)?.pop());
        }
        let logs = match self.logs.take() {
            Some(logs) => logs,
            // Those of all first processes, or none.
            None => self.job.numbers().zip(RankLog::create_all(folder, self.job.numbers())?).collect(),
        };
        Ok(self.logs.insert(logs).remove(&place))
    }

    /// Reports that a process runs. Returns the orders that follow.
    pub(super) fn has_started(&mut self, process: ProcessId, pid: i32) -> Vec<MemberOrder> {
        self.has_started = true;
        self.report(MemberReport::Started(process, pid))
    }

    /// Reports that the process at `place` cannot be started. Returns the orders that follow.
    ///
    /// # Errors
    /// `error`, if this launcher has not started any process: its job is wrong.
    pub(super) fn has_not_started(
        &mut self,
        process: ProcessId,
        place: usize,
        error: Error,
    ) -> Result<Vec<MemberOrder>> {
        self.places.remove(&place);
        if !self.has_started {
            if let (Some(_), Some(folder)) = (&self.logs, &self.job.logs) {
                RankLog::remove_all(folder, self.job.numbers());
            }
            return Err(error);
        }
        say(&error.to_string());
        Ok(self.report(MemberReport::Missing(process)))
    }

    /// Reports that the order to kill a process has arrived. Returns the orders that follow.
    pub(super) fn kills(&mut self, process: ProcessId) -> Vec<MemberOrder> {
        self.report(MemberReport::Killing(process))
    }

    /// Takes this machine out of the job, because its launcher got a signal.
    pub(super) fn leave(&mut self) {
        if let Authority::Elsewhere { keeper, .. } = &self.authority {
            keeper.send(&interrupted());
        }
    }

    /// Reports the end of the process at `place`, with its description if it failed. Returns the orders that follow.
    pub(super) fn ended(&mut self, place: usize, failure: Option<String>) -> Vec<MemberOrder> {
        match self.places.remove(&place) {
            Some((process, _)) => self.report(MemberReport::Ended(process, failure)),
            None => Vec::new(),
        }
    }

    fn report(&mut self, report: MemberReport) -> Vec<MemberOrder> {
        match &mut self.authority {
            Authority::Here { keeper, .. } => drop(keeper.report(KEEPER_NODE, report)),
            Authority::Elsewhere { keeper, .. } => keeper.send_message(&report),
        }
        self.keeper_orders()
    }

    /// Returns the next event.
    pub(super) async fn next(&mut self) -> MemberEvent {
        match &mut self.authority {
            Authority::Here { keeper, machines } => {
                let due = keeper.next_time();
                tokio::select! {
                    Some((process, request)) = self.requests.recv() => MemberEvent::Request(process, request),
                    Some(event) = machines.recv() => MemberEvent::Machine(event),
                    () = reached(due) => MemberEvent::Timer,
                }
            }
            Authority::Elsewhere { orders, .. } => tokio::select! {
                Some((process, request)) = self.requests.recv() => MemberEvent::Request(process, request),
                Some(order) = orders.recv() => MemberEvent::Order(order),
            },
        }
    }

    /// Handles an event. Returns the orders that follow.
    ///
    /// # Errors
    /// [`Error::Setup`] if the launcher of node 0 is a different build.
    pub(super) fn handle(&mut self, event: MemberEvent) -> Result<Vec<MemberOrder>> {
        match (event, &mut self.authority) {
            (MemberEvent::Request(process, request), _) => {
                return Ok(self.report(MemberReport::Request(process, request)));
            }
            (MemberEvent::Order(line), _) => {
                let order = MemberOrder::parse(&line).ok_or_else(|| refusal(&line))?;
                return Ok(vec![order]);
            }
            (MemberEvent::Machine(event), Authority::Here { keeper, .. }) => keeper.machine(event),
            (MemberEvent::Timer, Authority::Here { keeper, .. }) => keeper.timer(),
            _ => {}
        }
        Ok(self.keeper_orders())
    }

    /// Sends an encoded message to a process.
    pub(super) fn send(&self, process: ProcessId, notice: Vec<u8>) {
        if let Some((_, connection)) = self.places.values().find(|(running, _)| *running == process) {
            connection.send(notice);
        }
    }

    /// Returns the place of a running process.
    pub(super) fn place(&self, process: ProcessId) -> Option<usize> {
        self.places.iter().find(|(_, (running, _))| *running == process).map(|(place, _)| *place)
    }

    /// Returns true while processes run or will start, on any machine.
    pub(super) fn is_active(&self) -> bool {
        match &self.authority {
            Authority::Here { keeper, .. } => keeper.is_active(),
            Authority::Elsewhere { is_over, .. } => !is_over,
        }
    }

    /// Returns true if this launcher keeps the membership.
    pub(super) fn are_kept_here(&self) -> bool {
        matches!(self.authority, Authority::Here { .. })
    }

    /// Records that the processes of all machines have ended, with success.
    pub(super) fn are_over(&mut self) {
        if let Authority::Elsewhere { is_over, .. } = &mut self.authority {
            *is_over = true;
        }
    }

    /// Notifies all processes that no further generation begins, if too few are left. Returns the orders that follow, then.
    pub(super) fn end_if_hopeless(&mut self) -> Option<Vec<MemberOrder>> {
        match &mut self.authority {
            Authority::Here { keeper, .. } if keeper.is_hopeless() => {
                keeper.end("fewer ranks are left than --elastic requires");
                Some(keeper.take_orders())
            }
            _ => None,
        }
    }

    /// Notifies the launchers of other machines that the processes of all machines have ended, unless the job has failed.
    pub(super) fn finish(&mut self) {
        if let Authority::Here { keeper, machines } = &mut self.authority {
            // A machine that arrives in this moment ends, too.
            machines.close();
            while let Ok(event) = machines.try_recv() {
                keeper.machine(event);
            }
            keeper.finish();
        }
    }

    /// Returns the first failure after which the others have not continued.
    pub(super) fn failure(&self) -> MemberFailure {
        match &self.authority {
            Authority::Here { keeper, .. } => match keeper.failure() {
                None => MemberFailure::None,
                Some((KEEPER_NODE, why)) => MemberFailure::Here(why),
                Some((_, why)) => MemberFailure::Elsewhere(why),
            },
            Authority::Elsewhere { .. } => MemberFailure::Unknown,
        }
    }

    /// Moves all times by that of a stop of the whole job.
    pub(super) fn delay(&mut self, by: Duration) {
        if let Authority::Here { keeper, .. } = &mut self.authority {
            keeper.delay(by);
        }
    }
}
