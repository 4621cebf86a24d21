//! Hosts with different numbers of ranks: every algorithm that gossips reaches the optimum of the mean over all ranks.

use super::*;
use hexagram_algorithms::EngineOptions;
use hexagram_algorithms::logical::decentralized::Mixing;
use hexagram_algorithms::logical::testing::spawn_hosts;

/// Three hosts, of 3, 2 and 1 ranks.
const HOSTS: [usize; 6] = [0, 0, 0, 1, 1, 2];

/// At a constant rate push-sum ends near the optimum if weights differ, at a distance proportional to the rate.
const PUSHED: f32 = 0.1;

/// The mean of the replicas after training with (x − r)² / 2 on rank r; the mean over all ranks has its optimum at 2.5.
fn trained(algorithm: &Algorithm) -> Vec<f32> {
    let engine = EngineOptions { hierarchical: true, ..Setup::default().engine };
    let setup = Setup { engine, learning_rate: 0.2, ..Setup::default() };
    let found = spawn_hosts(&HOSTS, |comm| {
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup.clone(), &[vec![0.7f32; 40]])?;
        for _ in 0..60 {
            trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
        }
        trainer.engine().average()?;
        Ok(trainer.parameters()?[0][7])
    });
    found.unwrap()
}

fn assert_optimal(algorithm: &Algorithm, tolerance: f32) {
    let found = trained(algorithm);
    assert!(found.iter().all(|x| (x - 2.5).abs() < tolerance), "{algorithm:?}: {found:?}");
}

#[test]
fn every_algorithm_comes_to_the_optimum_of_all_ranks() {
    for algorithm in all() {
        let tolerance = match algorithm.name() {
            "sgp" => PUSHED,
            // Its momentum still oscillates.
            "qg-dsgdm" => 0.02,
            _ => 2e-3,
        };
        assert_optimal(&algorithm, tolerance);
    }
}

#[test]
fn whatever_the_graph() {
    for graph in [Topology::Star, Topology::RandomPairs { seed: 3, pairs: None }] {
        assert_optimal(&DPsgd { peers: graph.into(), ..DPsgd::default() }.into(), 2e-3);
        let schedule = Arc::new(graph);
        let squeeze = DeepSqueeze { schedule, ..DeepSqueeze::default() };
        assert_optimal(&squeeze.into(), 5e-3);
    }
    let uneven = [vec![1, 2], vec![0], vec![0]];
    let directed = Mixing::push(3, |host| uneven[host].iter().copied().collect()).unwrap();
    assert_optimal(&Sgp { schedule: Arc::new(directed) }.into(), PUSHED);
}
