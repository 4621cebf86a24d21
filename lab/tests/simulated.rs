//! Trainings on simulated ranks: the same bits as on real ranks, reproducible, in the cluster's time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::{AnyAlgorithm, Registry, registry};
use hexagram::logical::testing::{is_deep, spawn, spawn_hosts};
use hexagram::physical::sim::{Cluster, LinkSpec, Simulation};
use hexagram::{Communicator, Result, TransportKind};
use hexagram_lab::suite::Suite;
use hexagram_lab::task::Quadratics;
use hexagram_lab::tuned;
use hexagram_lab::{OnCluster, SimulatedTraining, Training, TrainingOutcome, train_on, train_on_cluster};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Algorithms whose numbers depend on the ranks' speeds, so that two runs on real ranks differ. An average takes
/// effect in the step in which it arrives, a pull includes the pushes received until then, and two ranks average
/// their replicas when either is ready.
const ASYNCHRONOUS: [&str; 6] = [
    "async-model-average",
    "compressed-async-model-average",
    "ssp",
    "compressed-ssp",
    "ad-psgd",
    "compressed-ad-psgd",
];

fn is_long() -> bool {
    is_deep()
}

fn is_asynchronous(algorithm: &AnyAlgorithm) -> bool {
    ASYNCHRONOUS.contains(&algorithm.name())
}

/// A training of a short task; in long tests of the digits, with all steps.
fn training(algorithm: &AnyAlgorithm) -> Training {
    let task = if is_long() { "digits" } else { "noisy-quadratics" };
    let lessons = Suite::whole(Vec::new()).unwrap().lessons;
    let lesson = lessons.into_iter().find(|lesson| lesson.task.name() == task).unwrap();
    Training {
        algorithm: algorithm.clone(),
        learning_rate: tuned(algorithm.name(), task).learning_rate.into(),
        steps: if is_long() { lesson.steps } else { 24 },
        records: 2,
        ..Training::of(lesson.task)
    }
}

fn link() -> LinkSpec {
    "1gbit,100us,jitter=50us".parse().unwrap()
}

/// A cluster with random delays of messages, drawn from a seed.
fn cluster(ranks: usize, hosts: usize, seed: u64) -> OnCluster<'static> {
    let cluster = Cluster::flat(ranks, hosts, link(), link()).unwrap();
    let simulation = Simulation { seed, shuffled: true, ..Simulation::new(cluster) };
    OnCluster { simulation, slowness: Vec::new(), watch: &|_, _| {} }
}

fn simulated(training: &Training, on: &OnCluster<'_>) -> SimulatedTraining {
    train_on_cluster(training, on).unwrap_or_else(|error| panic!("{}: {error}", training.algorithm))
}

/// Fails unless every loss and the final parameters of every rank are the same, bit for bit.
fn assert_same(simulated: &TrainingOutcome, real: &TrainingOutcome, context: &str) {
    let losses = |outcome: &TrainingOutcome| -> Vec<u64> {
        outcome.steps.iter().map(|step| step.loss.to_bits()).collect()
    };
    assert!(losses(simulated) == losses(real), "{context}: other losses");
    assert!(simulated.replicas == real.replicas, "{context}: other parameters");
    let states = simulated.curve.iter().zip(&real.curve);
    assert!(states.clone().count() == 3, "{context}");
    for (found, expected) in states {
        assert_eq!(found.evaluation, expected.evaluation, "{context}");
        assert_eq!(found.consensus.to_bits(), expected.consensus.to_bits(), "{context}");
    }
}

fn of_rank_0(outcomes: Result<Vec<Option<TrainingOutcome>>>, context: &str) -> TrainingOutcome {
    outcomes.unwrap_or_else(|error| panic!("{context}: {error}")).swap_remove(0).unwrap()
}

#[test]
fn only_asynchronous_algorithms_depend_on_time() {
    for algorithm in Registry::built_in().all() {
        assert_eq!(algorithm.trigram().synchronous, !is_asynchronous(algorithm), "{algorithm}");
    }
}

