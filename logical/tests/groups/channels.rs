//! Channels of groups: further communicators of their ranks alone, and what works in the background on them.

use super::{matrix, sum};
use hexagram_logical::asynchronous::{
    Background, Clock, PairExchange, PairOptions, Server, ServerOptions, Service, SgdUpdate, Window,
};
use hexagram_logical::testing::{cases, skipped_under_mpi, spawn, spawn_hosts};
use hexagram_logical::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind};
use std::sync::Mutex;

/// Returns this rank's half of the ranks, in descending order, on a channel of its own.
fn half(comm: &Communicator) -> Result<Communicator> {
    let color = Some((comm.rank() % 2) as u32);
    let Some(half) = comm.block_on(comm.split(color, -(comm.rank() as i64)))? else {
        panic!("a rank with a color is in a group");
    };
    let opened = half.block_on(half.channel())?.open()?;
    assert_eq!((opened.world_ranks(), opened.rank()), (half.world_ranks(), half.rank()));
    Ok(opened)
}

/// Returns the sum of the world's ranks in a group.
fn sum_of_ranks(group: &Communicator) -> f32 {
    group.world_ranks().iter().sum::<usize>() as f32
}

/// Checks collectives, messages and smaller groups.
fn works(group: &Communicator, rank: usize) -> Result<()> {
    assert_eq!(sum(group, rank as f32)?, sum_of_ranks(group));
    let mut all = vec![0; group.size()];
    group.blocking().all_gather(&[rank as i64], &mut all)?;
    assert!(all.iter().map(|rank| *rank as usize).eq(group.world_ranks().iter().copied()));
    let mut long = vec![rank as f32; 100_000];
    group.blocking().all_reduce(&mut long, ReduceOp::Max)?;
    let largest = group.world_ranks().iter().copied().max().unwrap_or_default() as f32;
    assert!(long.iter().all(|x| *x == largest));
    let Some(pair) = group.block_on(group.split(Some((group.rank() / 2) as u32), 0))? else { return Ok(()) };
    assert_eq!(sum(&pair, rank as f32)?, sum_of_ranks(&pair));
    let hierarchy = group.block_on(group.hierarchy())?;
    let mut mean = Buffer::from_slice(&[rank as f32])?;
    group.block_on(hierarchy.all_reduce(&mut mean, ReduceOp::Sum))?;
    assert_eq!(*mean.host::<f32>()?, [sum_of_ranks(group)]);
    Ok(())
}

#[test]
fn a_group_opens_a_channel_of_its_ranks() {
    matrix(|comm| {
        let half = half(&comm)?;
        works(&half, comm.rank())?;
        // Ranks that have taken unequal numbers of channels agree on the next.
        let all = comm.block_on(comm.channel())?.open()?;
        works(&all, comm.rank())?;
        works(&half, comm.rank())
    });
}

#[test]
fn groups_that_share_ranks_open_channels() {
    matrix(|comm| {
        let rank = comm.rank();
        // Ranks 0 and 1, then 1 and 2, and so on.
        for low in 0..comm.size() - 1 {
            if [low, low + 1].contains(&rank) {
                let pair = comm.block_on(comm.group_of(&[low + 1, low]))?;
                works(&pair.block_on(pair.channel())?.open()?, rank)?;
            }
        }
        Ok(())
    });
}

#[test]
fn groups_across_hosts_open_channels() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 1, 2]] {
        spawn_hosts(hosts, |comm| works(&half(&comm)?, comm.rank())).unwrap();
    }
}

#[test]
fn threads_agree_on_different_channels_in_the_same_moment() {
    if skipped_under_mpi("MPI runs one thread at a time") {
        return;
    }
    spawn(TransportKind::Shm, 3, |comm| {
        let others = comm.block_on(comm.channel())?;
        let opened = Mutex::new(Vec::new());
        let open = |comm: &Communicator| {
            for _ in 0..20 {
                let channel = comm.block_on(comm.channel())?;
                let further = channel.open()?;
                assert_eq!(sum(&further, 1.0)?, 3.0);
                opened.lock().unwrap().push(());
            }
            Ok::<(), Error>(())
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| open(&others.open()?));
            open(&comm)?;
            second.join().unwrap()
        })?;
        assert_eq!(opened.lock().unwrap().len(), 40);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_works_in_the_background_works_in_a_group() {
    matrix(|comm| {
        let group = half(&comm)?;
        let (rank, size) = (group.rank(), group.size());
        let mine = Buffer::from_slice(&[comm.rank() as f32])?;
        let service = group.block_on(Service::start(&group))?;

        let others: Vec<usize> = (0..size).filter(|other| *other != rank).collect();
        let window = group.block_on(Window::create(&group, &service, &mine, &others, None))?;
        let to: Vec<(usize, f64)> = others.iter().map(|to| (*to, 1.0)).collect();
        window.accumulate(1.0, &to).blocking()?;
        group.blocking().barrier()?;
        window.blocking().collect()?;
        let mut found = Buffer::zeroed(mine.dtype(), 1)?;
        window.blocking().load(&mut found)?;
        assert_eq!(*found.host::<f32>()?, [sum_of_ranks(&group)]);

        let pair = group.block_on(PairExchange::create(&group, &service, &mine, PairOptions::default()))?;
        if rank == 0 && size > 1 {
            pair.exchange(1).blocking()?;
        }
        group.blocking().barrier()?;
        pair.blocking().load(&mut found)?;
        let partners: &[usize] = if rank < 2 && size > 1 { &[0, 1] } else { &[rank] };
        let sum = partners.iter().map(|rank| group.world_ranks()[*rank] as f32).sum::<f32>();
        assert_eq!(*found.host::<f32>()?, [sum / partners.len() as f32]);

        assert_eq!(group.block_on(served(&group, &service, &mine))?, 10.0 - 0.5 * sum_of_ranks(&group));
        drop((window, pair));
        group.block_on(service.close())?;

        let background = group.block_on(Background::start(&group))?;
        let ranks = background.call(async |comm: &Communicator| Ok(comm.world_ranks().to_vec()));
        assert_eq!(ranks.blocking()?.as_deref(), Some(group.world_ranks()));
        Ok(())
    });
}

/// Returns a parameter of 10 after one step against each rank's value, by a server of the group's ranks.
async fn served(group: &Communicator, service: &Service, mine: &Buffer) -> Result<f32> {
    let clock = Clock::start(group, service, 0).await?;
    let mut x = Buffer::from_slice(&[10f32])?;
    let rule = SgdUpdate { rate: 0.5 };
    let mut server = Server::start(group, service, &clock, &x, rule, ServerOptions::default()).await?;
    server.pull(0..1, &mut x).await?;
    server.push(0..1, mine).await?;
    clock.tick();
    server.pull(0..1, &mut x).await?;
    let x = x.host::<f32>()?[0];
    clock.settle().await?;
    Ok(x)
}

#[test]
fn a_service_refuses_a_communicator_of_other_ranks() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let half = half(&comm)?;
            let refused = half.block_on(Clock::start(&half, &service, 0)).map(drop).unwrap_err().to_string();
            assert!(refused.contains("the service of [0, 1, 2]"), "{refused}");
            comm.block_on(service.close())
        })
        .unwrap_or_else(|error| panic!("{transport}: {error}"));
    }
}
