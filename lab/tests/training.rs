//! Trainings against known results.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::registry;
use hexagram::sampler::Partition;
use hexagram::{Parameter, Result};
use hexagram_lab::suite::{Lesson, Suite, run_all};
use hexagram_lab::task::{Digits, GradientReady, ModelEvaluation, ModelValues, Quadratics, Task, TextTask};
use hexagram_lab::{Training, TrainingOutcome, train};
use std::sync::Arc;

fn quadratics(algorithm: &str) -> Training {
    Training {
        algorithm: registry::named(algorithm).unwrap(),
        partition: Partition::Dirichlet { alpha: 0.1 },
        steps: 60,
        ..Training::of(Arc::new(Quadratics::new(0).unwrap()))
    }
}

fn trained(algorithm: &str) -> TrainingOutcome {
    train(&quadratics(algorithm)).unwrap()
}

/// Shares of 150 samples each, so that the mean of the ranks' gradients is that of all samples.
#[test]
fn synchronous_sgd_makes_the_steps_of_one_rank_with_all_data() {
    let outcome = trained("gradient-allreduce");
    let task = Quadratics::new(0).unwrap();
    let all: Vec<usize> = (0..task.labels().len()).collect();
    let mut values = task.initial(0);
    for step in 0..=60 {
        if let Some(point) = outcome.curve.iter().find(|point| point.step == step) {
            let expected = task.evaluate(&values);
            let found = point.evaluation;
            assert!((found.loss - expected.loss).abs() < 1e-5 * (1.0 + expected.loss), "{step}");
            assert!((found.distance.unwrap() - expected.distance.unwrap()).abs() < 1e-4, "{step}");
            assert_eq!(point.consensus, 0.0);
        }
        let mut moved = values.clone();
        let mut ready = |parameter: usize, gradient: &[f32]| {
            moved[parameter].iter_mut().zip(gradient).for_each(|(x, g)| *x -= 0.1 * g);
            Ok(())
        };
        task.gradient(&values, &all, &mut ready).unwrap();
        values = moved;
    }
}

#[test]
fn states_are_recorded_at_regular_steps() {
    let outcome = train(&Training { steps: 7, records: 3, ..quadratics("local-sgd") }).unwrap();
    let steps: Vec<u64> = outcome.curve.iter().map(|point| point.step).collect();
    assert_eq!(steps, [0, 3, 5, 7]);
    let refused =
        |steps, records| train(&Training { steps, records, ..quadratics("local-sgd") }).unwrap_err();
    assert!(refused(3, 0).to_string().contains("0 states"));
    assert!(refused(3, 4).to_string().contains("cannot record 4 states in 3 steps"));
}

/// More frequent records change nothing: neither the replicas nor the traffic.
#[test]
fn to_judge_disturbs_nothing() {
    for algorithm in ["d-psgd", "choco-sgd", "ssp", "async-model-average"] {
        let once = train(&Training { records: 1, ..quadratics(algorithm) }).unwrap();
        let often = train(&Training { records: 60, ..quadratics(algorithm) }).unwrap();
        assert_eq!(once.last(), often.last(), "{algorithm}");
    }
}

#[test]
fn every_run_is_like_any_other_even_of_asynchronous_algorithms() {
    for algorithm in ["ssp", "ad-psgd", "async-model-average"] {
        let first = trained(algorithm);
        assert!(!first.synchronous);
        for _ in 0..3 {
            assert_eq!(trained(algorithm), first, "{algorithm}");
        }
    }
}

#[test]
fn replicas_of_gossip_differ_and_their_mean_is_better_than_they_are() {
    let outcome = trained("d-psgd");
    assert!(outcome.last().consensus > 0.1 && outcome.own.loss > outcome.last().evaluation.loss);
    let sent = &outcome.last().bytes;
    assert!(sent.iter().all(|bytes| *bytes == sent[0] && *bytes > 60 * 2 * 480), "{sent:?}");
}

#[test]
fn digits_and_text_are_learned() {
    let tasks: [(Arc<dyn Task>, f64); 2] =
        [(Arc::new(Digits::new().unwrap()), 0.9), (Arc::new(TextTask::new()), 0.2)];
    for (task, accuracy) in tasks {
        let outcome =
            train(&Training { steps: 150, learning_rate: 0.5.into(), ..Training::of(task) }).unwrap();
        assert!(outcome.last().evaluation.accuracy > Some(accuracy), "{:?}", outcome.last());
    }
}

#[test]
fn a_failing_rank_is_an_error_and_no_wait() {
    let task = Arc::new(Quadratics::new(0).unwrap());
    let nothing =
        train(&Training { learning_rate: f64::NAN.into(), ..Training::of(task.clone()) }).unwrap_err();
    assert!(nothing.to_string().contains("learning rate"), "{nothing}");
    let divided = train(&Training { ranks: 601, ..Training::of(task) }).unwrap_err();
    assert!(divided.to_string().contains("601 parts"), "{divided}");
}

/// Where a task of a user panics.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Panic {
    InEveryBatch,
    InBatchesWith(usize),
    WhereItJudges,
}

#[derive(Debug)]
struct Panicking(Quadratics, Panic);

impl Panicking {
    fn new(panic: Panic) -> Arc<Self> {
        Arc::new(Panicking(Quadratics::new(0).unwrap(), panic))
    }
}

impl Task for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.0.parameters()
    }

    fn initial(&self, seed: u64) -> ModelValues {
        self.0.initial(seed)
    }

    fn labels(&self) -> &[usize] {
        self.0.labels()
    }

    fn batch(&self) -> Option<usize> {
        None
    }

    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        let panics = match self.1 {
            Panic::InEveryBatch => true,
            Panic::InBatchesWith(sample) => samples.contains(&sample),
            Panic::WhereItJudges => false,
        };
        assert!(!panics, "on purpose");
        self.0.gradient(values, samples, ready)
    }

    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        assert!(self.1 != Panic::WhereItJudges, "on purpose");
        self.0.evaluate(values)
    }
}

#[test]
fn a_task_that_panics_is_an_error_of_the_training() {
    for (ranks, panic) in [(1, Panic::InEveryBatch), (3, Panic::InEveryBatch), (3, Panic::InBatchesWith(7))] {
        let training = Training { ranks, ..Training::of(Panicking::new(panic)) };
        let error = train(&training).unwrap_err().to_string();
        assert!(error.contains("the training panicked: on purpose"), "{ranks} ranks: {error}");
    }
}

#[test]
fn no_training_of_a_suite_is_left_out_because_it_panics() {
    for panic in [Panic::InEveryBatch, Panic::WhereItJudges] {
        let suite = Suite {
            algorithms: vec![registry::named("gradient-allreduce").unwrap()],
            lessons: vec![Lesson { task: Panicking::new(panic), steps: 20 }],
            partitions: vec![Partition::Equal],
            ranks: vec![2],
            seeds: 1,
            others: Vec::new(),
        };
        let error = run_all(suite.cells().unwrap(), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("the training panicked: on purpose"), "{error}");
    }
}
