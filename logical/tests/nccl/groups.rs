//! Split groups, whose ranks NCCL connects when the first of their collectives is called.

use super::faults::{LIMIT, RANKS, SOON, passes};
use super::ranks::{TRANSPORTS, buffer, gives_what_the_host_gives, number, numbers, on_gpus, together};
use hexagram_logical::{Buffer, Communicator, Error, Queue, ReduceOp, Result, TransportKind};
use hexagram_physical::device::cuda::Cuda;
use hexagram_physical::testing;
use std::time::{Duration, Instant};

/// Returns the results of the collectives of a group: sums are exact, as are means of so many ranks.
fn collectives(group: &Communicator, queue: &Queue, world_rank: usize, len: usize) -> Result<Vec<Vec<f32>>> {
    let ranks = group.size();
    let make =
        |len| buffer(queue, &numbers(world_rank, len).iter().map(|x| x * ranks as f32).collect::<Vec<f32>>());
    let mut results = Vec::new();
    let mut keep = |buffer: &Buffer| -> Result<()> {
        results.push(buffer.host::<f32>()?.to_vec());
        Ok(())
    };
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let mut whole = make(len);
        group.block_on(group.all_reduce(&mut whole, op))?;
        keep(&whole)?;
        let mut block = make(len);
        group.block_on(group.reduce_scatter(&make(len * ranks), &mut block, op))?;
        keep(&block)?;
    }
    let mut mean = make(len);
    if ranks != 3 {
        group.block_on(group.all_reduce(&mut mean, ReduceOp::Mean))?;
    }
    keep(&mean)?;
    let mut blocks = make(len * ranks);
    group.block_on(group.all_gather(&make(len), &mut blocks))?;
    keep(&blocks)?;
    for root in 0..ranks {
        let mut whole = make(len);
        group.block_on(group.broadcast(&mut whole, root))?;
        keep(&whole)?;
    }
    group.block_on(group.barrier())?;
    Ok(results)
}

/// Groups that cross each other, one in which ranks count backwards, and one of a rank by itself.
fn crossing(comm: &Communicator, queue: &Queue) -> Result<Vec<Vec<f32>>> {
    let rank = comm.rank();
    let pair = comm.block_on(comm.split(Some(rank as u32 / 2), 0))?;
    let parity = comm.block_on(comm.split(Some(rank as u32 % 2), -(rank as i64)))?;
    let backwards = comm.block_on(comm.split(Some(0), -(rank as i64)))?;
    let alone = comm.block_on(comm.split(Some(rank as u32), 0))?;
    let mut results = Vec::new();
    for len in [1, 3001] {
        for group in [&pair, &parity, &backwards, &alone].into_iter().flatten() {
            results.extend(collectives(group, queue, rank, len)?);
        }
        results.extend(collectives(comm, queue, rank, len)?);
    }
    Ok(results)
}

#[test]
fn their_results_are_those_of_the_host() {
    for ranks in [1, 3, 4] {
        gives_what_the_host_gives(&TRANSPORTS, ranks, crossing);
    }
}

/// Each rank is in two pairs, and all call the collectives of the pairs in one order.
#[test]
fn groups_that_overlap_take_turns() {
    let sums = |comm: &Communicator, queue: &Queue| {
        let rank = comm.rank();
        let ranks = comm.size();
        let mut pairs = Vec::new();
        for low in 0..ranks {
            pairs.extend(comm.block_on(comm.subgroup(&[low, (low + 1) % ranks]))?);
        }
        let mut buffers: Vec<Buffer> = pairs.iter().map(|_| buffer(queue, &numbers(rank, 1000))).collect();
        for _ in 0..3 {
            let all =
                pairs.iter().zip(&mut buffers).map(|(pair, x)| pair.all_reduce(x, ReduceOp::Sum)).collect();
            comm.block_on(together(all))?;
        }
        buffers.iter().map(|x| Ok(x.host::<f32>()?.to_vec())).collect::<Result<Vec<_>>>()
    };
    gives_what_the_host_gives(&TRANSPORTS, 4, sums);
}

#[test]
fn several_collectives_may_be_in_flight_before_their_ranks_are_connected() {
    let sums = |comm: &Communicator, queue: &Queue| {
        let Some(group) = comm.block_on(comm.subgroup(&[2, 0, 3]))? else { return Ok(Vec::new()) };
        let mut buffers: Vec<Buffer> =
            (1..5).map(|at| buffer(queue, &numbers(comm.rank(), 1000 * at))).collect();
        let all = buffers.iter_mut().map(|x| group.all_reduce(x, ReduceOp::Sum)).collect();
        comm.block_on(together(all))?;
        buffers.iter().map(|x| Ok(x.host::<f32>()?.to_vec())).collect::<Result<Vec<_>>>()
    };
    gives_what_the_host_gives(&TRANSPORTS, 4, sums);
}

