//! The launcher of node 0, which decides when all start and whether the job starts again.

use super::budget::{Budget, Checkpointed};
use super::messages::{Decision, MachineEnd, Start};
use super::wire::{LineReader, LineWriter, answer};
use crate::node::RESOLVE_PATIENCE;
use crate::{Job, Node};
use hexagram_physical::launcher::{host_and_port, listen, random, read_given};
use hexagram_physical::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{TcpListener as Blocking, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout_at};

/// Longest time until the machines have come for the first time: launchers are started by hand.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause after a failure to accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// LauncherEvent of a connection.
enum LauncherEvent {
    /// A launcher has connected and proved the secret.
    Joined { node: usize, ranks: usize, connection: u64, writer: LineWriter },
    /// Its ranks have ended.
    Ended { connection: u64, end: MachineEnd },
    /// Its connection has ended.
    Gone { connection: u64 },
}

/// Another launcher.
struct OtherLauncher {
    connection: u64,
    writer: LineWriter,
    /// True from a start until the end of its ranks.
    is_running: bool,
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
    rejoin_wait: Duration,
    host: String,
    /// Number of the next restart; the first start is 0.
    restart: u32,
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
        let (host, port) = host_and_port("--addr", &node.address)?;
        let alternative = "choose a different port in --addr, on all machines";
        let (sender, events) = unbounded_channel();
        for file in listen(host.clone(), port, job.size() - job.ranks, alternative, RESOLVE_PATIENCE)? {
            let listener = Blocking::from(file);
            let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            let listener = listener.map_err(|cause| job.out_of_files("watch --addr".to_owned(), cause))?;
            tokio::spawn(accept(listener, secret.clone(), sender.clone()));
        }
        Ok(Leader {
            node: node.clone(),
            ranks: job.ranks,
            grow: job.grow,
            growing: None,
            rejoin_wait: job.rejoin_wait,
            host,
            restart: 0,
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
        let nodes = self.others.len() + 1;
        self.last = self.others.keys().copied().chain([0]).collect();
        let text = u128::from_be_bytes(key);
        for (position, other) in (1..).zip(self.others.values_mut()) {
            let line = format!("start {} {position} {nodes} {address} {text:032x} {why}", self.restart);
            other.is_running = true;
            // If it is gone, its ranks will be missing, and the job fails and starts again.
            let _ = other.writer.send(&line).await;
        }
        let node = Node { number: 0, nodes, least: nodes, address, secret: self.node.secret.clone() };
        Ok(Start { restart: self.restart, node: Some(node), key: Some(key), why })
    }

    /// Waits until the machines of the last start are here, at most [`Job::rejoin_wait`], or as many as the job needs.
    async fn gather(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
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
                        "{here} of at least {least} machines are here after {} s; node {} is missing",
                        patience.as_secs(),
                        missing.first().copied().unwrap_or(here)
                    );
                    self.stop().await;
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
        while self.ends.iter().all(|end| *end == MachineEnd::Success) {
            self.growing = self.newcomer();
            if let Some(node) = self.growing {
                return self.end_others(format!("node {node} joins")).await;
            }
            self.event(Instant::now() + PATIENCE).await;
        }
        self.end_others(self.trouble_so_far()).await
    }

    /// Returns a node that waits for the next start, if that is reason enough for one.
    fn newcomer(&self) -> Option<usize> {
        let mut waiting = self.others.iter().filter(|(node, _)| self.grow && !self.last.contains(node));
        waiting.next().map(|(node, _)| *node)
    }

    /// Describes why the ranks of all machines have to end.
    fn trouble_so_far(&self) -> String {
        reason(&self.ends).unwrap_or_else(|| "a launcher was interrupted".to_owned())
    }

    /// Makes the other machines end their ranks. Returns the reason.
    async fn end_others(&mut self, why: String) -> String {
        for other in self.others.values_mut().filter(|other| other.is_running) {
            let _ = other.writer.send(&format!("end {why}")).await;
        }
        why
    }

