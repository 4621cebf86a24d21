//! How fast ranks agree over each topology: the theory of the matrices, and the primitive's results with 16 ranks.

use hexagram_logical::decentralized::{Edge, Mixing, Schedule, Topology};
use hexagram_logical::testing::spawn;
use hexagram_logical::{Error, TransportKind};
use std::collections::BTreeSet;
use std::f64::consts::PI;

const ALL: [Topology; 14] = [
    Topology::Ring,
    Topology::Torus(None),
    Topology::Exponential,
    Topology::OnePeerExponential,
    Topology::XorPairs,
    Topology::Hypercube,
    Topology::Base { peers: 1 },
    Topology::Base { peers: 3 },
    Topology::EquiStatic { seed: 0, hops: None },
    Topology::EquiOnePeer { seed: 0 },
    Topology::Star,
    Topology::Complete,
    Topology::RandomPairs { seed: 7, pairs: None },
    Topology::ShiftOne,
];

fn apply(mixing: &Mixing, x: &[f64]) -> Vec<f64> {
    let row = |rank| mixing.row(rank).iter().map(|(from, weight)| weight * x[*from]).sum();
    (0..mixing.size()).map(row).collect()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// x without its mean.
fn apart(x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter().map(|x| x - mean).collect()
}

/// The product of `steps` matrices, applied to x.
fn rounds(topology: &dyn Schedule, steps: u64, x: &[f64]) -> Vec<f64> {
    (0..steps).fold(x.to_vec(), |x, step| apply(&topology.mixing(x.len(), step).unwrap(), &x))
}

/// The largest factor by which `steps` steps shrink a distance from the mean: by the power method on AᵀA.
fn contraction(topology: &dyn Schedule, size: usize, steps: u64) -> f64 {
    let transposed = |mixing: &Mixing, x: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; size];
        for (to, x) in x.iter().enumerate() {
            mixing.row(to).iter().for_each(|(from, weight)| out[*from] += weight * x);
        }
        out
    };
    let turns: Vec<Mixing> = (0..steps).map(|step| topology.mixing(size, step).unwrap()).collect();
    let mut x: Vec<f64> =
        apart(&(0..size).map(|i| ((i * i * 7 + i * 3 + 1) % 11) as f64).collect::<Vec<_>>());
    let mut factor = 0.0;
    for _ in 0..1000 {
        let before = norm(&x);
        if before < 1e-200 {
            return 0.0;
        }
        x.iter_mut().for_each(|x| *x /= before);
        let there = apart(&turns.iter().fold(x, |x: Vec<f64>, mixing| apply(mixing, &x)));
        factor = norm(&there);
        x = apart(&turns.iter().rev().fold(there, |x: Vec<f64>, mixing| transposed(mixing, &x)));
    }
    factor
}

fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not {want}");
}

#[test]
fn every_topology_is_doubly_stochastic_and_sends_what_is_received() {
    for topology in ALL {
        for size in [1usize, 2, 3, 4, 5, 6, 8, 12, 16, 33] {
            let lacking = match topology {
                Topology::ShiftOne => size % 2 == 1,
                Topology::Hypercube => !size.is_power_of_two(),
                _ => false,
            };
            if lacking {
                assert!(matches!(topology.mixing(size, 0), Err(Error::Usage { .. })));
                continue;
            }
            for step in [0, 1, 2, 3, 1000, u64::MAX] {
                let mixing = topology.mixing(size, step).unwrap();
                assert!(mixing.is_doubly_stochastic(), "{topology:?} × {size} at {step}");
                for to in 0..size {
                    assert!(mixing.row(to).is_sorted_by_key(|(from, _)| *from), "the order of sums");
                    for from in (0..size).filter(|from| *from != to) {
                        let received = mixing.sources(to).iter().any(|(source, _)| *source == from);
                        assert_eq!(received, mixing.destinations(from).contains(&to));
                        assert_eq!(received, mixing.weight(to, from) != 0.0);
                    }
                }
                assert_eq!(Mixing::of_matrix(size, &mixing.dense()).unwrap(), mixing);
                assert_eq!(topology.mixing(size, step).unwrap(), mixing, "every rank gets the same");
            }
        }
    }
}

