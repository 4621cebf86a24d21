//! Hierarchical communication over hosts with different numbers of ranks.

use super::*;
use hexagram_logical::testing::spawn_hosts;

fn hierarchical(order: Order) -> EngineOptions {
    EngineOptions { hierarchical: true, order, ..options(40, 80) }
}

const HOSTS: [&[usize]; 4] = [&[0, 0, 0, 1], &[0, 1, 0, 2, 1, 0], &[0, 1, 2], &[0, 0]];

#[test]
fn gradients_become_the_exact_mean_of_all_ranks() {
    for (hosts, order) in
        HOSTS.into_iter().flat_map(|hosts| [(hosts, Order::Listed), (hosts, Order::Observed)])
    {
        let ranks = hosts.len();
        let found = spawn_hosts(hosts, |comm| {
            let algorithm = Arc::new(GradientAllReduce);
            let mut engine =
                trained_by(&comm, parameters(4, 10), algorithm, hierarchical(order), (1.0, 0.0))?;
            // Multiples of the number of ranks: sums and means are exact.
            for step in 0..3 {
                let of = |p: usize| vec![(ranks * (comm.rank() * comm.rank() + p + step)) as f32; 10];
                pass(&mut engine, Mode::Synchronize, &(0..4).map(of).collect::<Vec<_>>())?;
                let squares: usize = (0..ranks).map(|rank| rank * rank).sum();
                for p in 0..4 {
                    assert_eq!(gradient(&engine, p), [(squares + ranks * (p + step)) as f32; 10]);
                }
                engine.step()?;
            }
            Ok((0..4).map(|p| value(&engine, p)).collect::<Vec<_>>())
        });
        let found = found.unwrap();
        assert!(found.iter().all(|other| *other == found[0]), "{hosts:?}");
    }
}

#[test]
fn local_sgd_means_the_parameters_of_all_ranks() {
    for hosts in HOSTS {
        let ranks = hosts.len();
        let found = spawn_hosts(hosts, |comm| {
            let algorithm = Arc::new(LocalSgd { period: 2, ..LocalSgd::default() });
            let options = hierarchical(Order::Observed);
            let mut engine = trained_by(&comm, parameters(3, 10), algorithm, options, (1.0, 0.0))?;
            for _ in 0..2 {
                pass(&mut engine, Mode::Synchronize, &vec![vec![(ranks * comm.rank()) as f32; 10]; 3])?;
                engine.step()?;
            }
            Ok(value(&engine, 2))
        });
        let sum: usize = (0..ranks).sum();
        assert_eq!(found.unwrap(), vec![vec![-2.0 * sum as f32; 10]; ranks], "{hosts:?}");
    }
}

#[test]
fn replicas_are_identical_where_sums_are_rounded() {
    let found = spawn_hosts(&[0, 0, 0, 1, 1], |comm| {
        let algorithm = Arc::new(GradientAllReduce);
        let options = hierarchical(Order::Observed);
        let mut engine = trained_by(&comm, parameters(4, 100), algorithm, options, (0.1, 1.0))?;
        for step in 0..4 {
            let element =
                |p: usize, at: usize| 1.0 / (1 + (at * 7 + p * 3 + comm.rank() * 5 + step) % 23) as f32;
            let of = |p: usize| (0..100).map(|at| element(p, at)).collect();
            pass(&mut engine, Mode::Synchronize, &(0..4).map(of).collect::<Vec<_>>())?;
            engine.step()?;
        }
        Ok((0..4).map(|p| value(&engine, p)).collect::<Vec<_>>())
    });
    let found = found.unwrap();
    assert!(found.iter().all(|other| *other == found[0]));
}
