//! PMI-1, as text over a socket that the launcher has left open: the wire protocol of Hydra, which is the mpiexec of
//! MPICH and Intel MPI, of MVAPICH, and of Slurm under `--mpi=pmi2`.
//!
//! ```text
//! cmd=init pmi_version=1 pmi_subversion=1           cmd=response_to_init rc=0 …
//! cmd=get_maxes                                     cmd=maxes vallen_max=1024 …
//! cmd=get_my_kvsname                                cmd=my_kvsname kvsname=SPACE
//! cmd=put kvsname=SPACE key=KEY value=VALUE         cmd=put_result rc=0
//! cmd=barrier_in                                    cmd=barrier_out                 once all ranks have sent it
//! cmd=get kvsname=SPACE key=KEY                     cmd=get_result rc=0 value=VALUE
//! cmd=finalize                                      cmd=finalize_ack                as the process ends
//! ```
//!
//! For the Hydra of Intel, a process that has sent `init` and ends without `finalize` has failed. An MPI library in
//! the same process may send both as well.

use super::Manager;
use crate::system::environment::variable;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for an answer that does not depend on other ranks.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait for the launcher at the end of the process.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest line: far above the longest value of any launcher.
const LONGEST: usize = 1 << 16;

/// The one connection of this process.
static CONNECTION: Mutex<Option<PmiConnection>> = Mutex::new(None);

/// Store of a launcher that speaks PMI.
pub(super) struct Pmi {
    descriptor: RawFd,
}

struct PmiConnection {
    stream: UnixStream,
    space: String,
    longest_value: usize,
    /// Name of an answer that has not arrived.
    awaited: Option<&'static str>,
    /// Beginning of that answer.
    partial: Vec<u8>,
}

impl Pmi {
    /// Returns the store if the launcher has left a socket.
    pub(super) fn of_environment() -> Option<Self> {
        let descriptor = variable("PMI_FD")?.trim().parse().ok().filter(|descriptor| *descriptor >= 0)?;
        Some(Pmi { descriptor })
    }

    fn with<R>(&self, work: impl FnOnce(&mut PmiConnection) -> io::Result<R>) -> io::Result<R> {
        match &mut *CONNECTION.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(connection) => work(connection),
            none => work(none.insert(PmiConnection::open(self.descriptor)?)),
        }
    }
}

impl Manager for Pmi {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.with(|connection| connection.put(key, value))
    }

    fn fence(&mut self, limit: Duration) -> io::Result<()> {
        self.with(|connection| connection.fence(limit))
    }

    fn get(&mut self, _: usize, key: &str, _: Duration) -> io::Result<String> {
        self.with(|connection| connection.get(key))
    }
}

impl PmiConnection {
    fn open(descriptor: RawFd) -> io::Result<Self> {
        // SAFETY: not -1, and borrowed only to duplicate it; a closed descriptor fails with EBADF.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let connection = Self::over(UnixStream::from(borrowed.try_clone_to_owned()?))?;
        // SAFETY: the function takes no arguments, and lives as long as the program. Without the handler, the
        // launcher treats the end of this process as a failure.
        unsafe { libc::atexit(finalize) };
        Ok(connection)
    }

    fn over(stream: UnixStream) -> io::Result<Self> {
        let (space, partial) = (String::new(), Vec::new());
        let mut connection = PmiConnection { stream, space, longest_value: 0, awaited: None, partial };
        connection.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = connection.ask("get_maxes", "maxes")?;
        connection.longest_value = field(&maxes, "vallen_max")?.parse().map_err(io::Error::other)?;
        let space = connection.ask("get_my_kvsname", "my_kvsname")?;
        connection.space = field(&space, "kvsname")?.to_owned();
        Ok(connection)
    }

    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        if value.len() >= self.longest_value {
            let what = format!("the launcher accepts values of less than {} bytes", self.longest_value);
            return Err(io::Error::other(what));
        }
        let command = format!("put kvsname={} key={key} value={value}", self.space);
        self.ask(&command, "put_result").map(drop)
    }

    /// Waits until all ranks have called it. After `limit` it can be called again, to continue the wait.
    fn fence(&mut self, limit: Duration) -> io::Result<()> {
        // The answer to an earlier fence that not all ranks reached in time is still missing: this call continues
        // that wait.
        if self.awaited != Some("barrier_out") {
            self.check_answered()?;
            self.send("barrier_in", "barrier_out")?;
        }
        self.answer(limit).map(drop)
    }

    fn get(&mut self, key: &str) -> io::Result<String> {
        let answer = self.ask(&format!("get kvsname={} key={key}", self.space), "get_result")?;
        field(&answer, "value").map(str::to_owned)
    }

    /// Sends a command and returns the answer, which must have this name.
    fn ask(&mut self, command: &str, expected: &'static str) -> io::Result<String> {
        self.check_answered()?;
        self.send(command, expected)?;
        self.answer(ANSWER)
    }

    /// Fails if the answer to an earlier command is missing: it would be mistaken for that to the next one.
    fn check_answered(&self) -> io::Result<()> {
        match self.awaited {
            Some(awaited) => Err(io::Error::other(format!("the launcher has not sent the answer {awaited}"))),
            None => Ok(()),
        }
    }

    fn send(&mut self, command: &str, expected: &'static str) -> io::Result<()> {
        self.awaited = Some(expected);
        self.stream.write_all(format!("cmd={command}\n").as_bytes())
    }

    /// Returns the answer to the last command.
    fn answer(&mut self, limit: Duration) -> io::Result<String> {
        // An MPI library may read from the same socket later, without this limit.
        self.stream.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let answer = self.line();
        self.stream.set_read_timeout(None)?;
        let answer = answer?;
        let expected = self.awaited.take().unwrap_or_default();
        if field(&answer, "cmd")? != expected {
            return Err(io::Error::other(format!("the launcher answers `{answer}` in place of {expected}")));
        }
        match field(&answer, "rc") {
            Ok("0") | Err(_) => Ok(answer),
            Ok(_) => Err(io::Error::new(ErrorKind::NotFound, format!("the launcher refuses it: `{answer}`"))),
        }
    }

    /// Reads a line. An incomplete line stays for the next call.
    fn line(&mut self) -> io::Result<String> {
        let mut byte = [0];
        while self.partial.len() < LONGEST {
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) if byte[0] == b'\n' => {
                    return String::from_utf8(std::mem::take(&mut self.partial)).map_err(io::Error::other);
                }
                Ok(_) => self.partial.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let what = "some rank is late (PMI does not say which), or the launcher does not answer";
                    return Err(io::Error::new(ErrorKind::TimedOut, what));
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the answer of the launcher is too long"))
    }
}