#[test]
fn rings_and_exponential_graphs_contract_as_theory_says() {
    let table = [(8, 0.8047378541, 0.5), (16, 0.9492530217, 0.6), (32, 0.9871901869, 2.0 / 3.0)];
    for (size, ring, exponential) in table.into_iter().chain([(64, 0.9967898178, 5.0 / 7.0)]) {
        close(ring, (1.0 + 2.0 * (2.0 * PI / f64::from(size)).cos()) / 3.0, 1e-10);
        // Exactly so on the eigenvector.
        let slowest: Vec<f64> =
            (0..size).map(|i| (2.0 * PI * f64::from(i) / f64::from(size)).cos()).collect();
        let once = rounds(&Topology::Ring, 1, &slowest);
        slowest.iter().zip(&once).for_each(|(x, y)| close(*y, ring * x, 1e-10));
        close(contraction(&Topology::Exponential, size as usize, 1), exponential, 1e-9);
    }
    let mesh = Mixing::hastings(16, |rank| {
        let row = rank / 4;
        let column = rank % 4;
        let near =
            (0..16).filter(|other| (other / 4usize).abs_diff(row) + (other % 4usize).abs_diff(column) == 1);
        near.collect()
    });
    close(contraction(&mesh.unwrap(), 16, 1), 0.86864062, 1e-8);
    close(contraction(&Topology::Torus(None), 16, 1), 0.6, 1e-9);
    close(contraction(&Topology::Torus(Some(4)), 16, 1), 0.6, 1e-9);
    close(contraction(&Topology::Star, 16, 1), 0.9375, 1e-9);
    close(contraction(&Topology::Hypercube, 16, 1), 0.6, 1e-9);
    close(contraction(&Topology::Hypercube, 64, 1), 5.0 / 7.0, 1e-9);
    close(contraction(&Topology::Complete, 16, 1), 0.0, 1e-9);
}

#[test]
fn one_peer_at_a_time_is_exact_after_log2_n_steps() {
    for size in [2, 4, 8, 16, 64] {
        let x: Vec<f64> = (0..size).map(|i| f64::from(i * i)).collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        for topology in [Topology::OnePeerExponential, Topology::XorPairs] {
            // From any step on.
            for from in [0, 1, 5] {
                let steps = u64::from(x.len().ilog2());
                let schedule: Vec<Mixing> =
                    (from..from + steps).map(|step| topology.mixing(x.len(), step).unwrap()).collect();
                assert_eq!(rounds(&schedule, steps, &x), vec![mean; x.len()], "{topology:?} × {size}");
            }
        }
    }
    close(contraction(&Topology::OnePeerExponential, 12, 4), 0.2091, 5e-5);
}

#[test]
fn shift_one_is_barely_better_than_a_ring() {
    close(contraction(&Topology::ShiftOne, 4, 2), 0.0, 1e-9);
    for (size, product) in [(8, 0.3536), (16, 0.5745), (32, 0.7475)] {
        close(contraction(&Topology::ShiftOne, size, size as u64 / 2), product, 5e-5);
    }
}

#[test]
fn random_pairs_shrink_the_distance_as_expected() {
    const SIZE: usize = 8;
    let x = apart(&(0..SIZE).map(|i| (i * i) as f64).collect::<Vec<_>>());
    let mean_square = |pairs, of: u64| {
        let shrunk = |seed| {
            let topology = Topology::RandomPairs { seed, pairs };
            norm(&apply(&topology.mixing(SIZE, seed * 3).unwrap(), &x)).powi(2)
        };
        (0..of).map(shrunk).sum::<f64>() / of as f64 / norm(&x).powi(2)
    };
    let n = SIZE as f64;
    close(mean_square(Some(1), 20_000), 1.0 - 1.0 / (n - 1.0), 0.004);
    close(mean_square(None, 20_000), (n - 2.0) / (2.0 * (n - 1.0)), 0.004);
    // A different one at every step, and every rank has a partner.
    let topology = Topology::RandomPairs { seed: 1, pairs: None };
    let first = topology.mixing(SIZE, 0).unwrap();
    assert!((1..20).any(|step| topology.mixing(SIZE, step).unwrap() != first));
    assert!((0..SIZE).all(|rank| first.sources(rank).len() == 1));
}

#[test]
fn equitopo_contracts_as_expected_whatever_the_number_of_ranks() {
    close(contraction(&Topology::EquiStatic { seed: 0, hops: None }, 16, 1), 0.6203, 5e-5);
    for size in [8, 16, 100] {
        let x = apart(&(0..size).map(|i| (i * i % 23) as f64).collect::<Vec<_>>());
        let shrunk = |step| {
            let mixing = Topology::EquiOnePeer { seed: 5 }.mixing(size, step).unwrap();
            norm(&apply(&mixing, &x)).powi(2)
        };
        let mean_square = (0..4000).map(shrunk).sum::<f64>() / 4000.0 / norm(&x).powi(2);
        close(mean_square, (size as f64 - 1.0) / (2.0 * size as f64), 0.01);
        let many = contraction(&Topology::EquiStatic { seed: 3, hops: Some(20) }, size, 1);
        assert!(many < 0.75, "{many} with {size} ranks");
    }
}

