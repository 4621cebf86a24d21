//! The roles of a job's ranks, each in a separate process.

use crate::processes::job::TRANSPORT;
use hexagram_logical::{Communicator, Error, JoinOptions, ReduceOp, Result, TransportKind, World};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::env;

/// The number of the user as whom a rank joins, if it differs from the test's.
pub(crate) const USER: &str = "HEXAGRAM_TEST_USER";
/// Elements of one chunk of the ring's buffer.
pub(crate) const CHUNK: usize = 400_000;
/// Elements for each rank in an all-to-all.
pub(crate) const BLOCK: usize = 1000;

/// Plays the role, and reports how it ended.
pub(crate) fn play(role: &str) {
    match communicate(role) {
        Ok(()) => eprintln!("finished"),
        Err(Error::PeerFailed { culprit, cause, .. }) => eprintln!("failed: {} {cause}", culprit.rank),
        Err(error) => eprintln!("failed: nobody {error}"),
    }
}

fn communicate(role: &str) -> Result<()> {
    let transport = env::var(TRANSPORT).unwrap().parse()?;
    if let Ok(user) = env::var(USER) {
        // Of this thread alone, as the one that joins.
        let user = Some(Uid::from_raw(user.parse().unwrap()));
        set_thread_res_uid(user, user, user).unwrap();
    }
    let world = World::join(&JoinOptions { transport, ..JoinOptions::default() })?;
    if role == "count" { count(&world) } else { reduce(&world) }
}

/// One all-reduce after the other, small and large, until something fails.
fn reduce(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    for round in 0.. {
        comm.blocking().all_reduce(&mut vec![1f32; [1, CHUNK, 3000][round % 3]], ReduceOp::Sum)?;
        if round == 3 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Reports after each operation its bytes through memory and by TCP.
fn count(world: &World) -> Result<()> {
    eprintln!("hosts {:?}", world.hosts());
    let comm = Communicator::open(world, 0)?;
    let size = comm.size();
    let mut before = [0; 2];
    let mut say = |what: &str| {
        let now = [TransportKind::Shm, TransportKind::Tcp].map(|path| world.traffic().bytes_sent_by(path));
        eprintln!("{what} {} {}", now[0] - before[0], now[1] - before[1]);
        before = now;
    };
    let mut buffer: Vec<f32> = (0..CHUNK * size).map(|at| (at % 1000 + comm.rank()) as f32).collect();
    comm.blocking().all_reduce(&mut buffer, ReduceOp::Sum)?;
    say("all_reduce");
    let ranks = (size * (size - 1) / 2) as f32;
    for (at, sum) in buffer.iter().enumerate() {
        assert_eq!(*sum, (at % 1000 * size) as f32 + ranks, "element {at}");
    }
    comm.blocking().all_to_all(&vec![1f32; BLOCK * size], &mut vec![0f32; BLOCK * size])?;
    say("all_to_all");
    comm.blocking().barrier()
}
