//! Connections between launchers: a handshake that proves the secret, then lines of text.

use hexagram_physical::launcher::{accept_proof, prove};
use rustix::net::sockopt;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as Blocking};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Longest time of a handshake, and until the line after it.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest time for sending a line.
const STEP: Duration = Duration::from_secs(10);
/// Time between two lines, at most.
const BEAT: Duration = Duration::from_secs(10);
/// Line that only shows that the sender still runs.
const ALIVE: &str = "alive";
/// Time without a line after which the other side does not run any more.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest time until sent bytes are acknowledged, in milliseconds.
const UNACKNOWLEDGED: u32 = 30_000;
/// Time after which a machine that no longer answers counts as gone: idle time, and time between probes.
const IDLE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;
/// Beginning of the lines about single processes of an elastic job.
pub(super) const MEMBER: &str = "member ";
/// Longest line, in bytes: twice the longest message of a process in an elastic job.
const LONGEST: usize = 300 << 10;

/// One direction of a connection, from which lines are read.
pub(super) struct LineReader {
    stream: BufReader<OwnedReadHalf>,
    /// Beginning of the next line.
    partial: Vec<u8>,
}

/// The other direction.
pub(super) struct LineWriter {
    sender: LineSender,
    task: JoinHandle<()>,
}

/// Sender of lines in that direction.
#[derive(Clone)]
pub(crate) struct LineSender {
    lines: UnboundedSender<String>,
    is_refused: Arc<AtomicBool>,
}

/// Connects to a leader, and proves the secret. Sends `join` with the proof.
///
/// # Errors
/// `PermissionDenied` if the secrets differ; `InvalidData` for a different build; others of the connection.
pub(super) async fn call(
    address: SocketAddr,
    secret: Vec<u8>,
    join: String,
) -> io::Result<(LineReader, LineWriter)> {
    blocking(move || {
        let mut stream = Limited::new(Blocking::connect_timeout(&address, HANDSHAKE)?)?;
        prove(&mut stream, &secret, format!("{join}\n").as_bytes())?;
        Ok(stream.stream)
    })
    .await
}

/// Checks the proof of a launcher that has connected. The caller limits how many run at a time: each takes a thread.
///
/// # Errors
/// `PermissionDenied` if the secrets differ; others of the connection.
pub(super) async fn answer(stream: TcpStream, secret: Vec<u8>) -> io::Result<(LineReader, LineWriter)> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    blocking(move || {
        let mut stream = Limited::new(stream)?;
        accept_proof(&mut stream, &secret)?;
        Ok(stream.stream)
    })
    .await
}

/// Runs a handshake on a thread of its own, and splits its stream.
async fn blocking(
    handshake: impl FnOnce() -> io::Result<Blocking> + Send + 'static,
) -> io::Result<(LineReader, LineWriter)> {
    let stream = spawn_blocking(handshake).await.map_err(io::Error::other)??;
    stream.set_nonblocking(true)?;
    let (read, write) = TcpStream::from_std(stream)?.into_split();
    Ok((LineReader { stream: BufReader::new(read), partial: Vec::new() }, LineWriter::new(write)))
}

/// Blocking stream whose reads and writes end together at a deadline.
struct Limited {
    stream: Blocking,
    until: Instant,
}

impl Limited {
    /// Begins a handshake, and makes the system detect a machine that no longer answers.
    fn new(stream: Blocking) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED)?;
        Ok(Limited { stream, until: Instant::now() + HANDSHAKE })
    }

    /// Returns the time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Limited {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(to)
    }
}

impl Write for Limited {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl LineReader {
    /// Returns the next line; `None` at the end of the connection, whatever its cause, if a line is too long, or if the other
    /// side does not run any more. If the future is dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Option<String> {
        loop {
            match timeout(SILENCE, self.line()).await {
                Ok(Some(line)) if line == ALIVE => {}
                Ok(line) => return line,
                Err(_) => return None,
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            let read = self.stream.fill_buf().await.ok().filter(|read| !read.is_empty())?;
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(read.len());
            self.partial.extend_from_slice(&read[..taken]);
            let used = taken + usize::from(end.is_some());
            self.stream.consume(used);
            if self.partial.len() > LONGEST {
                return None;
            }
            if end.is_some() {
                return String::from_utf8(std::mem::take(&mut self.partial)).ok();
            }
        }
    }
}

impl LineWriter {
    /// Starts the task that writes, which also shows the other side every few seconds that this process runs.
    fn new(mut stream: OwnedWriteHalf) -> Self {
        let (lines, mut queue) = unbounded_channel::<String>();
        let task = tokio::spawn(async move {
            loop {
                let line = match timeout(BEAT, queue.recv()).await {
                    Ok(Some(line)) => line,
                    Ok(None) => return,
                    Err(_) => ALIVE.to_owned(),
                };
                let written = timeout(STEP, stream.write_all(format!("{line}\n").as_bytes())).await;
                if !matches!(written, Ok(Ok(()))) {
                    return;
                }
            }
        });
        LineWriter { sender: LineSender { lines, is_refused: Arc::default() }, task }
    }

    /// Sends a line, as [`LineSender::send`].
    pub(super) fn send(&self, line: &str) {
        self.sender.send(line);
    }

    /// Returns true if a sender has refused the other launcher.
    pub(super) fn is_refused(&self) -> bool {
        self.sender.is_refused.load(Ordering::Relaxed)
    }

    /// Returns a sender of lines.
    pub(super) fn sender(&self) -> LineSender {
        self.sender.clone()
    }

    /// Returns once everything is sent, or the other side does not read. All other senders must be dropped before.
    pub(super) async fn finish(self) {
        drop(self.sender);
        let _ = timeout(STEP, self.task).await;
    }
}

impl LineSender {
    /// Creates a sender, and the receiver of its lines.
    #[cfg(test)]
    pub(crate) fn channel() -> (Self, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let (sender, lines) = unbounded_channel();
        (LineSender { lines: sender, is_refused: Arc::default() }, lines)
    }

    /// Sends a line, cut to the longest. If the other side is gone, the reading half of the connection reports it.
    pub(crate) fn send(&self, line: &str) {
        let mut text: String = line.replace(['\n', '\r'], " ");
        while text.len() >= LONGEST {
            text.pop();
        }
        let _ = self.lines.send(text);
    }

    /// Sends a message about a process of an elastic job.
    pub(crate) fn send_message(&self, message: &impl fmt::Display) {
        self.send(&format!("{MEMBER}{message}"));
    }

    /// Sends the reason why the other launcher does not take part any more.
    pub(crate) fn refuse(&self, why: &str) {
        self.is_refused.store(true, Ordering::Relaxed);
        self.send(&format!("refused {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_handshake_ends_at_its_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = Blocking::connect(listener.local_addr().unwrap()).unwrap();
        let mut stream = Limited::new(listener.accept().unwrap().0).unwrap();
        let left = stream.left().unwrap().unwrap();
        assert!(left <= HANDSHAKE, "{left:?}");
        stream.until = Instant::now();
        // Otherwise the end of the stream would be read.
        drop(other);
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(stream.write(&[0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
