//! The majority vote against counting.

use super::{RANKS, bits, matrix, value};
use hexagram_logical::testing::{buffer, cases, skipped_under_mpi, spawn, spawn_hosts};
use hexagram_logical::{Communicator, Error, Result, TransportKind};
use std::sync::Barrier;

#[test]
fn most_signs_win_and_ties_are_positive() {
    matrix(&RANKS, |comm| {
        for len in [0, 1, 3, 64, 1001] {
            let mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), 0, at)).collect();
            let mut mine = buffer(&mine);
            comm.block_on(comm.majority_vote(&mut mine))?;
            for (at, result) in mine.host::<f32>()?.iter().enumerate() {
                let negative = (0..comm.size()).filter(|rank| value(*rank, 0, at) < 0.0).count();
                let expected = if 2 * negative > comm.size() { -1.0 } else { 1.0 };
                assert_eq!(*result, expected, "{negative} of {} are negative", comm.size());
            }
        }
        let mut tie = buffer(&[if comm.rank().is_multiple_of(2) { 1.0f32 } else { -1.0 }, -0.0]);
        comm.block_on(comm.majority_vote(&mut tie))?;
        assert_eq!(*tie.host::<f32>()?, [1.0, 1.0]);
        Ok(())
    });
}

#[test]
fn votes_in_many_segments_are_counted() {
    let len = 3 * 6 * 65_536 + 11;
    for (transport, ranks) in cases(&[3]) {
        let run = |comm: Communicator| {
            let mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), 1, at)).collect();
            let mut mine = buffer(&mine);
            comm.block_on(comm.majority_vote(&mut mine))?;
            let most = |at| if (0..3).filter(|r| value(*r, 1, at) < 0.0).count() > 1 { -1.0 } else { 1.0 };
            assert!(bits(&mine.host::<f32>()?) == bits(&(0..len).map(most).collect::<Vec<_>>()));
            Ok(())
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}

const HOSTS: [&[usize]; 5] = [&[0], &[0, 0, 0], &[0, 1, 2], &[0, 0, 0, 1], &[0, 1, 0, 2, 1, 0, 0]];

#[test]
fn hosts_that_count_their_votes_come_to_the_same_result() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in HOSTS {
        spawn_hosts(hosts, |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            for len in [0, 1, 9, 1001, 3 * 65_536 + 11] {
                // Zeros of either sign, and ties.
                let of = |at| if at % 5 == 0 { [0.0, -0.0][at / 5 % 2] } else { value(comm.rank(), 2, at) };
                let mut flat: Vec<f32> = (0..len).map(of).collect();
                let mut steep = buffer(&flat);
                comm.blocking().majority_vote(&mut flat)?;
                comm.block_on(hierarchy.majority_vote(&mut steep))?;
                assert!(bits(&flat) == bits(&steep.host::<f32>()?), "{len} elements");
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
    }
}

/// Two bits per element for up to three ranks of a host, to the other host's leader, and one bit for the result.
#[test]
fn hosts_send_each_other_counts_and_results() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    const LEN: usize = 1 << 20;
    let sent = spawn_hosts(&[0, 0, 0, 1], |comm| {
        let hierarchy = comm.block_on(comm.hierarchy())?;
        let over_tcp = || comm.world().traffic().bytes_sent_by(TransportKind::Tcp);
        comm.block_on(comm.barrier())?;
        let before = over_tcp();
        comm.block_on(hierarchy.majority_vote(&mut buffer(&vec![1.0f32; LEN])))?;
        Ok(over_tcp() - before)
    });
    let payload = (LEN / 2 * 3 / 8) as u64;
    for (rank, sent) in sent.unwrap().into_iter().enumerate() {
        let want = if rank == 0 || rank == 3 { payload..payload + payload / 50 } else { 0..1 };
        assert!(want.contains(&sent), "rank {rank} sent {sent} bytes");
    }
}

#[test]
fn a_rank_without_an_opinion_is_named_to_all_hosts() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    let opened = Barrier::new(4);
    let run = |comm: Communicator| -> Result<Error> {
        let hierarchy = comm.block_on(comm.hierarchy())?;
        opened.wait();
        let mut mine = [1.0f32; 30];
        if comm.rank() == 2 {
            mine[17] = f32::NAN;
        }
        Ok(comm.block_on(hierarchy.majority_vote(&mut buffer(&mine))).unwrap_err())
    };
    for (rank, error) in spawn_hosts(&[0, 0, 0, 1], run).unwrap().into_iter().enumerate() {
        match error {
            Error::NotFinite { index, .. } => assert_eq!([rank, index], [2, 17], "{error}"),
            _ => assert!(rank != 2 && error.to_string().contains("rank 2"), "rank {rank}: {error}"),
        }
    }
}
