//! Tests of only the mpi transport: its own collectives in pieces, on borrowed memory and off it, and errors where
//! MPI itself would hang. `./test` runs this in processes that `mpirun` starts; any other process skips it.

use hexagram_logical::testing::cases;
use hexagram_logical::{Buffer, Communicator, Error, JoinOptions, ReduceOp, Result, TransportKind, World};
use hexagram_physical::HeartbeatOptions;
use hexagram_physical::native::Check;
use std::time::{Duration, Instant};

/// Longest time that any rank may take to learn of a failure here.
const LONG: Duration = Duration::from_secs(30);

/// Runs `test` in the world that this process belongs to, if `mpirun` started it with one of these numbers of ranks.
fn under_mpirun(ranks: &[usize], check: Check, test: impl FnOnce(&Communicator)) {
    if !cases(ranks).iter().any(|(transport, _)| *transport == TransportKind::Mpi) {
        return;
    }
    let millis = Duration::from_millis;
    let heartbeat =
        Some(HeartbeatOptions { beat: millis(200), silence: Duration::from_secs(10), late: LONG });
    let options = JoinOptions {
        transport: TransportKind::Mpi,
        heartbeat,
        check: Some(check),
        ..JoinOptions::default()
    };
    let world = World::join(&options).unwrap();
    test(&Communicator::open(&world, 0).unwrap());
}

const RANKS: [usize; 6] = [1, 2, 3, 4, 5, 8];
const SEVERAL: [usize; 5] = [2, 3, 4, 5, 8];

/// Small whole numbers, distinct by rank and position; their sums are exact.
fn value(rank: usize, at: usize) -> f64 {
    ((rank * 5 + at * 3) % 11) as f64
}

fn contribution(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|at| value(rank, at)).collect()
}

fn sums(ranks: usize, len: usize) -> Vec<f64> {
    (0..len).map(|at| (0..ranks).map(|rank| value(rank, at)).sum()).collect()
}

/// Runs an operation on borrowed slices on some ranks, and on buffers on the others: this concerns no other rank.
fn on_either<const N: usize>(
    comm: &Communicator,
    slices: [Vec<f64>; N],
    operation: impl AsyncFn(&mut [Buffer; N]) -> Result<()>,
    borrowed: impl FnOnce(&mut [Vec<f64>; N]) -> Result<()>,
) -> [Vec<f64>; N] {
    let mut slices = slices;
    if comm.rank().is_multiple_of(2) {
        borrowed(&mut slices).unwrap();
        return slices;
    }
    let mut buffers = slices.map(|slice| Buffer::from_slice(&slice).unwrap());
    comm.block_on(operation(&mut buffers)).unwrap();
    buffers.map(|buffer| buffer.host::<f64>().unwrap().to_vec())
}

#[test]
fn collectives_of_all_lengths_on_borrowed_memory_and_off_it() {
    under_mpirun(&RANKS, Check::FirstUse, |comm| {
        let rank = comm.rank();
        let n = comm.size();
        // The last is more than one piece.
        for len in [0, 1, 7, (1 << 20) + 3] {
            let [got] = on_either(
                comm,
                [contribution(rank, len)],
                async |[buffer]| comm.all_reduce(buffer, ReduceOp::Sum).await,
                |[slice]| comm.blocking().all_reduce(slice, ReduceOp::Sum),
            );
            assert!(got == sums(n, len), "all_reduce of {len}");
            let [got] = on_either(
                comm,
                [contribution(rank, len)],
                async |[buffer]| comm.broadcast(buffer, n - 1).await,
                |[slice]| comm.blocking().broadcast(slice, n - 1),
            );
            assert!(got == contribution(n - 1, len), "broadcast of {len}");
            let [_, got] = on_either(
                comm,
                [contribution(rank, len), vec![0.0; len * n]],
                async |[mine, all]| comm.all_gather(mine, all).await,
                |[mine, all]| comm.blocking().all_gather(mine, all),
            );
            let want: Vec<f64> = (0..n).flat_map(|rank| contribution(rank, len)).collect();
            assert!(got == want, "all_gather of {len}");
            let [_, got] = on_either(
                comm,
                [contribution(rank, len * n), vec![0.0; len]],
                async |[all, mine]| comm.reduce_scatter(all, mine, ReduceOp::Mean).await,
                |[all, mine]| comm.blocking().reduce_scatter(all, mine, ReduceOp::Mean),
            );
            let want: Vec<f64> =
                sums(n, len * n)[rank * len..][..len].iter().map(|sum| sum * (1.0 / n as f64)).collect();
            assert!(got == want, "reduce_scatter of {len}");
        }
    });
}

#[test]
fn many_lanes_at_once_with_and_without_a_communicator_of_their_own() {
    under_mpirun(&SEVERAL, Check::Full, |comm| {
        const LANES: usize = 24;
        let lanes: Vec<Communicator> = (0..LANES).map(|lane| comm.lane(lane)).collect();
        let mut buffers: Vec<Buffer> = (0..LANES)
            .map(|lane| Buffer::from_slice(&contribution(comm.rank(), 1 + lane * 1000)).unwrap())
            .collect();
        let mut running: Vec<_> = lanes
            .iter()
            .zip(&mut buffers)
            .map(|(lane, buffer)| Some(Box::pin(lane.all_reduce(buffer, ReduceOp::Sum))))
            .collect();
        // Every rank begins them in a different order.
        running.rotate_left(comm.rank() * 7 % LANES);
        comm.block_on(std::future::poll_fn(|context| {
            for place in &mut running {
                if let Some(operation) = place
                    && let std::task::Poll::Ready(outcome) = operation.as_mut().poll(context)
                {
                    outcome.unwrap();
                    *place = None;
                }
            }
            if running.iter().all(Option::is_none) { ().into() } else { std::task::Poll::Pending }
        }));
        drop(running);
        for (lane, buffer) in buffers.iter().enumerate() {
            assert!(*buffer.host::<f64>().unwrap() == sums(comm.size(), 1 + lane * 1000), "lane {lane}");
        }
    });
}

