//! A launcher that follows the one of node 0.

use super::messages::{Decision, ElasticLink, MachineEnd, PATIENCE, Start, interrupted};
use super::wire::{LineReader, LineWriter, MEMBER, call};
use crate::console_line as say;
use crate::{Job, Node};
use hexagram_physical::launcher::{host_and_port, read_given, secret_of_start};
use hexagram_physical::{Error, Result};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which a waiting launcher reports that it waits.
const NOTICE: Duration = Duration::from_secs(10);

/// Connection to the leader.
pub(crate) struct Member {
    node: Node,
    lines: LineReader,
    writer: LineWriter,
    /// Start that was announced with the decision to restart.
    next: Option<Start>,
    /// Decision of node 0 that arrived while the ranks still ran.
    early: Option<String>,
    /// Receiver of orders about the processes of an elastic job.
    orders: Option<UnboundedSender<String>>,
    secret: Vec<u8>,
}

impl Member {
    /// Connects to the leader, for at most five minutes.
    ///
    /// # Errors
    /// [`Error::Setup`] if the launchers differ in secret, build or options, [`Error::System`] if no launcher listens at the
    /// address.
    pub(super) async fn open(job: &Job, node: &Node) -> Result<Self> {
        let secret = read_given(&node.secret.to_string_lossy())?;
        let address = host_and_port("--addr", &node.address)?;
        let elastic = if job.elastic.is_some() { " elastic" } else { "" };
        let join = format!("join {} {}{elastic}", node.number, job.ranks);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cause = match connect(address.clone(), &secret, &join).await {
                Ok((mut lines, writer)) => match lines.next().await.as_deref() {
                    Some("welcome") => {
                        return Ok(Member {
                            node: node.clone(),
                            lines,
                            writer,
                            next: None,
                            early: None,
                            orders: None,
                            secret,
                        });
                    }
                    Some(line) if line.starts_with("busy ") => {
                        io::Error::other(line["busy ".len()..].to_owned())
                    }
                    Some(line) => return Err(refusal(line)),
                    None => io::ErrorKind::ConnectionReset.into(),
                },
                Err(cause) => cause,
            };
            let doing = format!("meet the launcher of node 0 at {}", node.address);
            if matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData) {
                let remedy = "use the same version and secret on every machine, and give every launcher --max-restarts, \
                              MIN:MAX or --elastic, or none";
                return Err(Error::setup(format!("{doing}: {cause}"), remedy));
            }
            if Instant::now() > deadline {
                let remedy = "start the launcher of node 0, check --addr, and give every launcher --max-restarts, \
                              MIN:MAX or --elastic, or none";
                return Err(Error::system(doing, cause, remedy));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for the next start, as long as the leader is connected.
    pub(super) async fn next_start(&mut self) -> Result<Start> {
        if let Some(start) = self.next.take() {
            return Ok(start);
        }
        let mut notice = pin!(sleep(NOTICE));
        let received = {
            let mut receive = pin!(self.receive());
            loop {
                tokio::select! {
                    received = &mut receive => break received?,
                    () = &mut notice, if !notice.is_elapsed() => {
                        say("waits for the other machines, or for the next restart of the job");
                    }
                }
            }
        };
        match received {
            Ok(start) => Ok(start),
            Err(why) => {
                let what =
                    why.map_or("the job has ended".to_owned(), |why| format!("the job has ended: {why}"));
                Err(Error::setup(what, "start it again on every machine"))
            }
        }
    }

    /// Connects the ranks of this machine with the keeper of an elastic job's membership.
    pub(super) fn follow_orders(&mut self) -> ElasticLink {
        let (sender, orders) = unbounded_channel();
        self.orders = Some(sender);
        ElasticLink::Member { keeper: self.writer.sender(), orders }
    }

    /// Returns the reason, once the ranks of this machine have to end.
    pub(super) async fn trouble(&mut self) -> String {
        let line = loop {
            let Some(line) = self.lines.next().await else {
                return format!("the launcher of node 0 at {} is gone", self.node.address);
            };
            match line.strip_prefix(MEMBER) {
                Some(order) => drop(self.orders.as_ref().map(|orders| orders.send(order.to_owned()))),
                None => break line,
            }
        };
        match line.split_once(' ') {
            Some(("end", why)) => why.to_owned(),
            // The decision comes before its time: the leader was interrupted, or has given this launcher up.
            _ => {
                let why = line.clone();
                self.early = Some(line);
                why
            }
        }
    }

    /// Reports an end, and waits for the decision of the leader.
    pub(super) async fn decide(&mut self, end: &MachineEnd) -> Result<Decision> {
        // A leader that is gone sends no decision, either.
        self.writer.send(&format!("ended {end}"));
        match self.receive().await? {
            Ok(start) => {
                let why = start.why.clone();
                self.next = Some(start);
                Ok(Decision::Restart(why))
            }
            Err(why) => Ok(Decision::Stop(why)),
        }
    }

    /// Ends the job on all machines.
    pub(super) async fn interrupt(self) {
        self.writer.send(&interrupted());
        self.writer.finish().await;
    }

    /// Returns the next start, or the reason why the job has ended, if it did not succeed.
    async fn receive(&mut self) -> Result<std::result::Result<Start, Option<String>>> {
        let mut line = self.early.take();
        // Such messages arrived after the ranks had ended.
        while line.as_ref().is_none_or(|line| line.starts_with("end ") || line.starts_with(MEMBER)) {
            line = Some(self.lines.next().await.ok_or_else(|| self.is_gone())?);
        }
        let line = line.unwrap_or_default();
        match line.split_once(' ') {
            _ if line == "stop" => Ok(Err(None)),
            Some(("stop", why)) => Ok(Err(Some(why.to_owned()))),
            Some(("start", rest)) => {
                start(&self.node, &self.secret, rest).map(Ok).ok_or_else(|| refusal(&line))
            }
            _ => Err(refusal(&line)),
        }
    }

    /// Creates the error for a leader that does not answer.
    fn is_gone(&self) -> Error {
        let doing = format!("wait for the launcher of node 0 at {}", self.node.address);
        let remedy = "node 0 has to outlive the job: check its machine, and start the job again with the option to resume";
        Error::system(doing, io::Error::from(io::ErrorKind::ConnectionReset), remedy)
    }
}

/// Creates the error for a line of the leader that refuses this launcher, or cannot be read.
pub(crate) fn refusal(line: &str) -> Error {
    match line.strip_prefix("refused ") {
        Some(why) => Error::setup(why.to_owned(), "correct its options, or start it again"),
        None => {
            let what = format!("the launcher of node 0 sent `{}`", line.escape_debug());
            Error::setup(what, "use the same version of hexagram on every machine")
        }
    }
}

/// Decodes the fields of a start.
fn start(node: &Node, secret: &[u8], fields: &str) -> Option<Start> {
    let mut fields = fields.splitn(6, ' ');
    let restart = fields.next()?.parse().ok()?;
    let number = fields.next()?.parse().ok()?;
    let nodes = fields.next()?.parse().ok()?;
    let address = fields.next()?.to_owned();
    let key = u128::from_str_radix(fields.next()?, 16).ok()?.to_be_bytes();
    let why = fields.next().unwrap_or_default().to_owned();
    let node = Node { number, nodes, least: nodes, address, secret: node.secret.clone() };
    Some(Start { restart, node: Some(node), secret: Some(secret_of_start(secret, &key)), why })
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
