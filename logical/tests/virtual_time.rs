//! Services, clocks and operations in the background, in a world with a virtual clock: they wait by its time, not by
//! the machine's, and every run is the same.

use hexagram_logical::asynchronous::{Background, Clock, Service};
use hexagram_logical::runtime::{self, VirtualTime};
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result, World};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs `body` as two ranks in virtual time; returns their results, by rank.
fn two_ranks<R: Send + 'static>(body: fn(Communicator) -> Result<R>) -> Vec<R> {
    VirtualTime::run(|| {
        let (results, result) = channel();
        for (rank, world) in World::threads(2).unwrap().into_iter().enumerate() {
            let results = results.clone();
            let run = move || {
                let result = Communicator::open(&world, 0).and_then(body);
                let _ = results.send((rank, result));
            };
            runtime::spawn("hexagram-test", run).unwrap();
        }
        let mut results: Vec<_> = (0..2).map(|_| runtime::receive(&result).unwrap()).collect();
        results.sort_by_key(|(rank, _)| *rank);
        results.into_iter().map(|(_, result)| result.unwrap()).collect()
    })
}

/// Rank 0 takes 200 ms a step, rank 1 a second: when each has passed the wait of every step.
fn stale_steps() -> Vec<Vec<Duration>> {
    two_ranks(|comm| {
        let start = runtime::now();
        let service = comm.block_on(Service::start(&comm))?;
        let clock = comm.block_on(Clock::start(&comm, &service, 1))?;
        let mut passed = Vec::new();
        for _ in 0..4 {
            runtime::sleep(Duration::from_millis(if comm.rank() == 0 { 200 } else { 1000 }));
            clock.tick();
            clock.blocking().wait()?;
            passed.push(start.elapsed());
        }
        clock.finish();
        comm.block_on(service.close())?;
        Ok(passed)
    })
}

#[test]
fn a_fast_rank_waits_for_a_slow_one_in_virtual_time() {
    let real = std::time::Instant::now();
    let passed = stale_steps();
    let tenths = |times: &Vec<Duration>| times.iter().map(|time| time.as_millis() / 100).collect::<Vec<_>>();
    // One step ahead and no further.
    assert_eq!([tenths(&passed[0]), tenths(&passed[1])], [[2, 10, 20, 30], [10, 20, 30, 40]]);
    assert!((0..3).all(|_| stale_steps() == passed), "a run differs from the first");
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_average_in_the_background_waits_for_the_rank_that_comes_late() {
    let averaged = two_ranks(|comm| {
        let start = runtime::now();
        let background = comm.block_on(Background::start(&comm))?;
        runtime::sleep(Duration::from_secs(5 * comm.rank() as u64));
        let mut buffer = Buffer::from_slice(&[comm.rank() as f32])?;
        let sum = background.call(async move |comm| {
            comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
            Ok(buffer)
        });
        let sum = sum.blocking()?.map(|buffer| buffer.host::<f32>().map(|sum| sum[0])).transpose()?;
        Ok((sum, start.elapsed().as_secs()))
    });
    assert_eq!(averaged, [(Some(1.0), 5), (Some(1.0), 5)]);
}
