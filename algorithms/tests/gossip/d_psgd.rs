//! D-PSGD: fixed points in both orders, averaged SGD as its complete graph, and disagreement between ranks.

use super::*;
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::d_psgd::Peers;
use hexagram_algorithms::logical::decentralized::{Mixing, Schedule};
use hexagram_algorithms::optimizer::Sgd;
use std::sync::Barrier;

/// Solves `matrix · x = right` by Gauss–Jordan elimination.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()));
        matrix.swap(column, pivot.unwrap());
        right.swap(column, pivot.unwrap());
        let chosen = matrix[column].clone();
        let chosen_right = right[column];
        for row in (0..size).filter(|row| *row != column) {
            let factor = matrix[row][column] / chosen[column];
            (0..size).for_each(|at| matrix[row][at] -= factor * chosen[at]);
            right[row] -= factor * chosen_right;
        }
    }
    (0..size).map(|row| right[row] / matrix[row][row]).collect()
}

/// The fixed point of x ← W x − γ A (x − b), or of x ← W (x − γ A (x − b)).
fn fixed_point(schedule: &dyn Schedule, ranks: usize, rate: f64, adapt_then_combine: bool) -> Vec<f64> {
    let Quadratic { a, b } = problem();
    let w = schedule.mixing(ranks, 0).unwrap().dense();
    let step = |row: usize, at: usize| if row == at { rate * a[row] } else { 0.0 };
    let mut matrix = vec![vec![0.0; ranks]; ranks];
    let mut right = vec![0.0; ranks];
    for row in 0..ranks {
        for at in 0..ranks {
            let identity = f64::from(u8::from(row == at));
            let mixed = w[row * ranks + at];
            let taken = if adapt_then_combine { mixed * rate * a[at] } else { step(row, at) };
            matrix[row][at] = identity - mixed + taken;
            right[row] += taken * b[at];
        }
    }
    solve(matrix, right)
}

fn star() -> Mixing {
    Topology::Star.mixing(5, 0).unwrap()
}

#[test]
fn its_fixed_points_are_those_of_the_linear_system() {
    for adapt_then_combine in [false, true] {
        for (ranks, peers, schedule) in [
            (4, Peers::from(Topology::Ring), &Topology::Ring as &dyn Schedule),
            (5, Peers::from(star()), &star()),
            (3, Peers::from(Topology::Exponential), &Topology::Exponential),
        ] {
            let algorithm: Algorithm = DPsgd { peers, adapt_then_combine, ..DPsgd::default() }.into();
            let found = train_quadratics(ranks, &algorithm, 0.1, 800);
            assert_near(&found, &fixed_point(schedule, ranks, 0.1, adapt_then_combine), 2e-14);
        }
    }
}

#[test]
fn adapt_then_combine_with_all_is_averaged_sgd() {
    let averaged = train_quadratics(4, &GradientAllReduce.into(), 0.1, 60);
    for peers in [Peers::All, Topology::Complete.into()] {
        let algorithm: Algorithm = DPsgd { peers, adapt_then_combine: true, ..DPsgd::default() }.into();
        assert_near(&train_quadratics(4, &algorithm, 0.1, 60), &averaged, 1e-15);
    }
}

#[test]
fn the_mean_follows_the_mean_gradient() {
    let setup = Setup { optimizer: Arc::new(Sgd { momentum: 0.9, ..Sgd::default() }), ..Setup::default() };
    let gradient = |rank: usize, step: usize, _: &[f64]| vec![((rank * 5 + step * 3) % 7) as f64];
    for adapt_then_combine in [false, true] {
        for interval in [1, 3] {
            let algorithm: Algorithm = DPsgd { interval, adapt_then_combine, ..DPsgd::default() }.into();
            for transport in transports() {
                let found = train((transport, 5), &algorithm, &setup, &[2.0], 30, gradient).unwrap();
                let mut x = 2.0;
                let mut u = 0.0;
                for step in 0..30 {
                    u = 0.9 * u + (0..5).map(|rank| gradient(rank, step, &[])[0]).sum::<f64>() / 5.0;
                    x -= 0.1 * u;
                }
                let found: Vec<f64> = found.into_iter().map(|x| x[0]).collect();
                assert!((mean(&found) - x).abs() < 1e-13, "{transport:?}: {found:?} around {x}");
            }
        }
    }
}

#[test]
fn the_bytes_are_those_of_its_header() {
    for (peers, interval, ranks, of_size) in [
        (Peers::from(Topology::Ring), 1, 5, 2.0),
        (Peers::from(Topology::Ring), 2, 2, 0.5),
        (Peers::from(Topology::Exponential), 4, 6, 3.0 / 4.0),
        (Peers::All, 2, 4, 0.75),
    ] {
        for adapt_then_combine in [false, true] {
            let algorithm: Algorithm =
                DPsgd { interval, adapt_then_combine, ..DPsgd::with(peers.clone()) }.into();
            assert_sends(ranks, 4, &algorithm, of_size);
        }
    }
}

#[test]
fn one_rank_trains_alone() {
    let algorithm: Algorithm = DPsgd::default().into();
    assert_near(&train_quadratics(1, &algorithm, 0.1, 400), &[0.0], 1e-15);
}

#[test]
fn an_interval_of_0_and_a_graph_of_other_ranks_are_refused() {
    let error = refusal(2, &DPsgd { interval: 0, ..DPsgd::default() }.into());
    assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains("is 0"), "{error}");
    let error = refusal(2, &DPsgd { peers: star().into(), ..DPsgd::default() }.into());
    assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains("for 5 ranks"), "{error}");
}

#[test]
fn ranks_with_different_graphs_are_told_before_the_first_step() {
    let all_have_tried = Barrier::new(2);
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        let hops = [Topology::Ring, Topology::Star];
        let algorithm = DPsgd { peers: hops[comm.rank()].into(), ..DPsgd::default() };
        let made = Trainer::new(&comm, Arc::new(algorithm), Setup::default(), &[vec![1.0f32]]);
        all_have_tried.wait();
        Ok(made.err().unwrap().to_string())
    });
    for error in errors.unwrap() {
        assert!(error.contains("rank 1") && error.contains("same model, algorithm"), "{error}");
    }
}
