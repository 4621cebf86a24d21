//! The majority vote against counting.

use super::{bits, matrix, value};
use hexagram_logical::Communicator;
use hexagram_logical::testing::{cases, spawn};

#[test]
fn most_signs_win_and_ties_are_positive() {
    matrix(|comm| {
        for len in [0, 1, 3, 64, 1001] {
            let mut mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), 0, at)).collect();
            comm.blocking().majority_vote(&mut mine)?;
            for (at, result) in mine.iter().enumerate() {
                let negative = (0..comm.size()).filter(|rank| value(*rank, 0, at) < 0.0).count();
                let expected = if 2 * negative > comm.size() { -1.0 } else { 1.0 };
                assert_eq!(*result, expected, "{negative} of {} are negative", comm.size());
            }
        }
        let mut tie = [if comm.rank().is_multiple_of(2) { 1.0f32 } else { -1.0 }, -0.0];
        comm.blocking().majority_vote(&mut tie)?;
        assert_eq!(tie, [1.0, 1.0]);
        Ok(())
    });
}

#[test]
fn votes_in_many_segments_are_counted() {
    let len = 3 * 6 * 65_536 + 11;
    for (transport, ranks) in cases(&[3]) {
        let run = |comm: Communicator| {
            let mut mine: Vec<f32> = (0..len).map(|at| value(comm.rank(), 1, at)).collect();
            comm.blocking().majority_vote(&mut mine)?;
            let most = |at| if (0..3).filter(|r| value(*r, 1, at) < 0.0).count() > 1 { -1.0 } else { 1.0 };
            assert!(bits(&mine) == bits(&(0..len).map(most).collect::<Vec<_>>()));
            Ok(())
        };
        spawn(transport, ranks, run).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}
