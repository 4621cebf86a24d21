//! Wrong calls, ranks that disagree, and numbers that cannot be encoded.

use super::lossy::Lossy;
use super::{DCD, RANKS, choco, encoding, matrix};
use hexagram_logical::codec::{Half, MinMax8};
use hexagram_logical::decentralized::{GossipOptions, Mixing, Schedule, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, on_threads, spawn};
use hexagram_logical::{Communicator, Error, Result};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn wrong_calls_are_refused_before_anything_is_sent() {
    matrix(&RANKS, |comm| {
        let before = comm.world().traffic().bytes_sent();
        let refused = |outcome: Result<()>, about: &str| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains(about), "{error}");
        };
        let mut half = encoding(Half::F16, Feedback::Difference);
        let gossip = |graph: &dyn Schedule, encoding: &mut Encoding, consensus| {
            comm.blocking().gossip_encoded(&mut [1f32; 4], graph, 0, encoding, choco(consensus))
        };
        for consensus in [0.0, -1.0, 1.5, f64::NAN] {
            refused(gossip(&Topology::Ring, &mut half, consensus), "not a valid consensus step");
        }
        let uneven = Mixing::push(comm.size(), |rank| (0..rank).collect::<BTreeSet<_>>())?;
        refused(gossip(&uneven, &mut half, 1.0), "does not add up");
        refused(gossip(&Topology::Ring, &mut encoding(Half::F16, Feedback::TwoLevel), 1.0), "two-level");
        let mut wide = testing::buffer(&[1f64; 4]);
        let outcome = comm.gossip_encoded(&mut wide, &Topology::Ring, 0, &mut half, choco(1.0));
        refused(comm.block_on(outcome), "f32, not f64");
        let mut none = encoding(Half::F16, Feedback::None);
        let narrow = testing::buffer(&[1f32; 4]);
        refused(
            comm.block_on(comm.gossip_synchronize(&narrow, &Topology::Ring, 0, &mut none)),
            "no feedback",
        );
        assert_eq!(comm.world().traffic().bytes_sent(), before);
        Ok(())
    });
}

/// Runs a round on 3 ranks of every transport and passes the errors to `check`; no rank fails while others still
/// open.
fn all_fail(body: impl Fn(&Communicator) -> Result<()> + Sync, check: impl Fn(usize, Error)) {
    for transport in on_threads() {
        let open = std::sync::Barrier::new(3);
        let errors = spawn(transport, 3, |comm| {
            comm.set_deadline(Duration::from_secs(60));
            open.wait();
            Ok(body(&comm).and_then(|()| comm.blocking().barrier()).err())
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            check(rank, error.unwrap_or_else(|| panic!("rank {rank} over {transport} saw no error")));
        }
    }
}

#[test]
fn ranks_that_encode_differently_are_told_so() {
    let disagree = |other: fn() -> (Encoding, GossipOptions)| {
        all_fail(
            |comm| {
                let usual = || (encoding(Half::F16, Feedback::Difference), choco(0.5));
                let (mut encoding, options) = if comm.rank() == 1 { other() } else { usual() };
                comm.blocking().gossip_encoded(&mut [1f32; 9], &Topology::Ring, 0, &mut encoding, options)
            },
            |rank, error| {
                let text = error.to_string();
                assert!(text.contains("disagree") && text.contains("codec #"), "rank {rank}: {text}");
            },
        );
    };
    disagree(|| (encoding(Half::BF16, Feedback::Difference), choco(0.5)));
    disagree(|| (encoding(Half::F16, Feedback::Error), choco(0.5)));
    disagree(|| (encoding(Half::F16, Feedback::Difference), choco(0.25)));
    disagree(|| (encoding(Half::F16, Feedback::Difference), GossipOptions { consensus: 0.5, ..DCD }));
}

#[test]
fn what_cannot_be_encoded_or_decoded_ends_everyones() {
    all_fail(
        |comm| {
            let mut x = [1f32; 40];
            x[17] = if comm.rank() == 1 { f32::NAN } else { 0.0 };
            let mut encoding = encoding(MinMax8::default(), Feedback::None);
            comm.blocking().gossip_encoded(&mut x, &Topology::Ring, 0, &mut encoding, choco(1.0))
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("element 17 is NaN on rank 1"), "rank {rank}: {text}");
        },
    );
    all_fail(
        |comm| {
            let mut encoding = encoding(Lossy::Damaged, Feedback::None);
            comm.blocking().gossip_encoded(&mut [1f32; 4], &Topology::Ring, 0, &mut encoding, choco(1.0))
        },
        |rank, error| {
            let text = error.to_string();
            assert!(text.contains("it never can"), "rank {rank}: {text}");
        },
    );
}