    /// Waits for the ends of all machines, and decides whether the job starts again.
    pub(super) async fn decide(
        &mut self,
        own: MachineEnd,
        budget: &mut Budget,
        checkpointed: Checkpointed,
    ) -> Decision {
        self.ends.insert(0, own);
        if self.ends.iter().any(|end| *end != MachineEnd::Success) {
            self.end_others(self.trouble_so_far()).await;
        }
        let deadline = Instant::now() + self.rejoin_wait;
        while self.others.values().any(|other| other.is_running) && Instant::now() < deadline {
            self.event(deadline).await;
        }
        let silent: Vec<usize> = self.running().collect();
        for node in silent {
            self.others.remove(&node);
            self.ends.push(MachineEnd::Failed(format!("node {node} does not answer")));
        }
        let is_interrupted = self.ends.contains(&MachineEnd::Interrupted);
        let why = match (self.growing.take(), reason(&self.ends)) {
            // What ends meanwhile has been told to end.
            (Some(node), _) if !is_interrupted => Some(format!("node {node} joins")),
            (_, failure) => failure.filter(|why| budget.allows(why, checkpointed)),
        };
        match why {
            Some(why) => {
                self.restart += 1;
                Decision::Restart(why)
            }
            None => {
                self.stop().await;
                Decision::Stop
            }
        }
    }

    /// Returns the other machines whose ranks have not ended.
    fn running(&self) -> impl Iterator<Item = usize> {
        self.others.iter().filter(|(_, other)| other.is_running).map(|(node, _)| *node)
    }

    /// Tells all launchers that the job has ended.
    pub(super) async fn stop(&mut self) {
        for other in self.others.values_mut() {
            let _ = other.writer.send("stop").await;
        }
    }

    /// Waits for an event, at most until `deadline`.
    async fn event(&mut self, deadline: Instant) {
        match timeout_at(deadline, self.events.recv()).await {
            Ok(Some(LauncherEvent::Joined { node, ranks, connection, writer })) => {
                self.joined(node, ranks, OtherLauncher { connection, writer, is_running: false }).await;
            }
            Ok(Some(LauncherEvent::Ended { connection, end })) => {
                let other = self.others.values_mut().find(|other| other.connection == connection);
                if other.is_some_and(|other| std::mem::take(&mut other.is_running)) {
                    self.ends.push(end);
                }
            }
            Ok(Some(LauncherEvent::Gone { connection })) => {
                let gone = self.others.iter().find(|(_, other)| other.connection == connection);
                let Some((node, was_running)) = gone.map(|(node, other)| (*node, other.is_running)) else {
                    return;
                };
                self.others.remove(&node);
                if was_running {
                    self.ends.push(MachineEnd::Failed(format!("node {node} is gone")));
                }
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Takes a launcher in, or refuses it.
    async fn joined(&mut self, node: usize, ranks: usize, mut other: OtherLauncher) {
        let nodes = self.node.nodes;
        let refusal = if node == 0 || node >= nodes {
            Some(format!("node {node} cannot join a job of {nodes} machines that node 0 leads"))
        } else if ranks != self.ranks {
            Some(format!("node {node} starts {ranks} ranks, and node 0 starts {}", self.ranks))
        } else {
            None
        };
        if let Some(why) = refusal {
            let _ = other.writer.send(&format!("refused {why}")).await;
            return;
        }
        // Its machine may have restarted before this one has noticed that the old connection is dead.
        if let Some(mut old) = self.others.insert(node, other) {
            let _ = old.writer.send(&format!("refused another launcher has joined as node {node}")).await;
            if old.is_running {
                self.ends.push(MachineEnd::Failed(format!("node {node} is gone")));
            }
        }
    }
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
        match Blocking::bind(address).and_then(|listener| listener.local_addr()) {
            Ok(bound) => return Ok(bound.port()),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

/// Accepts launchers until this process ends.
async fn accept(listener: TcpListener, secret: Vec<u8>, events: UnboundedSender<LauncherEvent>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (secret, events) = (secret.clone(), events.clone());
                tokio::spawn(async move {
                    // An error is that of a stranger, or of a launcher that reports different secrets itself.
                    if let Ok((lines, writer)) = answer(stream, secret).await {
                        follow(lines, writer, &events).await;
                    }
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Reads the lines of one launcher.
async fn follow(mut lines: LineReader, writer: LineWriter, events: &UnboundedSender<LauncherEvent>) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let join = lines.next().await;
    let Some((node, ranks)) = join.as_deref().and_then(join_of) else { return };
    // If the leader has ended, so has this process.
    let _ = events.send(LauncherEvent::Joined { node, ranks, connection, writer });
    while let Some(line) = lines.next().await {
        if let Some(end) = line.strip_prefix("ended ").and_then(MachineEnd::parse) {
            let _ = events.send(LauncherEvent::Ended { connection, end });
        }
    }
    let _ = events.send(LauncherEvent::Gone { connection });
}

/// Decodes `join NODE RANKS`.
fn join_of(line: &str) -> Option<(usize, usize)> {
    let (node, ranks) = line.strip_prefix("join ")?.split_once(' ')?;
    Some((node.parse().ok()?, ranks.parse().ok()?))
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
