//! Executors: one endpoint for many threads.

mod ends;
mod failures;
mod hierarchy;
mod order;

use hexagram_logical::executor::{Driving, Executor, ExecutorOptions, JobOptions, Order, Ticket};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result, TransportKind};
use std::sync::Barrier;
use std::time::Duration;

const CHANNEL: u16 = 1;
const TRANSPORTS: [TransportKind; 3] = [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];

fn options(driving: Driving) -> ExecutorOptions {
    ExecutorOptions { driving, ..ExecutorOptions::default() }
}

/// Submits an all-reduce of `len` numbers, and returns the first and last of the sum.
fn sum(executor: &Executor, options: JobOptions, mine: f32, len: usize) -> Ticket<(f32, f32)> {
    let job = async move |comm: &Communicator| {
        let mut buffer = Buffer::from_slice(&vec![mine; len])?;
        comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
        let sums = buffer.host::<f32>()?;
        Ok((sums[0], sums[len - 1]))
    };
    // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
    unsafe { executor.submit(executor.world(), options, job) }
}

/// Runs `body` on every transport, with several numbers of ranks, driven in both ways.
fn everywhere(body: impl Fn(&Executor) -> Result<()> + Sync) {
    for transport in TRANSPORTS {
        for ranks in [1, 2, 3] {
            for driving in [Driving::Waiting, Driving::OneThread] {
                let run = spawn(transport, ranks, |comm| {
                    let executor = Executor::start(comm.world(), CHANNEL, options(driving))?;
                    body(&executor)?;
                    executor.shutdown(Duration::from_secs(60))
                });
                run.unwrap_or_else(|error| panic!("{transport:?}, {ranks} ranks, {driving:?}: {error}"));
            }
        }
    }
}

/// Runs two ranks on every transport, driven in both ways, after both have opened their ends: an earlier failure of
/// one would fail the other's opening.
fn on_two(body: impl Fn(Executor) -> Result<()> + Sync) {
    for transport in TRANSPORTS {
        for driving in [Driving::Waiting, Driving::OneThread] {
            let both = Barrier::new(2);
            let linger = Duration::from_millis(50);
            let run = spawn(transport, 2, |comm| {
                let options = ExecutorOptions { linger, ..options(driving) };
                let executor = Executor::start(comm.world(), CHANNEL, options);
                both.wait();
                body(executor?)
            });
            run.unwrap_or_else(|error| panic!("{transport:?}, {driving:?}: {error}"));
        }
    }
}

/// Submits a receive of a message that the other rank has not sent yet.
fn receive(executor: &Executor, options: JobOptions) -> Ticket<()> {
    let from = 1 - executor.world().rank();
    let job = async move |comm: &Communicator| {
        let mut buffer = Buffer::from_slice(&[0.0f32])?;
        comm.recv(&mut buffer, from).await
    };
    // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
    unsafe { executor.submit(executor.world(), JobOptions { order: Order::AtOnce, ..options }, job) }
}

#[test]
fn an_executor_works_over_the_channel_of_a_group() {
    for transport in TRANSPORTS {
        let run = spawn(transport, 3, |comm| {
            let Some(pair) = comm.block_on(comm.split((comm.rank() != 1).then_some(0), 0))? else {
                return Ok(None);
            };
            let executor = Executor::over(pair.block_on(pair.channel())?, options(Driving::OneThread))?;
            let (first, last) =
                sum(&executor, JobOptions::default(), comm.rank() as f32, 1000).wait(None).unwrap()?;
            executor.shutdown(Duration::from_secs(60))?;
            Ok(Some((executor.world().world_ranks().to_vec(), first, last)))
        });
        let expected = Some((vec![0, 2], 2.0, 2.0));
        assert_eq!(run.unwrap(), [expected.clone(), None, expected], "{transport:?}");
    }
}
