//! Connections of the other launchers, and what they send, as events for the leader.

use crate::machines::messages::MachineEnd;
use crate::machines::wire::{HANDSHAKE, LineReader, LineWriter, MEMBER, answer};
use crate::node::RESOLVE_PATIENCE;
use crate::{Job, Node};
use hexagram_physical::Result;
use hexagram_physical::launcher::{host_and_port, listen};
use std::net::TcpListener as Blocking;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

/// Launchers that prove the secret at the same time, each on a thread; others wait to be accepted.
const STRANGERS: usize = 32;
/// Pause after a failure to accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Event of a connection.
pub(super) enum LauncherEvent {
    /// A launcher has connected and proved the secret.
    Joined { join: Join, connection: u64, writer: LineWriter },
    /// It has sent a message about a process of an elastic job.
    Message { connection: u64, line: String },
    /// Its ranks have ended.
    Ended { connection: u64, end: MachineEnd },
    /// Its connection has ended.
    Gone { connection: u64 },
}

/// A launcher that asks to take part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    pub(super) node: usize,
    pub(super) ranks: usize,
    pub(super) is_elastic: bool,
}

/// Listens at the address of the job until this process ends. Returns the host of that address, and the events of the
/// launchers that connect.
///
/// # Errors
/// [`Error::Setup`](hexagram_physical::Error::Setup) if the address is malformed,
/// [`Error::System`](hexagram_physical::Error::System) if it is taken or belongs to a different machine.
pub(super) fn open(
    job: &Job,
    node: &Node,
    secret: &[u8],
) -> Result<(String, UnboundedReceiver<LauncherEvent>)> {
    let (host, port) = host_and_port("--addr", &node.address)?;
    let alternative = "choose a different port in --addr, on all machines";
    let (sender, events) = unbounded_channel();
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    for file in listen(host.clone(), port, job.size() - job.ranks, alternative, RESOLVE_PATIENCE)? {
        let listener = Blocking::from(file);
        let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        let listener = listener.map_err(|cause| job.out_of_files("watch --addr".to_owned(), cause))?;
        tokio::spawn(accept(listener, secret.to_vec(), sender.clone(), Arc::clone(&strangers)));
    }
    Ok((host, events))
}

/// Accepts launchers until this process ends.
async fn accept(
    listener: TcpListener,
    secret: Vec<u8>,
    events: UnboundedSender<LauncherEvent>,
    strangers: Arc<Semaphore>,
) {
    loop {
        // It is never closed.
        let Ok(stranger) = Arc::clone(&strangers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (secret, events) = (secret.clone(), events.clone());
                tokio::spawn(async move {
                    // An error comes from an unrelated process, or from a launcher that itself reports the different secret.
                    let Ok((mut lines, writer)) = answer(stream, secret).await else { return };
                    let join = timeout(HANDSHAKE, lines.next()).await;
                    drop(stranger);
                    if let Some(join) = join.ok().flatten().as_deref().and_then(join_of) {
                        follow(lines, writer, join, &events).await;
                    }
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Reads the lines of one launcher.
async fn follow(
    mut lines: LineReader,
    writer: LineWriter,
    join: Join,
    events: &UnboundedSender<LauncherEvent>,
) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    // If the leader has ended, so has this process.
    let _ = events.send(LauncherEvent::Joined { join, connection, writer });
    while let Some(line) = lines.next().await {
        if let Some(line) = line.strip_prefix(MEMBER) {
            let _ = events.send(LauncherEvent::Message { connection, line: line.to_owned() });
        } else if let Some(end) = line.strip_prefix("ended ").and_then(MachineEnd::parse) {
            let _ = events.send(LauncherEvent::Ended { connection, end });
        }
    }
    let _ = events.send(LauncherEvent::Gone { connection });
}

/// Decodes `join NODE RANKS [elastic]`.
fn join_of(line: &str) -> Option<Join> {
    let (node, ranks) = line.strip_prefix("join ")?.split_once(' ')?;
    let (ranks, is_elastic) = ranks.strip_suffix(" elastic").map_or((ranks, false), |ranks| (ranks, true));
    Some(Join { node: node.parse().ok()?, ranks: ranks.parse().ok()?, is_elastic })
}