/// The error of `operation`, which must arrive soon on every rank, and its text.
fn error_of(operation: impl FnOnce() -> Result<()>) -> (Error, String) {
    let started = Instant::now();
    let error = operation().unwrap_err();
    assert!(started.elapsed() < LONG, "{error}");
    let text = error.to_string();
    (error, text)
}

#[test]
fn different_counts_at_first_use_are_a_mismatch_before_mpi_begins() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        let odd_one = comm.rank() == 1;
        let mut mine = vec![0f32; if odd_one { 11 } else { 10 }];
        let (error, text) = error_of(|| comm.blocking().all_reduce(&mut mine, ReduceOp::Sum));
        assert!(text.contains("10 × f32") && text.contains("11 × f32"), "{text}");
        assert!(comm.size() > 2 || matches!(error, Error::Mismatch { .. }), "on both sides: {error}");
        assert!(!odd_one || matches!(error, Error::Mismatch { .. } | Error::PeerFailed { .. }), "{error}");
    });
}

#[test]
fn with_full_checks_known_operations_are_compared_too() {
    under_mpirun(&SEVERAL, Check::Full, |comm| {
        let mut mine = [1f32; 3];
        // A slow rank may learn of the failure in one of the first two.
        let (_, text) = error_of(|| {
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
            comm.blocking().broadcast(&mut mine, 0)?;
            match comm.rank() {
                0 => comm.blocking().all_reduce(&mut mine, ReduceOp::Sum),
                _ => comm.blocking().broadcast(&mut mine, 0),
            }
        });
        assert!(text.contains("all_reduce") && text.contains("broadcast"), "{text}");
    });
}

#[test]
fn a_collective_of_mpi_here_and_messages_there_are_a_mismatch_on_both_sides() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        let mut mine = [1f32; 3];
        let mut all = vec![0f32; 3 * comm.size()];
        let (_, text) = error_of(|| {
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
            // Known now, so that rank 0 enters it immediately; the others never will.
            match comm.rank() {
                0 => comm.blocking().all_reduce(&mut mine, ReduceOp::Sum),
                1 => comm.blocking().gather(&mine, Some(&mut all), 1),
                _ => comm.blocking().gather(&mine, None, 1),
            }?;
            // The ranks that only send have done so.
            comm.blocking().barrier()
        });
        assert!(text.contains("all_reduce") && text.contains("gather"), "{text}");
    });
}

#[test]
fn a_rank_that_comes_after_the_others_have_said_that_they_wait_hears_of_it() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        let mut mine = [1f32; 3];
        let (_, text) = error_of(|| {
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
            if comm.rank() != 1 {
                return comm.blocking().all_reduce(&mut mine, ReduceOp::Sum);
            }
            // Reads arriving messages, and has no operation yet.
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(1) && comm.world().health().verdict().is_none() {
                comm.endpoint().progress();
                std::thread::yield_now();
            }
            comm.blocking().scatter(None, &mut mine, 0)
        });
        assert!(text.contains("all_reduce") && text.contains("scatter"), "{text}");
    });
}

#[test]
fn a_rank_that_has_finished_is_named_by_those_who_wait_in_mpi() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        let mut mine = [1f32; 3];
        if comm.rank() == 1 {
            return comm.blocking().all_reduce(&mut mine, ReduceOp::Sum).unwrap();
        }
        let (error, _) = error_of(|| {
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
            comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)
        });
        assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
    });
}

#[test]
fn whoever_waits_in_mpi_in_vain_learns_for_whom() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        comm.set_deadline(Duration::from_secs(3));
        if comm.rank() == 1 {
            comm.blocking().barrier().unwrap();
            // Alive, but somewhere else, until the others have noticed.
            let started = Instant::now();
            while comm.world().health().verdict().is_none() && started.elapsed() < LONG {
                std::thread::yield_now();
            }
            return;
        }
        let (_, text) = error_of(|| {
            comm.blocking().barrier()?;
            comm.blocking().barrier()
        });
        assert!(text.contains("rank 1 ("), "{text}");
    });
}

#[test]
fn worlds_come_together_again_after_failures() {
    for _ in 0..3 {
        under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
            let mut mine = [comm.rank() as f32; 5];
            if let Err(error) = comm.blocking().broadcast(&mut mine[..5 - comm.rank().min(1)], 0) {
                assert!(error.to_string().contains("broadcast(4 × f32"), "{error}");
            }
        });
        under_mpirun(&RANKS, Check::FirstUse, |comm| {
            let mut mine = [comm.rank() as f32; 5];
            comm.blocking().broadcast(&mut mine, 0).unwrap();
            assert_eq!(mine, [0.0; 5]);
        });
    }
}

/// Not a test itself: `./test` runs it under `mpirun` and expects that the job ends, with an error.
#[test]
#[ignore = "ends the whole job"]
fn a_rank_is_killed_in_the_middle() {
    under_mpirun(&SEVERAL, Check::FirstUse, |comm| {
        let mut mine = vec![1f32; 100_000];
        for round in 0.. {
            if comm.rank() == 1 && round == 50 {
                // SIGKILL, as a process cannot handle it.
                let own = std::process::id().to_string();
                std::process::Command::new("kill").args(["-KILL", &own]).status().unwrap();
            }
            comm.blocking().all_reduce(&mut mine, ReduceOp::Max).unwrap();
        }
    });
}
