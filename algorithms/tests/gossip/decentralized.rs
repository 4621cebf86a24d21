//! Bagua's decentralized: against a reference implementation in this file, bit-identical after averages of partners,
//! and over hosts.

use super::*;
use hexagram_algorithms::EngineOptions;
use hexagram_algorithms::decentralized::Peers;
use hexagram_algorithms::logical::testing::{spawn_hosts, transports};

fn gradient(rank: usize, step: usize, x: &[f64]) -> Vec<f64> {
    let noise = ((rank * 7 + step * 5) % 11) as f64 / 11.0;
    problem().gradient(rank, x).iter().map(|g| g + noise).collect()
}

/// The partner of a rank in Bagua's pairs.
fn shift_one(rank: usize, round: usize, ranks: usize) -> usize {
    let half = ranks / 2;
    if rank < half { (round + rank) % half + half } else { (rank - half + half - round % half) % half }
}

/// Bagua's rule, step by step: average with the ranks that `peers(rank, round)` lists, then step with the gradient at
/// the old x.
fn reference(
    ranks: usize,
    interval: usize,
    steps: usize,
    peers: impl Fn(usize, usize) -> Vec<usize>,
) -> Vec<f64> {
    let mut x = vec![0.7; ranks];
    for step in 0..steps {
        let old = x.clone();
        for rank in 0..ranks {
            if step.is_multiple_of(interval) {
                let taken = peers(rank, step / interval);
                x[rank] = taken.iter().map(|peer| old[*peer]).sum::<f64>() / taken.len() as f64;
            }
            x[rank] -= 0.1 * gradient(rank, step, &[old[rank]])[0];
        }
    }
    x
}

fn train_noisy(ranks: usize, algorithm: Decentralized, steps: usize) -> Vec<f64> {
    let algorithm: Algorithm = algorithm.into();
    let place = (TransportKind::Thread, ranks);
    let found = train(place, &algorithm, &Setup::default(), &[0.7], steps, gradient).unwrap();
    found.into_iter().map(|x| x[0]).collect()
}

#[test]
fn it_is_what_bagua_computes() {
    for interval in [1, 2] {
        let every = interval as u64;
        for ranks in [2, 4, 6] {
            let pairs = |rank: usize, round: usize| vec![rank, shift_one(rank, round, ranks)];
            let found = train_noisy(ranks, Decentralized::new(Topology::ShiftOne, every), 13);
            assert_near(&found, &reference(ranks, interval, 13, pairs), 1e-14);
        }
        let found = train_noisy(3, Decentralized::new(Peers::All, every), 13);
        assert_near(&found, &reference(3, interval, 13, |_, _| vec![0, 1, 2]), 1e-14);
    }
}

#[test]
fn its_default_takes_from_one_rank_after_another() {
    for ranks in [1, 2, 3, 8] {
        let hops = [1, 2, 4].into_iter().filter(|hop| *hop < ranks).collect::<Vec<_>>();
        let peers = |rank: usize, round: usize| match hops.len() {
            0 => vec![rank],
            rounds => vec![rank, (rank + ranks - hops[round % rounds]) % ranks],
        };
        let found = train_noisy(ranks, Decentralized::default(), 17);
        assert_near(&found, &reference(ranks, 1, 17, peers), 1e-14);
    }
}

/// The replicas after some steps in which ranks drift apart, and the same number of rounds without gradients.
fn drift(
    ranks: usize,
    transport: TransportKind,
    peers: Topology,
    steps: usize,
    rounds: usize,
) -> Vec<Vec<f32>> {
    let gradient = |rank: usize, step: usize, x: &[f32]| {
        let from = |at: usize| ((rank * 31 + step * 17 + at * 7) % 23) as f32 / 7.0;
        (0..x.len()).map(|at| if step < steps { from(at) } else { 0.0 }).collect()
    };
    let algorithm: Algorithm = Decentralized::new(peers, 1).into();
    let setup = Setup::default();
    let start = [0.0; 999];
    train((transport, ranks), &algorithm, &setup, &start, steps + rounds, gradient).unwrap()
}

#[test]
fn partners_have_equal_bits() {
    // The last round is number 6, between ranks that differ in bit 0, or, with 6 ranks, between those 3 apart.
    for (peers, ranks, partner) in [(Topology::XorPairs, 8, 1), (Topology::ShiftOne, 6, 3)] {
        for transport in transports() {
            let x = drift(ranks, transport, peers, 6, 1);
            let equal = |one: usize, other: usize| {
                x[one].iter().zip(&x[other]).all(|(a, b)| a.to_bits() == b.to_bits())
            };
            assert!(equal(0, partner), "{peers:?} over {transport:?}");
            assert!(!equal(0, 2), "only partners");
        }
    }
}

#[test]
fn all_agree_after_as_many_rounds_as_the_number_of_ranks_has_bits() {
    let x = drift(8, TransportKind::Thread, Topology::OnePeerExponential, 5, 3);
    for replica in &x {
        for (one, other) in replica.iter().zip(&x[0]) {
            assert!((one - other).abs() < 1e-6, "{one} and {other}");
        }
    }
}

#[test]
fn hosts_take_the_place_of_ranks() {
    let engine = EngineOptions { hierarchical: true, ..Setup::default().engine };
    let setup = Setup { engine, ..Setup::default() };
    let found = spawn_hosts(&[0, 0, 1, 1], |comm| {
        let algorithm = Arc::new(Decentralized::new(Topology::XorPairs, 2));
        let mut trainer = Trainer::new(&comm, algorithm, setup.clone(), &[vec![0.7f64]])?;
        for step in 0..5 {
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        Ok(trainer.parameters()?[0][0])
    });
    assert_near(&found.unwrap(), &reference(4, 2, 5, |_, _| vec![0, 1, 2, 3]), 1e-14);
}

#[test]
fn the_bytes_are_those_of_its_header() {
    for (algorithm, ranks, of_size) in [
        (Decentralized::default(), 8, 1.0),
        (Decentralized::default(), 3, 1.0),
        (Decentralized::new(Topology::ShiftOne, 2), 4, 0.5),
        (Decentralized::new(Topology::XorPairs, 1), 4, 1.0),
        (Decentralized::new(Peers::All, 4), 4, 0.375),
    ] {
        assert_sends(ranks, 4, &algorithm.into(), of_size);
    }
}
