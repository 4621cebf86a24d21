//! Groups and hierarchies: their members, and that their operations do not interfere.

mod channels;
mod hierarchy;

use hexagram_logical::testing::{self, TRANSPORTS, cases, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result, TransportKind};
use std::sync::{Arc, Barrier};

const RANKS: [usize; 5] = [1, 2, 3, 4, 8];

fn matrix(test: impl Fn(Communicator) -> Result<()> + Sync) {
    for (transport, ranks) in cases(&RANKS) {
        spawn(transport, ranks, &test).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

fn sum(comm: &Communicator, value: f32) -> Result<f32> {
    let mut buffer = [value];
    comm.blocking().all_reduce(&mut buffer, ReduceOp::Sum)?;
    Ok(buffer[0])
}

#[test]
fn ranks_of_one_color_are_a_group_in_the_order_of_their_keys() {
    matrix(|comm| {
        let rank = comm.rank();
        let size = comm.size();
        let group = comm.block_on(comm.split(Some((rank % 2) as u32), -(rank as i64)))?.unwrap();
        let mut members: Vec<usize> = (0..size).filter(|other| other % 2 == rank % 2).collect();
        assert_eq!(sum(&group, rank as f32)?, members.iter().sum::<usize>() as f32);
        members.reverse();
        assert_eq!(group.world_ranks(), members);
        assert_eq!(group.world_ranks()[group.rank()], rank);
        Ok(())
    });
}

#[test]
fn groups_of_groups_do_not_disturb_each_other() {
    matrix(|comm| {
        let rank = comm.rank();
        let half = comm.block_on(comm.split(Some((rank / 2) as u32), 0))?.unwrap();
        let alone = half.block_on(half.split(Some(half.rank() as u32), 0))?.unwrap();
        // A different division of the world, after some ranks have created more groups than others.
        let odd = comm.block_on(comm.split((rank % 2 == 1).then_some(7), 0))?;
        assert_eq!(odd.is_some(), rank % 2 == 1);
        for round in 0..3 {
            let value = (rank * 10 + round) as f32;
            assert_eq!(sum(&alone, value)?, value);
            let of = |ranks: &[usize]| ranks.iter().map(|rank| (rank * 10 + round) as f32).sum::<f32>();
            assert_eq!(sum(&half, value)?, of(half.world_ranks()));
            if let Some(odd) = &odd {
                assert_eq!(sum(odd, value)?, of(odd.world_ranks()));
            }
            assert_eq!(sum(&comm, value)?, of(comm.world_ranks()));
        }
        Ok(())
    });
}

#[test]
fn a_subgroup_speaks_in_its_own_numbers() {
    for (transport, ranks) in cases(&[3, 4, 8]) {
        spawn(transport, ranks, |comm| {
            let Some(group) = comm.block_on(comm.subgroup(&[2, 0]))? else {
                assert!(![0, 2].contains(&comm.rank()));
                return Ok(());
            };
            let mut buffer = testing::buffer(&[comm.rank() as i64]);
            group.block_on(group.broadcast(&mut buffer, 0))?;
            assert_eq!(*buffer.host::<i64>()?, [2]);
            let mut message = testing::buffer(&[comm.rank() as i64]);
            if group.rank() == 0 {
                group.block_on(group.send(&message, 1))?;
            } else {
                group.block_on(group.recv(&mut message, 0))?;
            }
            assert_eq!(*message.host::<i64>()?, [2]);
            let registered = group.registered(DType::F32, 3)?;
            assert_eq!(*registered.host::<f32>()?, [0.0; 3]);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

#[test]
fn a_subgroup_of_what_does_not_exist_is_refused() {
    if skipped_under_mpi("it is about a call that sends nothing") {
        return;
    }
    spawn(TransportKind::Thread, 2, |comm| {
        for wrong in [&[0, 2][..], &[1, 1]] {
            let error = comm.block_on(comm.subgroup(wrong)).map(drop).unwrap_err();
            assert!(matches!(error, Error::Usage { .. }), "{error}");
        }
        assert_eq!(sum(&comm, 1.0)?, 2.0, "nothing was sent");
        Ok(())
    })
    .unwrap();
}

#[test]
fn different_lists_are_noticed() {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    let opened = Barrier::new(3);
    let outcomes = spawn(TransportKind::Shm, 3, |comm| {
        opened.wait();
        let list: &[usize] = if comm.rank() == 0 { &[0, 1, 2] } else { &[0, 1] };
        Ok(comm.block_on(comm.subgroup(list)).map(drop))
    });
    // The others may get the failure before they finish.
    let outcomes = outcomes.unwrap();
    assert!(matches!(&outcomes[0], Err(Error::Usage { .. })), "{outcomes:?}");
}

#[test]
fn members_alone_make_their_group() {
    matrix(|comm| {
        let rank = comm.rank();
        let size = comm.size();
        // Every pair of ranks, and all but one, in an order that is the same on all.
        let pairs = (0..size).flat_map(|low| (low + 1..size).map(move |high| vec![high, low]));
        let but_one = (0..size).map(|without| (0..size).filter(|rank| *rank != without).collect());
        let lists: Vec<Vec<usize>> =
            pairs.chain(but_one).filter(|list: &Vec<usize>| list.contains(&rank)).collect();
        let groups =
            lists.iter().map(|list| comm.block_on(comm.group_of(list))).collect::<Result<Vec<_>>>()?;
        for (list, group) in lists.iter().zip(&groups) {
            assert_eq!(group.world_ranks(), list);
            assert_eq!(list[group.rank()], rank);
        }
        for round in 0..2 {
            for group in &groups {
                let expected = group.world_ranks().iter().map(|rank| (rank * 10 + round) as f32).sum::<f32>();
                assert_eq!(sum(group, (rank * 10 + round) as f32)?, expected);
            }
        }
        Ok(())
    });
}

#[test]
fn groups_of_members_and_splits_do_not_disturb_each_other() {
    matrix(|comm| {
        let rank = comm.rank();
        let size = comm.size();
        let lower: Vec<usize> = (0..size.div_ceil(2)).collect();
        // The ranks have made unequal numbers of groups before the split.
        let low = if lower.contains(&rank) { Some(comm.block_on(comm.group_of(&lower))?) } else { None };
        let half = comm.block_on(comm.split(Some(u32::from(lower.contains(&rank))), 0))?.unwrap();
        let again = comm.block_on(half.group_of(&(0..half.size()).collect::<Vec<_>>()))?;
        for value in [1.0, 2.0] {
            if let Some(low) = &low {
                assert_eq!(sum(low, value)?, value * lower.len() as f32);
            }
            assert_eq!(sum(&again, value + 1.0)?, (value + 1.0) * half.size() as f32);
            assert_eq!(sum(&half, value)?, value * half.size() as f32);
            assert_eq!(sum(&comm, value)?, value * size as f32);
        }
        Ok(())
    });
}

#[test]
fn a_group_that_cannot_be_made_is_refused_before_anybody_is_asked() {
    for (transport, ranks) in cases(&[2]) {
        spawn(transport, ranks, |comm| {
            for (list, word) in [
                (&[0, 0][..], "twice"),
                (&[0, 2], "rank 2 does not exist"),
                (&[1 - comm.rank()], "not in the group"),
            ] {
                let error = comm.block_on(comm.group_of(list)).map(drop).unwrap_err();
                assert!(matches!(&error, Error::Usage { .. }) && error.to_string().contains(word), "{error}");
            }
            assert_eq!(sum(&comm, 1.0)?, 2.0);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn members_that_name_different_groups_all_fail() {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    for transport in TRANSPORTS {
        // Of the same ranks in a different order, and of more.
        for other in [&[1, 0][..], &[0, 1, 2]] {
            let opened = Barrier::new(3);
            let outcomes = spawn(transport, 3, |comm| {
                opened.wait();
                let list = [&[0, 1], other][comm.rank() % 2];
                let outcome = if comm.rank() < 2 { comm.block_on(comm.group_of(list)).err() } else { None };
                opened.wait();
                Ok(outcome)
            });
            let [lowest, higher, _] = outcomes.unwrap().try_into().unwrap_or_else(|_| panic!("three ranks"));
            assert!(
                matches!(&lowest, Some(Error::Usage { .. } | Error::Mismatch { .. })),
                "{transport}: {lowest:?}"
            );
            assert!(matches!(&higher, Some(Error::PeerFailed { .. })), "{transport}: {higher:?}");
        }
    }
}

#[test]
fn a_member_that_does_not_make_the_group_is_named_at_the_deadline() {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    for missing in [0, 1] {
        let opened = Barrier::new(2);
        let outcomes = spawn(TransportKind::Shm, 2, |comm| {
            comm.set_deadline(std::time::Duration::from_millis(200));
            opened.wait();
            let outcome = if comm.rank() == missing {
                None
            } else {
                comm.block_on(comm.group_of(&[0, 1])).map(drop).err()
            };
            opened.wait();
            Ok(outcome)
        });
        let outcome = outcomes.unwrap().swap_remove(1 - missing);
        let is_named =
            matches!(&outcome, Some(Error::Deadline { waiting_for: Some(peer), .. }) if peer.rank == missing);
        assert!(is_named, "{outcome:?}");
    }
}

#[test]
fn a_failure_in_a_group_ends_the_world() {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    let opened = Barrier::new(4);
    spawn(TransportKind::Tcp, 4, |comm| {
        let group = comm.block_on(comm.split(Some((comm.rank() / 2) as u32), 0))?.unwrap();
        opened.wait();
        // The ranks of the second group disagree; those of the first continue until they get the failure.
        let mut buffer = vec![0.0f32; 1 + usize::from(comm.rank() == 3)];
        let outcome = group.blocking().all_reduce(&mut buffer, ReduceOp::Sum);
        let afterwards = sum(&comm, 1.0);
        opened.wait();
        match (comm.rank(), outcome, afterwards) {
            (0 | 1, Ok(()) | Err(Error::PeerFailed { .. }), Err(_)) | (2 | 3, Err(_), Err(_)) => Ok(()),
            other => panic!("{other:?}"),
        }
    })
    .unwrap();
}
