//! The cost of an executor: an all-reduce that one thread submits and waits for, compared with one by the thread's
//! own communicator. `docs/benchmarks.md` has the figures.
//!
//! ```text
//! cargo bench -p hexagram-logical --bench executor           # two ranks that are threads, over thread and shm
//! hexagram run -n 2 -- target/release/deps/executor-… join   # each rank a process
//! ```
//!
//! Calls of both kinds alternate in short rounds, so that other work of the machine affects both equally. A line has
//! the medians over the rounds, and the median of the rounds' ratios.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

use hexagram_logical::executor::{Awaited, Executor, ExecutorOptions, JobOptions};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, JoinOptions, ReduceOp, Result, TransportKind, World};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Sizes in numbers of 8 bytes, and calls in a round.
const SIZES: [(usize, usize); 2] = [(1, 200), (1 << 17, 10)];
/// Rounds of each kind.
const ROUNDS: usize = 100;

/// Times in one round, of one call.
struct Round {
    own: Duration,
    shared: Duration,
    later: Duration,
}

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "join") {
        let world = World::join(&JoinOptions::default())?;
        return measure(&world, "process").map(drop);
    }
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        spawn(transport, 2, |comm| measure(comm.world(), "thread"))?;
    }
    Ok(())
}

/// Measures every size, and prints a line each on rank 0.
fn measure(world: &World, kind: &str) -> Result<()> {
    let comm = Communicator::open(world, 1)?;
    let executor = Executor::start(world, 2, ExecutorOptions::default())?;
    for (len, calls) in SIZES {
        let mut own = vec![0i64; len];
        let shared = Arc::new(Mutex::new(Some(Buffer::from_slice(&own)?)));
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let own = timed(calls, || comm.blocking().all_reduce(&mut own, ReduceOp::Sum))?;
            let later = timed(calls, || submit(&executor, Awaited::Later, &shared))?;
            let shared = timed(calls, || submit(&executor, Awaited::AtOnce, &shared))?;
            rounds.push(Round { own, shared, later });
        }
        if world.rank() == 0 {
            let transport = world.transport();
            println!("{transport}, a {kind} a rank, {} bytes: {}", len * 8, summary(&rounds));
        }
    }
    executor.shutdown(Duration::from_secs(10))
}

fn timed(calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    (0..calls).try_for_each(|_| call())?;
    Ok(start.elapsed() / calls as u32)
}

/// Runs one all-reduce by the executor, on a buffer that jobs hand on to each other.
fn submit(executor: &Executor, awaited: Awaited, shared: &Arc<Mutex<Option<Buffer>>>) -> Result<()> {
    let shared = Arc::clone(shared);
    let job = async move |comm: &Communicator| {
        let buffer = shared.lock().unwrap().take();
        let mut buffer = buffer.unwrap();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
        *shared.lock().unwrap() = Some(buffer);
        Ok(())
    };
    let options = JobOptions { awaited, ..JobOptions::default() };
    // SAFETY: it keeps nothing of the communicator, and holds a buffer only while it waits.
    unsafe { executor.submit(executor.world(), options, job) }.wait(None).unwrap()
}

fn summary(rounds: &[Round]) -> String {
    let median = |value: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let own = median(&|round| micros(round.own));
    let shared = median(&|round| micros(round.shared));
    let later = median(&|round| micros(round.later));
    let ratio = median(&|round| micros(round.shared) / micros(round.own));
    format!(
        "own {own:.1} µs, executor {shared:.1} µs (× {ratio:.2}), submitted as asynchronous and then awaited {later:.1} µs"
    )
}
