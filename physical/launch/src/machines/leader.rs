//! The launcher of node 0, which decides when all start and whether the job starts again.

mod connections;
mod members;

use super::budget::{Budget, Checkpointed};
use super::messages::{Decision, MachineEnd, MachineEvent, PATIENCE, Start};
use super::wire::LineWriter;
use crate::outcome::Outcome;
use crate::{Job, Node};
use connections::{Join, LauncherEvent};
use hexagram_physical::launcher::{random, read_given, secret_of_start};
use hexagram_physical::{Error, Result};
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, timeout_at};

/// Longest time for a machine to end its ranks, in addition to the grace period: they notice, are killed, and are reaped.
const ENDING: Duration = Duration::from_secs(90);

/// Another launcher.
struct OtherLauncher {
    connection: u64,
    writer: LineWriter,
    /// True from a start until the end of its ranks.
    is_running: bool,
}

impl OtherLauncher {
    /// Makes it start its ranks.
    fn start(&mut self, line: &str) {
        self.is_running = true;
        self.writer.send(line);
    }
}

/// State of the launcher of node 0.
pub(crate) struct Leader {
    node: Node,
    /// Ranks of each machine.
    ranks: usize,
    /// True to start again when a machine comes.
    grow: bool,
    /// Node for which the ranks were ended, so that it can join.
    growing: Option<usize>,
    /// True if the job is elastic: machines come and go without a restart.
    is_elastic: bool,
    /// Receiver of the events of the other machines, in an elastic job that has started.
    keeper: Option<UnboundedSender<MachineEvent>>,
    rejoin_wait: Duration,
    /// Longest time until the ranks of all machines have ended, once one has not succeeded.
    ending: Duration,
    host: String,
    secret: Vec<u8>,
    /// Number of the next restart; the first start is 0.
    restart: u32,
    /// Number of machines, rendezvous and key of the last start.
    meeting: String,
    events: UnboundedReceiver<LauncherEvent>,
    /// The launchers that are here, by number of their node.
    others: BTreeMap<usize, OtherLauncher>,
    /// Nodes of the last start.
    last: BTreeSet<usize>,
    /// Ends since the last start, in the order of their arrival.
    ends: Vec<MachineEnd>,
}

impl Leader {
    /// Listens at the address of the job until this process ends.
    ///
    /// # Errors
    /// [`Error::Setup`] if the address is malformed, [`Error::System`] if it is taken or belongs to a different machine.
    pub(super) fn open(job: &Job, node: &Node) -> Result<Self> {
        let secret = read_given(&node.secret.to_string_lossy())?;
        let (host, events) = connections::open(job, node, &secret)?;
        // Enough for an elastic job.
        let least = node.least.max(job.elastic.unwrap_or(1).div_ceil(job.ranks));
        Ok(Leader {
            node: Node { least, ..node.clone() },
            ranks: job.ranks,
            grow: job.grow,
            growing: None,
            is_elastic: job.elastic.is_some(),
            keeper: None,
            rejoin_wait: job.rejoin_wait,
            ending: job.grace.saturating_add(ENDING).max(job.rejoin_wait),
            host,
            secret,
            restart: 0,
            meeting: String::new(),
            events,
            others: BTreeMap::new(),
            last: (0..node.nodes).collect(),
            ends: Vec::new(),
        })
    }

    /// Waits for the machines, and starts all that are here.
    pub(super) async fn next_start(&mut self, why: String) -> Result<Start> {
        self.gather().await?;
        self.ends.clear();
        let key = random::<16>().map_err(Error::no_random)?;
        let address = self.rendezvous()?;
        // The ranks of an elastic job get their numbers from its keeper.
        let nodes = if self.is_elastic { self.node.nodes } else { self.others.len() + 1 };
        self.last = self.others.keys().copied().chain([0]).collect();
        let secret = secret_of_start(&self.secret, &key);
        self.meeting = format!("{nodes} {address} {:032x}", u128::from_be_bytes(key));
        for (position, (node, other)) in (1..).zip(&mut self.others) {
            let position = if self.is_elastic { *node } else { position };
            // If it has ended, its ranks will be missing, and the job fails and starts again.
            other.start(&format!("start {} {position} {} {why}", self.restart, self.meeting));
        }
        let node = Node { number: 0, nodes, least: nodes, address, secret: self.node.secret.clone() };
        Ok(Start { restart: self.restart, node: Some(node), secret: Some(secret), why })
    }

