//! What the ranks of a job do, each in a process of its own.

use super::job::{ROLE, TRANSPORT};
use hexagram_logical::{Communicator, Error, JoinOptions, ReduceOp, Result, World};
use std::env;

#[test]
#[ignore = "what the other tests start as a process"]
fn one_rank() {
    if env::var(ROLE).is_err() {
        return;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match add() {
        Ok(()) => eprintln!("finished"),
        Err(error @ Error::PeerFailed { .. }) => {
            let Error::PeerFailed { culprit, .. } = &error else { return };
            eprintln!("failed: {} {error}", culprit.rank);
        }
        Err(error) => eprintln!("failed: nobody {error}"),
    }
}

/// Joins, and adds one number of each rank.
fn add() -> Result<()> {
    let transport = env::var(TRANSPORT).unwrap().parse()?;
    let world = World::join(&JoinOptions { transport, ..JoinOptions::default() })?;
    let comm = Communicator::open(&world, 0)?;
    let mut number = [1f32];
    comm.blocking().all_reduce(&mut number, ReduceOp::Sum)?;
    assert_eq!(number, [comm.size() as f32]);
    Ok(())
}
