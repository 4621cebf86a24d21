//! Hierarchies: hierarchical results equal the flat ones for any numbers of ranks per host, and only leaders send to
//! other hosts.

use super::*;
use hexagram_logical::Hierarchy;
use hexagram_logical::codec::{Keep, MinMax8, RandomK};
use hexagram_logical::decentralized::{Schedule, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::spawn_hosts;
use std::time::Duration;

/// Ranks on hosts: one each, all on one, unequal, and not in order.
const LAYOUTS: [&[usize]; 6] =
    [&[0], &[0, 0, 0], &[0, 1, 2], &[0, 0, 0, 1], &[0, 1, 0, 2, 1, 0], &[0, 0, 1, 1]];

fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| ((rank * 7 + at * 3) % 11) as f32).collect()
}

fn filled(rank: usize, len: usize) -> Buffer {
    testing::buffer(&values(rank, len))
}

/// The flat primitive on small whole numbers is exact, and the hierarchical one must be, too.
#[test]
fn hierarchical_results_are_the_flat_ones() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in LAYOUTS {
        spawn_hosts(hosts, |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            for len in [0, 1, 5, 1000, 70_000] {
                for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
                    let mut flat = filled(comm.rank(), len);
                    let mut steep = filled(comm.rank(), len);
                    comm.block_on(comm.all_reduce(&mut flat, op))?;
                    comm.block_on(hierarchy.all_reduce(&mut steep, op))?;
                    assert_eq!(*flat.host::<f32>()?, *steep.host::<f32>()?, "{op} of {len}");
                }
                for root in 0..comm.size() {
                    let mut buffer = filled(comm.rank(), len);
                    comm.block_on(hierarchy.broadcast(&mut buffer, root))?;
                    assert_eq!(*buffer.host::<f32>()?, values(root, len));
                    let mut flat = filled(comm.rank(), len);
                    let mut steep = filled(comm.rank(), len);
                    comm.block_on(comm.reduce(&mut flat, ReduceOp::Mean, root))?;
                    comm.block_on(hierarchy.reduce(&mut steep, ReduceOp::Mean, root))?;
                    assert_eq!(*flat.host::<f32>()?, *steep.host::<f32>()?, "root {root}, {len}");
                }
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
    }
}

#[test]
fn hierarchical_blocks_are_the_flat_ones() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in LAYOUTS {
        spawn_hosts(hosts, |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            for len in [0, 1, 5, 1000] {
                let mine = filled(comm.rank(), len);
                let all = || Ok::<_, Error>(testing::zeroed(DType::F32, len * comm.size()));
                let mut flat = all()?;
                let mut steep = all()?;
                comm.block_on(comm.all_gather(&mine, &mut flat))?;
                comm.block_on(hierarchy.all_gather(&mine, &mut steep))?;
                assert_eq!(*flat.host::<f32>()?, *steep.host::<f32>()?, "all-gather of {len}");
                let blocks = filled(comm.rank(), len * comm.size());
                let mut flat = mine;
                let mut steep = testing::zeroed(DType::F32, len);
                comm.block_on(comm.reduce_scatter(&blocks, &mut flat, ReduceOp::Mean))?;
                comm.block_on(hierarchy.reduce_scatter(&blocks, &mut steep, ReduceOp::Mean))?;
                assert_eq!(*flat.host::<f32>()?, *steep.host::<f32>()?, "reduce-scatter of {len}");
                assert_eq!(*blocks.host::<f32>()?, values(comm.rank(), len * comm.size()));
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
    }
}

/// The result is near the exact one, and the same everywhere.
#[test]
fn hierarchical_low_precision_is_the_same_on_all_ranks() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in LAYOUTS {
        let results = spawn_hosts(hosts, |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            let feedback = Feedback::TwoLevel;
            let mut encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(feedback);
            let mut exact = filled(comm.rank(), 5000);
            let mut near = filled(comm.rank(), 5000);
            comm.block_on(comm.all_reduce(&mut exact, ReduceOp::Mean))?;
            for _ in 0..2 {
                near = filled(comm.rank(), 5000);
                comm.block_on(hierarchy.all_reduce_encoded(&mut near, ReduceOp::Mean, &mut encoding))?;
            }
            assert_eq!(encoding.state().operations(), 2);
            let exact = exact.host::<f32>()?;
            let near = near.host::<f32>()?;
            assert!(exact.iter().zip(&*near).all(|(exact, near)| (exact - near).abs() < 0.5), "{hosts:?}");
            Ok(near.to_vec())
        });
        let results = results.unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
        assert!(results.iter().all(|result| *result == results[0]), "{hosts:?}");
    }
}