/// What ranks agree on by the host, the name of a communicator among it, is no payload.
#[test]
fn their_bytes_are_those_of_nccl_s_collectives() {
    const LEN: usize = 1 << 16;
    let counted = |comm: &Communicator, queue: &Queue| {
        let half = comm.block_on(comm.split(Some(comm.rank() as u32 % 2), 0))?;
        let mut x = buffer(queue, &numbers(comm.rank(), LEN));
        let traffic = comm.world().traffic();
        let mut counted = Vec::new();
        for group in half.iter() {
            for _ in 0..2 {
                let all = traffic.bytes_sent();
                let before = traffic.bytes_sent_by(TransportKind::Nccl);
                group.block_on(group.all_reduce(&mut x, ReduceOp::Sum))?;
                let by_path = traffic.bytes_sent_by(TransportKind::Nccl) - before;
                counted.push((by_path, traffic.bytes_sent() - all - by_path));
            }
        }
        assert_eq!(
            x.host::<f32>()?[1],
            (2 * (number(comm.rank() % 2, 1) + number(comm.rank() % 2 + 2, 1))) as f32
        );
        Ok(counted)
    };
    for rank in on_gpus(TransportKind::Tcp, 4, counted) {
        for (by_path, by_host) in rank {
            assert_eq!(by_path, 4 * LEN as u64);
            assert!((1..1000).contains(&by_host), "{by_host} bytes of agreement");
        }
    }
}

/// Returns what three ranks return of which NCCL has connected all, and two call a collective of their group's; the other
/// one does something else with its communicator.
fn outcomes(deadline: Duration, beside: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<Result<()>> {
    let started = Instant::now();
    let outcomes = testing::spawn(TransportKind::Shm, RANKS, |world| {
        let comm = Communicator::open(&world, 0)?;
        let queue = Cuda::new(comm.rank())?.queue()?;
        comm.set_deadline(deadline);
        assert_eq!(comm.attach(&queue)?, Some(TransportKind::Nccl));
        let mut x = buffer(&queue, &numbers(comm.rank(), 1000));
        let pair = comm.block_on(comm.subgroup(&[2, 0]))?;
        let Some(pair) = pair else { return beside(&comm) };
        pair.block_on(pair.all_reduce(&mut x, ReduceOp::Sum))?;
        queue.check()
    });
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    outcomes
}

#[test]
fn ranks_of_a_group_that_nccl_does_not_connect_hear_why() {
    passes(("seed=2", "init=3:3"), "groups::is_refused");
}

#[test]
#[ignore = "needs an NCCL that refuses a group"]
fn is_refused() {
    let outcomes = outcomes(SOON, |comm| comm.block_on(comm.barrier()));
    let says_why = |outcome: &Result<()>| {
        let error = outcome.as_ref().unwrap_err().to_string();
        error.contains("connect the ranks of a group by NCCL: ncclInternalError")
    };
    assert!(outcomes.iter().any(says_why), "{outcomes:?}");
}

#[test]
fn a_group_that_nccl_never_connects_is_past_its_limit() {
    passes(("seed=2", "init=7:3"), "groups::is_never_connected");
}

#[test]
#[ignore = "needs an NCCL that never connects a group"]
fn is_never_connected() {
    let outcomes = outcomes(5 * LIMIT, |_| Ok(()));
    assert!(outcomes[0].is_err() && outcomes[2].is_err(), "{outcomes:?}");
    let is_late = |outcome: &Result<()>| matches!(outcome, Err(Error::Deadline { .. }));
    assert!(outcomes.iter().any(is_late), "{outcomes:?}");
}

#[test]
fn ranks_of_a_group_that_is_being_connected_hear_of_one_that_leaves() {
    passes(("seed=2", "init=7:3"), "groups::hears_of_one_that_leaves");
}

#[test]
#[ignore = "needs an NCCL that never connects a group"]
fn hears_of_one_that_leaves() {
    let leave = |comm: &Communicator| {
        let error = Error::usage("this rank has had enough", "ask another one");
        comm.give_up(&error);
        Err(error)
    };
    let outcomes = outcomes(2 * SOON, leave);
    for outcome in [&outcomes[0], &outcomes[2]] {
        let Err(Error::PeerFailed { culprit, .. }) = outcome else { panic!("{outcomes:?}") };
        assert_eq!(culprit.rank, 1);
    }
}