#[test]
fn static_graphs_are_told_from_those_that_change() {
    for topology in ALL {
        let Ok(found) = topology.is_static(8) else { panic!("{topology:?}") };
        let first = topology.mixing(8, 0).unwrap();
        assert_eq!(found, (0..40).all(|step| topology.mixing(8, step).unwrap() == first), "{topology:?}");
    }
    assert!(Topology::OnePeerExponential.is_static(2).unwrap(), "two ranks have one partner each");
    let ring = Topology::Ring.mixing(4, 0).unwrap();
    let torus = Topology::Torus(Some(1)).mixing(4, 0).unwrap();
    assert!(vec![ring.clone(), torus].is_static(4).unwrap(), "a torus of one row is a ring");
    assert!(!vec![ring.clone(), Mixing::of_pairs(4, &[]).unwrap()].is_static(4).unwrap());
    assert!(std::sync::Arc::new(ring).is_static(4).unwrap());
}

/// The distance from the mean after each of some numbers of rounds, of the primitive on threads, from x = rank.
fn primitive(topology: Topology, ranks: usize, after: &[u64]) -> Vec<f64> {
    let columns = spawn(TransportKind::Thread, ranks, |comm| {
        let mut x = [comm.rank() as f64];
        let mut seen = Vec::new();
        for step in 0..=after[after.len() - 1] {
            if after.contains(&step) {
                seen.push(x[0]);
            }
            comm.blocking().gossip(&mut x, &topology, step)?;
        }
        Ok(seen)
    });
    let columns = columns.unwrap();
    let at = |place: usize| columns.iter().map(|column| column[place]).collect::<Vec<_>>();
    (0..after.len()).map(|place| norm(&apart(&at(place)))).collect()
}

#[test]
fn sixteen_ranks_agree_as_fast_as_their_matrices_do() {
    let error = primitive(Topology::Ring, 16, &[0, 1, 10, 100]);
    for (got, want) in error[1..].iter().zip([0.834704753876, 0.46930652875, 0.00430297314823]) {
        close(got / error[0], want, 1e-11);
    }
    let error = primitive(Topology::Exponential, 16, &[0, 1, 10]);
    for (got, want) in error[1..].iter().zip([0.481663783152, 0.00155405868701]) {
        close(got / error[0], want, 1e-11);
    }
    for topology in [Topology::OnePeerExponential, Topology::XorPairs] {
        assert_eq!(primitive(topology, 16, &[4, 8]), [0.0; 2], "{topology:?}");
    }
}

#[test]
fn weights_of_both_sides_are_multiplied() {
    let edge = |from, to, source, destination| Edge { from, to, source, destination };
    let edges = [edge(0, 1, 0.5, 0.25), edge(1, 0, 1.0, 0.5), edge(2, 0, 0.0, 1.0), edge(2, 1, 2.0, 0.25)];
    let mixing = Mixing::of_edges(vec![0.5, 0.375, 1.0], &edges).unwrap();
    assert_eq!(mixing.dense(), [0.5, 0.5, 0.0, 0.125, 0.375, 0.5, 0.0, 0.0, 1.0]);
    assert_eq!(mixing.destinations(2), [1], "an edge without weight carries nothing");
    assert!(mixing.is_row_stochastic() && !mixing.is_column_stochastic() && !mixing.is_symmetric());
}

#[test]
fn graphs_that_are_none_are_refused() {
    let refused = |mixing: hexagram_logical::Result<Mixing>, about: &str| {
        let error = mixing.unwrap_err();
        assert!(matches!(error, Error::Usage { .. }) && error.to_string().contains(about), "{error}");
    };
    let edge = |from, to| Edge { from, to, source: 0.5, destination: 1.0 };
    refused(Mixing::of_edges(vec![1.0; 2], &[edge(0, 2)]), "an edge from rank 0 to rank 2 is invalid");
    refused(Mixing::of_edges(vec![1.0; 2], &[edge(1, 1)]), "an edge from rank 1 to rank 1 is invalid");
    refused(Mixing::of_edges(vec![1.0; 2], &[edge(0, 1), edge(0, 1)]), "two edges");
    refused(Mixing::of_matrix(2, &[1.0; 3]), "do not make a matrix for 2 ranks");
    refused(Mixing::of_matrix(2, &[1.0, f64::NAN, 0.0, 1.0]), "not finite");
    refused(Mixing::of_pairs(2, &[(0, 5)]), "an edge");
    refused(Mixing::pull(3, |_| BTreeSet::from([9])), "an edge");
    refused(Topology::Torus(Some(3)).mixing(8, 0), "do not form a torus of 3 rows");
    refused(
        Topology::Torus(Some(0)).mixing(8, 0),
        "rows of torus is 0; choose auto, or a whole number, 1 or more",
    );
    refused(Topology::Hypercube.mixing(6, 0), "do not form a hypercube");
    refused(Topology::Base { peers: 0 }.mixing(6, 0), "peers of base is 0; choose a whole number, 1 or more");
    refused(
        Topology::EquiStatic { seed: 0, hops: Some(0) }.mixing(6, 0),
        "hops of equi-static is 0; choose auto, or a whole number, 1 or more",
    );
    refused(Vec::<Mixing>::new().mixing(2, 0), "no mixing matrix");
    refused(Mixing::of_pairs(4, &[]).unwrap().mixing(3, 0), "used among 3");
}