/// Returns a field of an answer, which is `name=value` between spaces.
fn field<'a>(answer: &'a str, name: &str) -> io::Result<&'a str> {
    let mut fields = answer.split_ascii_whitespace().filter_map(|field| field.split_once('='));
    let found = fields.find(|(known, _)| *known == name);
    found.map(|(_, value)| value).ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidData, format!("the launcher's answer `{answer}` has no {name}"))
    })
}

/// Announces the successful end of this process.
extern "C" fn finalize() {
    // Another thread may be waiting for an answer, if the process ends in the middle of a meeting.
    let Ok(mut connection) = CONNECTION.try_lock() else { return };
    if let Some(connection) = &mut *connection {
        let _ = connection.send("finalize", "finalize_ack").and_then(|()| connection.answer(FAREWELL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// Answers commands one after another; returns those that came.
    fn manager(mut stream: &UnixStream, answers: &[&str]) -> Vec<String> {
        let mut commands = Vec::new();
        let mut lines = BufReader::new(stream).lines();
        for answer in answers {
            let Some(Ok(command)) = lines.next() else { break };
            commands.push(command);
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
        commands
    }

    const OPENING: [&str; 3] = [
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=8",
        "cmd=my_kvsname kvsname=space_1",
    ];

    /// Calls `work` with a connection to a manager that gives these answers after the opening.
    fn with(answers: &[&str], work: impl FnOnce(io::Result<PmiConnection>)) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let answers = [&OPENING[..], answers].concat();
        std::thread::scope(|scope| {
            let manager = scope.spawn(|| manager(&theirs, &answers));
            work(PmiConnection::over(ours));
            manager.join().unwrap()
        })
    }

    #[test]
    fn commands_and_answers_are_those_of_the_protocol() {
        let answers =
            ["cmd=put_result rc=0", "cmd=barrier_out", "cmd=get_result rc=0 msg=success value=beef"];
        let commands = with(&answers, |connection| {
            let mut connection = connection.unwrap();
            connection.put("hexagram/rank/1/0", "cafe").unwrap();
            connection.fence(ANSWER).unwrap();
            assert_eq!(connection.get("hexagram/rank/0/0").unwrap(), "beef");
            assert!(connection.put("key", "too long").unwrap_err().to_string().contains("less than 8 bytes"));
        });
        assert_eq!(
            commands[3..],
            [
                "cmd=put kvsname=space_1 key=hexagram/rank/1/0 value=cafe",
                "cmd=barrier_in",
                "cmd=get kvsname=space_1 key=hexagram/rank/0/0"
            ]
        );
    }

    #[test]
    fn what_the_manager_does_wrong_is_an_error() {
        with(&["cmd=get_result rc=-1 msg=key_not_found value=unknown"], |connection| {
            let error = connection.unwrap().get("key").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        });
        with(&["cmd=barrier_out"], |connection| {
            assert!(
                connection
                    .unwrap()
                    .get("key")
                    .unwrap_err()
                    .to_string()
                    .contains("answers `cmd=barrier_out` in place of get_result")
            );
        });
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(PmiConnection::over(ours).is_err());
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_end_of_a_fence() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| PmiConnection::over(ours).unwrap());
            manager(&theirs, &OPENING);
            let mut connection = opened.join().unwrap();
            connection.send("get kvsname=space_1 key=key", "get_result").unwrap();
            assert_eq!(connection.answer(Duration::from_millis(50)).unwrap_err().kind(), ErrorKind::TimedOut);
            (&theirs).write_all(b"cmd=get_result rc=0 value=late\n").unwrap();
            assert!(
                connection
                    .fence(ANSWER)
                    .unwrap_err()
                    .to_string()
                    .contains("has not sent the answer get_result")
            );
        });
    }

    #[test]
    fn a_fence_to_which_not_all_come_in_time_can_be_waited_for_again() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| PmiConnection::over(ours).unwrap());
            manager(&theirs, &OPENING);
            let mut connection = opened.join().unwrap();
            let error = connection.fence(Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(
                connection
                    .get("key")
                    .unwrap_err()
                    .to_string()
                    .contains("has not sent the answer barrier_out")
            );
            (&theirs).write_all(b"cmd=barr").unwrap();
            assert!(connection.fence(Duration::from_millis(50)).is_err(), "half an answer is none");
            (&theirs).write_all(b"ier_out\n").unwrap();
            connection.fence(ANSWER).unwrap();
            let mut commands = String::new();
            drop(connection);
            (&theirs).read_to_string(&mut commands).unwrap();
            assert_eq!(commands, "cmd=barrier_in\n", "it is sent once");
        });
    }
}