/// Sums of whole numbers at the places that leaders have in common, 0 elsewhere, on any device.
#[test]
fn hierarchical_sums_at_random_places_are_exact() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    for hosts in LAYOUTS {
        spawn_hosts(hosts, |comm| {
            let hierarchy = comm.block_on(comm.hierarchy())?;
            let codec = RandomK::new(Keep::Ratio(0.25))?;
            let mut encoding = Encoding::linear(Arc::new(codec)).with_seed(3);
            let mut exact = filled(comm.rank(), 5000);
            let mut some = filled(comm.rank(), 5000);
            comm.block_on(comm.all_reduce(&mut exact, ReduceOp::Sum))?;
            comm.block_on(hierarchy.all_reduce_linear(&mut some, ReduceOp::Sum, &mut encoding))?;
            let exact = exact.host::<f32>()?;
            let some = some.host::<f32>()?;
            let kept = exact.iter().zip(&*some).filter(|(exact, some)| exact == some).count();
            assert!(exact.iter().zip(&*some).all(|(exact, some)| some == exact || *some == 0.0), "{hosts:?}");
            assert!(kept >= 1250, "{kept} on {hosts:?}");
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{hosts:?}: {e}"));
    }
}

/// Runs calls that only leaders refuse, on two hosts of two ranks each: the others get this error immediately.
fn only_leaders_refuse(words: &str, refused: impl Fn(&Hierarchy, &Communicator) -> Result<()> + Sync) {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    let opened = Barrier::new(4);
    let errors = spawn_hosts(&[0, 0, 1, 1], |comm| {
        let hierarchy = comm.block_on(comm.hierarchy())?;
        comm.blocking().barrier()?;
        opened.wait();
        Ok(refused(&hierarchy, &comm).unwrap_err())
    })
    .unwrap();
    for (rank, error) in errors.iter().enumerate() {
        let told = matches!(error, Error::Usage { .. } | Error::PeerFailed { .. });
        assert!(told && error.to_string().contains(words), "rank {rank}: {error}");
    }
    assert!(errors.iter().any(|error| matches!(error, Error::Usage { .. })), "{errors:?}");
}

/// Only leaders remember anything, and so only they can notice.
#[test]
fn a_leader_whose_memory_does_not_fit_tells_the_others() {
    let encoding = || Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Error);
    only_leaders_refuse("has 50", |hierarchy, comm| {
        let mut encoding = encoding();
        [50, 60].into_iter().try_for_each(|len| {
            let mut buffer = filled(comm.rank(), len);
            comm.block_on(hierarchy.all_reduce_encoded(&mut buffer, ReduceOp::Mean, &mut encoding))
        })
    });
    only_leaders_refuse("has 50", |hierarchy, comm| {
        let mut encoding = encoding();
        [50, 60].into_iter().try_for_each(|len| {
            let mut buffer = filled(comm.rank(), len);
            comm.block_on(hierarchy.all_reduce_sparse(&mut buffer, ReduceOp::Mean, &mut encoding))
        })
    });
}

/// Only leaders query the schedule, for the number of hosts.
#[test]
fn a_leader_without_a_matrix_for_the_hosts_tells_the_others() {
    only_leaders_refuse("a mixing matrix for 4 ranks was used among 2", |hierarchy, comm| {
        let schedule = Topology::Ring.mixing(4, 0)?;
        comm.block_on(hierarchy.gossip(&mut filled(comm.rank(), 50), &schedule, 0))
    });
}

#[test]
fn hosts_and_leaders_are_those_of_the_group() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    let hosts = [0, 1, 0, 2, 1, 0];
    spawn_hosts(&hosts, |comm| {
        assert_eq!(comm.world().hosts(), hosts);
        // Without rank 0, whose host is then led by rank 2 of the world.
        let group = comm.block_on(comm.subgroup(&[1, 2, 3, 4, 5]))?;
        let Some(group) = group else { return Ok(()) };
        let hierarchy = group.block_on(group.hierarchy())?;
        assert_eq!(hierarchy.hosts(), [vec![0, 3], vec![1, 4], vec![2]]);
        let leads = [1, 2, 3].contains(&comm.rank());
        assert_eq!(hierarchy.leaders().is_some(), leads);
        let on_host = (1..6).filter(|other| hosts[*other] == hosts[comm.rank()]).count();
        assert_eq!(hierarchy.host().size(), on_host);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_kept_hierarchy_is_made_once_and_lanes_share_it() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    spawn_hosts(&[0, 0, 1], |comm| {
        comm.block_on(comm.kept_hierarchy())?;
        let before = comm.world().traffic().bytes_sent();
        let other = comm.lane(1).with_deadline(Duration::from_secs(77));
        let first = comm.block_on(comm.kept_hierarchy())?;
        let second = comm.block_on(other.kept_hierarchy())?;
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        assert_eq!(second.host().deadline(), Duration::from_secs(77));
        let want: Vec<f32> = (0..300).map(|at| (0..3).map(|rank| values(rank, 300)[at]).sum()).collect();
        for hierarchy in [&first, &second, &first] {
            let mut buffer = filled(comm.rank(), 300);
            comm.block_on(hierarchy.all_reduce(&mut buffer, ReduceOp::Sum))?;
            assert_eq!(*buffer.host::<f32>()?, want);
        }
        Ok(())
    })
    .unwrap();
}

/// Bytes between hosts, by the table: 2(m−1)/m · S from each leader, and none from others.
#[test]
fn only_leaders_speak_to_other_hosts() {
    if skipped_under_mpi("its ranks pretend to be on several hosts") {
        return;
    }
    const LEN: usize = 300_000;
    let hosts = [0, 0, 0, 1];
    let sent = spawn_hosts(&hosts, |comm| {
        let hierarchy = comm.block_on(comm.hierarchy())?;
        let over_tcp = || comm.world().traffic().bytes_sent_by(TransportKind::Tcp);
        comm.block_on(comm.barrier())?;
        let before = over_tcp();
        let mut buffer = filled(comm.rank(), LEN);
        comm.block_on(hierarchy.all_reduce(&mut buffer, ReduceOp::Sum))?;
        Ok(over_tcp() - before)
    })
    .unwrap();
    let payload = (4 * LEN) as u64;
    for (rank, sent) in sent.into_iter().enumerate() {
        let want = if rank == 0 || rank == 3 { payload..payload + payload / 100 } else { 0..1 };
        assert!(want.contains(&sent), "rank {rank} sent {sent} bytes");
    }
}
