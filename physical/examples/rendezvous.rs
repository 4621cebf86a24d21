//! Measures the time in which ranks join that all start in the same instant, each in a separate process, with idle
//! connections to their rendezvous. Use it to see the effect of a change of the rendezvous on a large job.
//!
//! ```sh
//! cargo run --release -p hexagram-physical --example rendezvous -- 1000 10000       # 1,000 ranks, 10,000 idle connections
//! cargo run --release -p hexagram-physical --example rendezvous -- 6 8000 8000      # 8,000 at once, then 8,000 a second
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot go on has failed")]

use hexagram_launch::{Job, Node, Outcome, Output};
use hexagram_physical::testing::free_port;
use hexagram_physical::{JoinOptions, TransportKind, World};
use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Name of the variable with the instant at which all ranks join, in milliseconds since 1970.
const AT: &str = "RENDEZVOUS_AT";
/// Name of the variable with the file in which each rank notes the time it took.
const NOTES: &str = "RENDEZVOUS_NOTES";
/// Deadline to join.
const DEADLINE: Duration = Duration::from_secs(60);

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map_or(0, |text| text.parse().unwrap());
    if env::var_os(AT).is_some() {
        rank();
    } else if arguments.first().is_some_and(|first| first == "idle") {
        connect_idly(&arguments[1], number(2), number(3));
    } else {
        assert!(number(0) > 0, "usage: rendezvous RANKS [CONNECTIONS [A SECOND]]");
        measure(number(0), number(1), number(2));
    }
}

/// One rank: arrives at the appointed time, and records when it has joined.
fn rank() {
    let at: u64 = env::var(AT).unwrap().parse().unwrap();
    let late = now().saturating_sub(at);
    thread::sleep(Duration::from_millis(at.saturating_sub(now())));
    let options = JoinOptions { transport: TransportKind::Tcp, deadline: DEADLINE, ..JoinOptions::default() };
    let world = match World::join(&options) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let note = format!("{} {late} {}\n", world.rank(), now().saturating_sub(at));
    let mut notes = File::options().append(true).open(env::var(NOTES).unwrap()).unwrap();
    notes.write_all(note.as_bytes()).unwrap();
}

/// Connects `count` times and keeps the connections; then reconnects `a_second` times per second, always with `count`
/// open.
fn connect_idly(address: &str, count: usize, a_second: usize) {
    let mut open = VecDeque::new();
    let since = Instant::now();
    for called in 0.. {
        if called >= count {
            if a_second == 0 {
                thread::sleep(DEADLINE);
                return;
            }
            let due = Duration::from_secs_f64((called - count) as f64 / a_second as f64);
            thread::sleep(due.saturating_sub(since.elapsed()));
            drop(open.pop_front());
        }
        // A refused connection has done its part.
        open.extend(TcpStream::connect(address));
    }
}

/// Process with idle connections, ended when dropped.
struct IdleConnections(Child);

impl Drop for IdleConnections {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(ranks: usize, count: usize, a_second: usize) {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let folder = env::temp_dir().join(format!("hexagram-rendezvous-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let at = now() + 1000 + 6 * ranks as u64;
    let idle = (count > 0).then(|| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["idle", &address, &count.to_string(), &a_second.to_string()]);
        let wait = at.saturating_sub(now() + 200);
        thread::spawn(move || {
            // A little before the ranks.
            thread::sleep(Duration::from_millis(wait));
            IdleConnections(command.spawn().unwrap())
        })
    });
    let outcome = job(ranks, address, &folder, at).run().unwrap();
    drop(idle.map(|idle| idle.join().unwrap()));
    report(&outcome, &fs::read_to_string(folder.join("notes")).unwrap(), ranks, now() - at);
    fs::remove_dir_all(&folder).unwrap();
    std::process::exit(outcome.exit_code());
}

fn job(ranks: usize, address: String, folder: &Path, at: u64) -> Job {
    let secret = folder.join("secret");
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&secret).unwrap();
    file.write_all(b"only for this measurement").unwrap();
    let notes = folder.join("notes");
    File::create(&notes).unwrap();
    Job {
        node: Some(Node { number: 0, nodes: 1, least: 1, address, secret }),
        environment: vec![(AT.into(), at.to_string().into()), (NOTES.into(), notes.into())],
        output: Output::Inherit,
        ..Job::new(ranks, env::current_exe().unwrap())
    }
}

/// Prints how long the ranks took, from the appointed time.
fn report(outcome: &Outcome, notes: &str, ranks: usize, ended: u64) {
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u64>>();
    let notes: Vec<_> = notes.lines().map(numbers).collect();
    let mut joined: Vec<u64> = notes.iter().map(|note| note[2]).collect();
    joined.sort_unstable();
    let late = notes.iter().filter(|note| note[1] > 0).count();
    let at = |place: usize| joined.get(place).copied().unwrap_or_default();
    println!(
        "{} of {ranks} ranks joined: the median after {} ms, the last after {} ms ({late} came late); all had ended after \
         {ended} ms: {outcome}",
        joined.len(),
        at(joined.len() / 2),
        at(joined.len().saturating_sub(1))
    );
}