    /// Waits until the machines of the last start, or enough for the job, have joined, at most [`Job::rejoin_wait`].
    async fn gather(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.handle(event);
            }
            if self.is_interrupted() {
                self.stop(Some("a launcher was interrupted")).await;
                return Err(Error::setup(
                    "the launcher of another node was interrupted",
                    "start the job again",
                ));
            }
            let missing: Vec<usize> = self
                .last
                .iter()
                .copied()
                .filter(|node| *node > 0 && !self.others.contains_key(node))
                .collect();
            let is_enough = self.others.len() + 1 >= self.node.least;
            let patience = if self.restart == 0 && !is_enough { PATIENCE } else { self.rejoin_wait };
            let deadline = begun + patience;
            match missing.first() {
                None if is_enough => return Ok(()),
                _ if Instant::now() >= deadline && is_enough => return Ok(()),
                _ if Instant::now() >= deadline => {
                    let (here, least) = (self.others.len() + 1, self.node.least);
                    let what = format!(
                        "{here} of at least {least} machines have joined after {} s; node {} is missing",
                        patience.as_secs(),
                        missing.first().copied().unwrap_or(here)
                    );
                    self.stop(Some(&what)).await;
                    let remedy = "start its launcher, or allow fewer machines with --nnodes MIN:MAX";
                    return Err(Error::setup(what, remedy));
                }
                _ => self.event(deadline).await,
            }
        }
    }

    /// Returns the address of the ranks' rendezvous: a free port of the same host.
    fn rendezvous(&self) -> Result<String> {
        let remedy = "check that node 0 has free ports";
        let port = free_port(&self.host)
            .map_err(|cause| Error::system("find a free port for the rendezvous", cause, remedy))?;
        let host = &self.host;
        Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Returns the reason, once the ranks of this machine have to end.
    pub(super) async fn trouble(&mut self) -> String {
        while self.all_succeeded() || self.is_elastic {
            self.growing = self.newcomer();
            if self.growing.is_some() {
                break;
            }
            self.event(Instant::now() + PATIENCE).await;
        }
        self.end_others(self.trouble_so_far())
    }

    /// Returns a node that waits for the next start, if that is reason enough for one.
    fn newcomer(&self) -> Option<usize> {
        let mut waiting =
            self.others.iter().filter(|(node, _)| self.grow && !self.is_elastic && !self.last.contains(node));
        waiting.next().map(|(node, _)| *node)
    }

    /// Returns true if every machine that has ended so far succeeded.
    fn all_succeeded(&self) -> bool {
        self.ends.iter().all(|end| *end == MachineEnd::Success)
    }

    /// Describes why the ranks of all machines have to end.
    fn trouble_so_far(&self) -> String {
        let interrupted = || "a launcher was interrupted".to_owned();
        self.growing.map(joins).or_else(|| reason(&self.ends)).unwrap_or_else(interrupted)
    }

    /// Makes the other machines end their ranks. Returns the reason.
    fn end_others(&self, why: String) -> String {
        for other in self.others.values().filter(|other| other.is_running) {
            other.writer.send(&format!("end {why}"));
        }
        why
    }

    /// Waits for the ends of all machines, and decides whether the job starts again.
    pub(super) async fn decide(
        &mut self,
        outcome: &Outcome,
        budget: &mut Budget,
        checkpointed: Checkpointed,
    ) -> Decision {
        let own = match outcome {
            // A process of an elastic job, without which the others could not continue.
            Outcome::Elsewhere { why } if self.is_elastic => MachineEnd::Failed(why.clone()),
            _ => MachineEnd::of(outcome),
        };
        self.ends.insert(0, own);
        self.others.retain(|_, other| !other.writer.is_refused());
        self.until_all_ended().await;
        let has_ended_early = self.ends.contains(&MachineEnd::Elsewhere);
        let growing = self.growing.take().filter(|_| has_ended_early && !self.is_interrupted());
        let failure = reason(&self.ends);
        let why = match growing {
            // Nodes that have failed since were asked to end.
            Some(node) => {
                budget.saw(checkpointed);
                Some(joins(node))
            }
            None => failure.clone().filter(|why| budget.allows(why, checkpointed)),
        };
        if let Some(why) = why {
            self.restart += 1;
            return Decision::Restart(why);
        }
        let why = failure.or_else(|| (!self.all_succeeded()).then(|| self.trouble_so_far()));
        self.stop(why.as_deref()).await;
        Decision::Stop(why)
    }

    fn is_interrupted(&self) -> bool {
        self.ends.contains(&MachineEnd::Interrupted)
    }

    /// Waits until no machine runs ranks: as long as it takes while all succeed, and otherwise as long as an end may take.
    async fn until_all_ended(&mut self) {
        let mut deadline = None;
        while self.others.values().any(|other| other.is_running) {
            if deadline.is_none() && !self.all_succeeded() {
                self.end_others(self.trouble_so_far());
                deadline = Some(Instant::now() + self.ending);
            }
            let until = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
            self.event(until).await;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        let silent: Vec<usize> =
            self.others.iter().filter(|(_, other)| other.is_running).map(|(node, _)| *node).collect();
        for node in silent {
            let why = format!("node {node} does not end its ranks");
            if let Some(other) = self.others.remove(&node) {
                other.writer.send(&format!("refused {why}"));
            }
            self.ends.push(MachineEnd::Failed(why));
        }
    }

    /// Notifies all launchers that the job has ended, with the reason unless it succeeded.
    pub(super) async fn stop(&mut self, why: Option<&str>) {
        let line = why.map_or("stop".to_owned(), |why| format!("stop {why}"));
        for (_, other) in std::mem::take(&mut self.others) {
            other.writer.send(&line);
            other.writer.finish().await;
        }
    }

    /// Waits for an event, at most until `deadline`.
    async fn event(&mut self, deadline: Instant) {
        if let Ok(Some(event)) = timeout_at(deadline, self.events.recv()).await {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: LauncherEvent) {
        match event {
            LauncherEvent::Joined { join, connection, writer } => {
                if self.joined(join, OtherLauncher { connection, writer, is_running: false }) {
                    self.start_arrival(join.node);
                }
            }
            LauncherEvent::Message { connection, line } => self.member_message(connection, line),
            LauncherEvent::Ended { connection, .. } if self.keeper_is_open() => self.left(connection),
            LauncherEvent::Ended { connection, end } => {
                let node = self.node_of(connection);
                let other = node.and_then(|node| self.others.get_mut(&node));
                let was_running = other.is_some_and(|other| std::mem::take(&mut other.is_running));
                // A launcher may be interrupted between two starts.
                if was_running || end == MachineEnd::Interrupted {
                    self.ends.push(end);
                }
            }
            LauncherEvent::Gone { connection } => {
                let Some(node) = self.node_of(connection) else { return };
                let was_running = self.others.remove(&node).is_some_and(|other| other.is_running);
                if self.is_elastic {
                    self.tell_keeper(MachineEvent::Gone(node));
                } else if was_running {
                    self.ends.push(MachineEnd::Failed(format!("node {node} is gone")));
                }
            }
        }
    }

    /// Returns the node whose launcher has this connection.
    fn node_of(&self, connection: u64) -> Option<usize> {
        let mut others = self.others.iter();
        others.find(|(_, other)| other.connection == connection).map(|(node, _)| *node)
    }

    /// Accepts a launcher, or refuses it. Returns true if it is accepted.
    fn joined(&mut self, join: Join, other: OtherLauncher) -> bool {
        let node = join.node;
        if let Err(why) = self.check(join) {
            other.writer.send(&format!("refused {why}"));
            return false;
        }
        match self.others.entry(node) {
            // If its machine has restarted, the old connection ends within a minute.
            Entry::Occupied(_) => {
                other.writer.send(&format!("busy another launcher is node {node} already"));
                false
            }
            Entry::Vacant(place) => {
                place.insert(other).writer.send("welcome");
                true
            }
        }
    }

    /// Returns why a launcher cannot take part, if so.
    fn check(&self, Join { node, ranks, is_elastic }: Join) -> std::result::Result<(), String> {
        let nodes = self.node.nodes;
        if node == 0 || node >= nodes {
            return Err(format!("node {node} cannot join a job of {nodes} machines that node 0 leads"));
        }
        if ranks != self.ranks {
            return Err(format!("node {node} starts {ranks} ranks, and node 0 starts {}", self.ranks));
        }
        if is_elastic != self.is_elastic {
            let which = if is_elastic { node } else { 0 };
            return Err(format!("only the launcher of node {which} has --elastic"));
        }
        Ok(())
    }
}

/// Describes a start for a machine that has joined.
fn joins(node: usize) -> String {
    format!("node {node} joins")
}

/// Returns why the job did not succeed; `None` if it did, or was interrupted. A rank that a signal has killed is more
/// likely the cause than one that noticed it.
fn reason(ends: &[MachineEnd]) -> Option<String> {
    if ends.contains(&MachineEnd::Interrupted) {
        return None;
    }
    let failures: Vec<&String> = ends
        .iter()
        .filter_map(|end| if let MachineEnd::Failed(how) = end { Some(how) } else { None })
        .collect();
    let is_cause = |how: &&&String| how.contains("was killed by") || how.starts_with("node ");
    failures.iter().find(is_cause).or(failures.first()).map(|how| (*how).clone())
}

/// Returns a port of this host that is free now.
fn free_port(host: &str) -> io::Result<u16> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, 0).to_socket_addrs()? {
        match TcpListener::bind(address).and_then(|listener| listener.local_addr()) {
            Ok(bound) => return Ok(bound.port()),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_a_death_before_what_follows_from_it() {
        let failed = |how: &str| MachineEnd::Failed(how.to_owned());
        let exited = failed("rank 0 (pid 1) exited with code 1");
        let killed = failed("rank 3 (pid 2) was killed by signal 9 (SIGKILL)");
        let gone = failed("node 2 is gone");
        let text = |end: &MachineEnd| end.to_string().split_once(' ').map(|(_, how)| how.to_owned());
        assert_eq!(reason(&[exited.clone(), killed.clone()]), text(&killed));
        assert_eq!(reason(&[exited.clone(), gone.clone()]), text(&gone));
        assert_eq!(reason(&[MachineEnd::Success, exited.clone()]), text(&exited));
        assert_eq!(reason(&[MachineEnd::Success, MachineEnd::Success]), None);
        assert_eq!(reason(&[MachineEnd::Interrupted, exited]), None);
    }
}
