//! The output of the ranks, line by line, each after the number of its rank.

use crate::logs::RankLog;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

/// Maximum bytes per read from one rank, so that one flood does not delay the other ranks.
const READ: usize = 8 << 10;
/// Longest line, in bytes. Longer ones are cut, so that a rank that never ends a line cannot fill this process's
/// memory.
const LONGEST_LINE: usize = 64 << 10;

/// Forwards the output of all ranks to the stdout and stderr of this process.
#[derive(Default)]
pub(super) struct Console {
    /// Lock held while lines are written, as stdout and stderr may be one terminal.
    turn: Arc<Mutex<()>>,
    /// Tasks that forward one stream of one rank each.
    forwarding: JoinSet<()>,
    /// First error of a stream or log.
    lost: Arc<LostOutput>,
}

/// First error that kept rank output from being written.
#[derive(Default)]
struct LostOutput(OnceLock<io::Error>);

impl LostOutput {
    /// Warns once that lines are lost. The error of a reader that has closed its end is not reported.
    fn lines(&self, cause: io::Error) {
        if cause.kind() == io::ErrorKind::BrokenPipe {
            return;
        }
        let said = format!("hexagram: cannot write the output of the ranks: {cause}; the job continues\n");
        if self.0.set(cause).is_ok() {
            let _ = io::stderr().write_all(said.as_bytes());
        }
    }
}

impl Console {
    /// Forwards the `output` of `rank`, its stdout and stderr, until both are closed, or the other end of `gone` is
    /// dropped. By then the rank has ended and its output is in the pipe; another process that holds the pipe is not
    /// part of the job.
    ///
    /// The `logs` keep the whole output. Its stdout is printed only if it `is_shown`.
    ///
    /// # Errors
    ///
    /// The system errors if a pipe cannot be watched.
    pub(super) fn follow(
        &mut self,
        rank: usize,
        output: (OwnedFd, OwnedFd),
        gone: watch::Receiver<()>,
        logs: Option<(RankLog, RankLog)>,
        is_shown: bool,
    ) -> io::Result<()> {
        let (out, err) = logs.unzip();
        let stdout = Forward::new(rank, output.0, self, gone.clone(), out)?;
        let stderr = Forward::new(rank, output.1, self, gone, err)?;
        if is_shown {
            self.forwarding.spawn(stdout.run(tokio::io::stdout()));
        } else {
            self.forwarding.spawn(stdout.run(tokio::io::sink()));
        }
        self.forwarding.spawn(stderr.run(tokio::io::stderr()));
        Ok(())
    }

    /// Waits until all output of the ranks has been written. Only a slow reader delays it.
    pub(super) async fn finish(&mut self) {
        while self.forwarding.join_next().await.is_some() {}
    }

    /// Returns the first error that kept output from being written.
    pub(super) fn lost(&self) -> Option<&io::Error> {
        self.lost.0.get()
    }
}

/// One stream of one rank.
struct Forward {
    /// Pipe from the rank.
    from: pipe::Receiver,
    /// Lines of the stream.
    lines: LinePrefixer,
    /// Lock of the console.
    turn: Arc<Mutex<()>>,
    /// First error of the console.
    lost: Arc<LostOutput>,
    /// Channel that is closed once the rank has ended.
    gone: watch::Receiver<()>,
    /// Log of the stream, if the job keeps logs.
    log: Option<RankLog>,
}

impl Forward {
    /// Creates the state of one stream.
    fn new(
        rank: usize,
        from: OwnedFd,
        console: &Console,
        gone: watch::Receiver<()>,
        log: Option<RankLog>,
    ) -> io::Result<Self> {
        let from = pipe::Receiver::from_owned_fd(from)?;
        let turn = Arc::clone(&console.turn);
        let lost = Arc::clone(&console.lost);
        Ok(Forward { from, lines: LinePrefixer::of(rank), turn, lost, gone, log })
    }

    /// Forwards the stream to `to` until it ends.
    async fn run(mut self, mut to: impl AsyncWrite + Unpin) {
        let mut buffer = vec![0; READ];
        loop {
            let read = tokio::select! {
                read = self.from.read(&mut buffer) => read.unwrap_or(0),
                _ = self.gone.changed() => break,
            };
            if read == 0 {
                break;
            }
            self.pass_on(&buffer[..read], &mut to).await;
        }
        let mut left = rustix::io::ioctl_fionread(&self.from).unwrap_or(0);
        while left > 0 {
            let read = self.from.read(&mut buffer).await.unwrap_or(0);
            left = if read == 0 { 0 } else { left.saturating_sub(read as u64) };
            self.pass_on(&buffer[..read], &mut to).await;
        }
        let last = self.lines.finish();
        self.write(&mut to, &last).await;
    }

    /// Appends bytes to the log, and writes the lines that they complete to `to`.
    async fn pass_on(&mut self, bytes: &[u8], to: &mut (impl AsyncWrite + Unpin)) {
        if let Some(Err(cause)) = self.log.as_mut().map(|log| log.keep(bytes)) {
            // The log has reported it already.
            let _ = self.lost.0.set(cause);
        }
        let lines = self.lines.push(bytes);
        self.write(to, &lines).await;
    }

    /// Writes whole lines. If that fails, drops them, since an output failure does not end a training.
    async fn write(&self, to: &mut (impl AsyncWrite + Unpin), lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let _turn = self.turn.lock().await;
        let written = match to.write_all(lines).await {
            // Until the flush, the text may be incomplete, so the lock is held.
            Ok(()) => to.flush().await,
            failed => failed,
        };
        if let Err(cause) = written {
            self.lost.lines(cause);
        }
    }
}

/// Divides a stream of bytes, of any encoding, into lines with a prefix.
struct LinePrefixer {
    /// Prefix of each line.
    prefix: Vec<u8>,
    /// Bytes of the line that is not complete.
    partial: Vec<u8>,
}

impl LinePrefixer {
    /// Creates the lines of `rank`.
    fn of(rank: usize) -> Self {
        LinePrefixer { prefix: format!("[{rank}] ").into_bytes(), partial: Vec::new() }
    }

    /// Adds bytes, and returns the lines that they complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut complete = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= LONGEST_LINE {
                complete.append(&mut self.finish());
            }
        }
        complete
    }

    /// Returns the incomplete line, if any, as a line.
    fn finish(&mut self) -> Vec<u8> {
        if self.partial.is_empty() {
            return Vec::new();
        }
        let mut line = [self.prefix.as_slice(), self.partial.as_slice()].concat();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        self.partial.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_and_prefixed() {
        let mut lines = LinePrefixer::of(7);
        assert_eq!(lines.push(b"on"), b"");
        assert_eq!(lines.push(b"e\ntwo\n\nthr"), b"[7] one\n[7] two\n[7] \n");
        assert_eq!(lines.finish(), b"[7] thr\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn bytes_of_any_encoding_pass_unchanged() {
        assert_eq!(LinePrefixer::of(0).push(b"\xff\r\x00\xc3\n"), b"[0] \xff\r\x00\xc3\n");
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut lines = LinePrefixer::of(0);
        let mut out = lines.push(&vec![b'x'; LONGEST_LINE]);
        assert!(lines.partial.is_empty());
        out.append(&mut lines.push(b"y\n"));
        assert_eq!(out.len(), LONGEST_LINE + 2 * "[0] ".len() + 3);
        assert!(out.ends_with(b"x\n[0] y\n"));
    }
}
