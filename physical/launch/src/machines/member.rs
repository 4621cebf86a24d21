//! A launcher that follows the one of node 0.

use super::messages::{Decision, MachineEnd, Start};
use super::wire::{LineReader, LineWriter, call};
use crate::{Job, Node};
use hexagram_physical::launcher::{host_and_port, read_given};
use hexagram_physical::{Error, Result};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time to connect: launchers are started by hand, one after the other.
const PATIENCE: Duration = Duration::from_secs(300);

/// Time for the leader itself to decide, and to end its ranks.
const SLACK: Duration = Duration::from_secs(60);

/// Connection to the leader.
pub(crate) struct Member {
    node: Node,
    lines: LineReader,
    writer: LineWriter,
    /// Longest time until a decision: that of the leader for the other machines, twice.
    decision: Duration,
    /// Start that was announced with the decision to restart.
    next: Option<Start>,
    /// True if the job has ended.
    is_stopped: bool,
}

impl Member {
    /// Connects to the leader, for at most five minutes.
    ///
    /// # Errors
    /// [`Error::Setup`] if the secrets differ, [`Error::System`] if no launcher listens at the address.
    pub(super) async fn open(job: &Job, node: &Node) -> Result<Self> {
        let secret = read_given(&node.secret.to_string_lossy())?;
        let address = host_and_port("--addr", &node.address)?;
        let join = format!("join {} {}", node.number, job.ranks);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cause = match connect(address.clone(), &secret, &join).await {
                Ok((lines, writer)) => {
                    let decision = job.rejoin_wait.saturating_mul(2).saturating_add(SLACK);
                    return Ok(Member {
                        node: node.clone(),
                        lines,
                        writer,
                        decision,
                        next: None,
                        is_stopped: false,
                    });
                }
                Err(cause) => cause,
            };
            let doing = format!("meet the launcher of node 0 at {}", node.address);
            if cause.kind() == io::ErrorKind::PermissionDenied {
                return Err(Error::setup(
                    format!("{doing}: {cause}"),
                    "copy the secret of node 0 to every machine",
                ));
            }
            if Instant::now() > deadline {
                return Err(Error::system(doing, cause, "start the launcher of node 0, and check --addr"));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for the next start, as long as the leader is there.
    pub(super) async fn next_start(&mut self) -> Result<Start> {
        if let Some(start) = self.next.take() {
            return Ok(start);
        }
        match self.receive().await? {
            Some(start) => Ok(start),
            None => Err(Error::setup("the job has ended", "start it again on every machine, node 0 first")),
        }
    }

    /// Returns the reason, once the ranks of this machine have to end.
    pub(super) async fn trouble(&mut self) -> String {
        match self.lines.next().await {
            Some(line) if line == "stop" => {
                self.is_stopped = true;
                "the job has ended on node 0".to_owned()
            }
            Some(line) => line.strip_prefix("end ").unwrap_or(&line).to_owned(),
            None => format!("the launcher of node 0 at {} is gone", self.node.address),
        }
    }

    /// Reports an end, and waits for the decision of the leader.
    pub(super) async fn decide(&mut self, end: &MachineEnd) -> Result<Decision> {
        if self.is_stopped {
            return Ok(Decision::Stop);
        }
        // A leader that is gone sends no decision, either.
        let _ = self.writer.send(&format!("ended {end}")).await;
        let received = timeout(self.decision, self.receive()).await;
        self.next = received.unwrap_or_else(|_| Err(self.is_gone(io::ErrorKind::TimedOut)))?;
        Ok(self.next.as_ref().map_or(Decision::Stop, |start| Decision::Restart(start.why.clone())))
    }

    /// Returns the next start; `None` if the job has ended.
    async fn receive(&mut self) -> Result<Option<Start>> {
        let mut line = self.lines.next().await;
        // It came when the ranks had ended already.
        while line.as_ref().is_some_and(|line| line.starts_with("end ")) {
            line = self.lines.next().await;
        }
        let line = line.ok_or_else(|| self.is_gone(io::ErrorKind::ConnectionReset))?;
        match line.split_once(' ') {
            _ if line == "stop" => Ok(None),
            Some(("refused", why)) => {
                Err(Error::setup(why.to_owned(), "correct the options of this launcher"))
            }
            Some(("start", rest)) => start(&self.node, rest).map(Some).ok_or_else(|| malformed(&line)),
            _ => Err(malformed(&line)),
        }
    }
}

impl Member {
    /// Creates the error for a leader that does not answer.
    fn is_gone(&self, cause: io::ErrorKind) -> Error {
        let doing = format!("wait for the launcher of node 0 at {}", self.node.address);
        let remedy = "node 0 has to outlive the job: check its machine, and start the job again";
        Error::system(doing, io::Error::from(cause), remedy)
    }
}

/// Decodes the fields of a start.
fn start(node: &Node, fields: &str) -> Option<Start> {
    let mut fields = fields.splitn(6, ' ');
    let restart = fields.next()?.parse().ok()?;
    let number = fields.next()?.parse().ok()?;
    let nodes = fields.next()?.parse().ok()?;
    let address = fields.next()?.to_owned();
    let key = u128::from_str_radix(fields.next()?, 16).ok()?.to_be_bytes();
    let why = fields.next().unwrap_or_default().to_owned();
    let node = Node { number, nodes, least: nodes, address, secret: node.secret.clone() };
    Some(Start { restart, node: Some(node), key: Some(key), why })
}

fn malformed(line: &str) -> Error {
    let what = format!("the launcher of node 0 sent `{}`", line.escape_debug());
    Error::setup(what, "use the same version of hexagram on every machine")
}

/// Connects to the first address of the host that answers.
async fn connect(
    (host, port): (String, u16),
    secret: &[u8],
    join: &str,
) -> io::Result<(LineReader, LineWriter)> {
    let addresses: Vec<SocketAddr> =
        spawn_blocking(move || (host, port).to_socket_addrs().map(Iterator::collect))
            .await
            .map_err(io::Error::other)??;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match call(address, secret.to_vec(), join.to_owned()).await {
            Ok(connection) => return Ok(connection),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}
