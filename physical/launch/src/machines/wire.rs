//! Connections between launchers: a handshake that proves the secret, then lines of text.

use hexagram_physical::launcher::{accept_proof, prove};
use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, TcpStream as Blocking};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Longest time for each read and write of a handshake, and for sending a line.
const STEP: Duration = Duration::from_secs(10);
/// Time after which a machine that no longer answers counts as gone: idle time, and time between probes.
const IDLE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;
/// Longest line, in bytes.
const LONGEST: usize = 4096;

/// One direction of a connection, from which lines are read.
pub(super) struct LineReader {
    stream: BufReader<OwnedReadHalf>,
    /// Begin of the next line.
    partial: Vec<u8>,
}

/// The other direction.
pub(super) struct LineWriter(OwnedWriteHalf);

/// Connects to a leader, and proves the secret. Sends `join` with the proof.
///
/// # Errors
/// `PermissionDenied` if the secrets differ; others of the connection.
pub(super) async fn call(
    address: SocketAddr,
    secret: Vec<u8>,
    join: String,
) -> io::Result<(LineReader, LineWriter)> {
    blocking(move || {
        let mut stream = Blocking::connect_timeout(&address, STEP)?;
        with_timeouts(&stream)?;
        prove(&mut stream, &secret, format!("{join}\n").as_bytes())?;
        Ok(stream)
    })
    .await
}

/// Checks the proof of a launcher that has connected.
///
/// # Errors
/// `PermissionDenied` if the secrets differ; others of the connection.
pub(super) async fn answer(stream: TcpStream, secret: Vec<u8>) -> io::Result<(LineReader, LineWriter)> {
    let mut stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    blocking(move || {
        with_timeouts(&stream)?;
        accept_proof(&mut stream, &secret)?;
        Ok(stream)
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
    Ok((LineReader { stream: BufReader::new(read), partial: Vec::new() }, LineWriter(write)))
}

/// Limits the steps of a handshake, and makes the system detect a machine that no longer answers.
fn with_timeouts(stream: &Blocking) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

impl LineReader {
    /// Returns the next line; `None` at the end of the connection, whatever its cause, or if a line is too long. If the
    /// future is dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Option<String> {
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
    /// Sends a line, cut to the longest.
    ///
    /// # Errors
    /// If the other side is gone, or does not read.
    pub(super) async fn send(&mut self, line: &str) -> io::Result<()> {
        let mut text: String = line.replace(['\n', '\r'], " ");
        while text.len() > LONGEST {
            text.pop();
        }
        text.push('\n');
        timeout(STEP, self.0.write_all(text.as_bytes())).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}