#[test]
fn simulated_ranks_make_the_steps_of_real_ones_to_the_last_bit() {
    let mut transports = vec![TransportKind::Thread];
    if is_long() {
        transports.extend([TransportKind::Shm, TransportKind::Tcp]);
    }
    for algorithm in Registry::built_in().all().iter().filter(|algorithm| !is_asynchronous(algorithm)) {
        for ranks in [4, 8] {
            let training = Training { ranks, ..training(algorithm) };
            let found = simulated(&training, &cluster(ranks, 1, 7)).outcome;
            for transport in &transports {
                let context = format!("{algorithm}, {ranks} ranks over {transport}");
                let real = spawn(*transport, ranks, |comm| train_on(&comm, &training));
                assert_same(&found, &of_rank_0(real, &context), &context);
            }
        }
    }
}

#[test]
fn simulated_hosts_make_the_steps_of_real_ones_to_the_last_bit() {
    let all = Registry::built_in();
    let some = ["gradient-allreduce", "bytegrad", "d-psgd", "local-sgd"];
    let chosen = |algorithm: &&AnyAlgorithm| {
        if is_long() { !is_asynchronous(algorithm) } else { some.contains(&algorithm.name()) }
    };
    for algorithm in all.all().iter().filter(chosen) {
        let context = format!("{algorithm} on 2 hosts");
        let training = Training { hierarchical: true, ..training(algorithm) };
        let found = simulated(&training, &cluster(4, 2, 7)).outcome;
        let real = spawn_hosts(&[0, 0, 1, 1], |comm: Communicator| train_on(&comm, &training));
        assert_same(&found, &of_rank_0(real, &context), &context);
    }
}

#[test]
fn every_algorithm_is_alike_in_every_run_of_a_seed() {
    for algorithm in Registry::built_in().all() {
        let training = Training { steps: 20, ..training(algorithm) };
        let run = |seed| simulated(&training, &cluster(5, 1, seed));
        let first = run(1);
        assert!(first == run(1), "{algorithm}: two runs differ");
        let other = run(2);
        assert_ne!(first.fingerprint, other.fingerprint, "{algorithm}: the seed changes nothing");
        if !is_asynchronous(algorithm) {
            assert_eq!(first.outcome.replicas, other.outcome.replicas, "{algorithm} depends on the order");
        }
    }
}

#[test]
fn a_slow_rank_keeps_those_waiting_that_wait_for_it() {
    let run = |name: &str, slowness: Vec<f64>| {
        let algorithm = registry::named(name).unwrap();
        let training = Training { compute: Duration::from_millis(10), ..training(&algorithm) };
        simulated(&training, &OnCluster { slowness, ..cluster(4, 1, 0) }).outcome
    };
    let slow = || vec![1.0, 1.0, 3.0, 1.0];
    let alike = run("gradient-allreduce", Vec::new());
    let delayed = run("gradient-allreduce", slow());
    assert_eq!(alike.replicas, delayed.replicas);
    let steps = alike.steps.len() as f64;
    assert!((10e-3 * steps..12e-3 * steps).contains(&alike.last().seconds), "{}", alike.last().seconds);
    assert!((30e-3 * steps..32e-3 * steps).contains(&delayed.last().seconds), "{}", delayed.last().seconds);
    // Rank 0 of asynchronous algorithms reports its own steps.
    let told = Mutex::new(Vec::new());
    let watch = |step: u64, seconds: f64| told.lock().unwrap().push((step, seconds));
    let algorithm = registry::named("ad-psgd").unwrap();
    let on = OnCluster { slowness: slow(), watch: &watch, ..cluster(4, 1, 0) };
    let outcome = simulated(&training(&algorithm), &on).outcome;
    let told = told.into_inner().unwrap();
    let middle = told[0];
    assert_eq!(middle.0, outcome.curve[1].step);
    assert!(middle.1 < 20e-3 * middle.0 as f64, "{middle:?}");
}

#[test]
fn what_a_rank_meets_is_the_error_of_the_training() {
    let algorithm = registry::named("d-psgd(graph=hypercube)").unwrap();
    let error = train_on_cluster(&training(&algorithm), &cluster(3, 1, 0)).unwrap_err().to_string();
    assert!(error.contains("3 ranks do not form a hypercube"), "{error}");
    let shares = Training::of(Arc::new(Quadratics::new(0).unwrap()));
    let error = train_on_cluster(&shares, &cluster(601, 1, 0)).unwrap_err().to_string();
    assert!(error.contains("601 parts"), "{error}");
}
