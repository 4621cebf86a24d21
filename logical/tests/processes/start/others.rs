//! Another program at the rendezvous of ranks that a user started by hand, and ranks that are stopped during the
//! join.

use crate::processes::job::Job;
use hexagram_logical::TransportKind;
use rustix::process::Signal;
use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time to join, in seconds; no test reaches it.
const LONG: u64 = 60;
/// Longest time to join of a rank that is stopped for longer.
const SHORT: u64 = 10;

/// Two ranks that rendezvous at a port with a foreign listener.
struct Taken {
    listener: TcpListener,
    /// File with their secret, if they are given one. Removed in the end.
    secret: Option<PathBuf>,
}

impl Taken {
    fn new(has_secret: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let secret = has_secret.then(|| {
            let path = env::temp_dir().join(format!("hexagram-others-{}-{port}", std::process::id()));
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.write_all(b"a secret that nobody else has").unwrap();
            path
        });
        Taken { listener, secret }
    }

    /// Starts a rank with this many seconds to join.
    fn start(&self, rank: usize, seconds: u64) -> Job {
        let mut command = Command::new(env::current_exe().unwrap());
        for (name, value) in [("RANK", rank), ("SIZE", 2), ("LOCAL_RANK", rank), ("LOCAL_SIZE", 2)] {
            command.env(format!("HEXAGRAM_{name}"), value.to_string());
        }
        command.env("HEXAGRAM_ADDR", self.listener.local_addr().unwrap().to_string());
        if let Some(secret) = &self.secret {
            command.env("HEXAGRAM_SECRET_FILE", secret);
        }
        command.env(super::ranks::JOIN, seconds.to_string());
        Job::of([command].into_iter(), "add", TransportKind::Mixed)
    }

    /// Accepts a rank, which then waits for a greeting.
    fn accept(&self) -> TcpStream {
        let (mut connection, _) = self.listener.accept().unwrap();
        connection.read_exact(&mut [0]).unwrap();
        connection
    }

    /// Hands the port to rank 0, which listens there when this returns, even if another process has a copy of the
    /// listener.
    fn start_leader(&self) -> Job {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read).unwrap();
        let leader = self.start(0, LONG);
        let address = self.listener.local_addr().unwrap();
        let until = Instant::now() + Duration::from_secs(LONG);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "rank 0 does not listen at {address}");
            thread::sleep(Duration::from_millis(5));
        }
        leader
    }
}

fn both_finish(jobs: [Job; 2]) {
    for mut job in jobs {
        job.all_hear("finished");
        job.ends();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(secret) = &self.secret {
            let _ = std::fs::remove_file(secret);
        }
    }
}

#[test]
fn another_program_at_the_rendezvous_is_named_at_once_and_waited_for() {
    for has_secret in [true, false] {
        let taken = Taken::new(has_secret);
        let mut member = taken.start(1, LONG);
        if has_secret {
            // As a server of web pages does.
            taken.accept().write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9)).unwrap();
        }
        let (_, warning) = member.hears(0, "has not found rank 0");
        let here = format!("process {} ", std::process::id());
        let cause = if has_secret { "does not speak the hexagram protocol" } else { "secret" };
        for part in ["127.0.0.1", cause, &here, "choose a different port"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        both_finish([taken.start_leader(), member]);
    }
}

#[test]
fn a_rank_that_is_stopped_within_an_attempt_to_join_has_its_whole_time_left() {
    let taken = Taken::new(true);
    let member = taken.start(1, SHORT);
    let connection = taken.accept();
    member.signal(0, Signal::STOP);
    let leader = taken.start_leader();
    thread::sleep(Duration::from_secs(SHORT + 1));
    // It is still within that attempt.
    member.signal(0, Signal::CONT);
    drop(connection);
    both_finish([leader, member]);
}
