//! Warm-ups begin with the algorithm, also after a switch to it, and continue after checkpoints.

use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::checkpoint::{Checkpoints, Record};
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::testing::{Scratch, Setup, Trainer};
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, EngineOptions, GradientAllReduce};

const RANKS: usize = 2;
/// Steps of gradient-allreduce before the switch, a multiple of the period of post-local-sgd.
const BEFORE: usize = 8;
/// Steps of the algorithm: beyond every warm-up except that of async-model-average, whose averages depend on timing.
const STEPS: usize = 7;
/// γ of the algorithm.
const RATE: f64 = 0.1;

/// Returns the algorithms with a warm-up, shortened.
fn algorithms() -> Vec<AnyAlgorithm> {
    vec![
        Dgc { fraction: 0.02, warm_up: 2, ..Dgc::default() }.into(),
        CompressedAllReduce::LowRank { rank: 1, saving: 1.0, start: 3 }.into(),
        LocalSgd { period: 4, ..LocalSgd::post(3) }.into(),
        QAdam { warmup: 3, ..QAdam::default() }.into(),
        QAdam { warmup: 3, ..QAdam::eight_bits() }.into(),
        ZeroOneAdam { freeze: 4, local_doubling: 2, ..ZeroOneAdam::default() }.into(),
        AsyncModelAverage { warm_up: 1000, ..AsyncModelAverage::default() }.into(),
    ]
}

/// Returns a training of a matrix and a vector by an engine, the same in every call.
fn trainer(comm: &Communicator, algorithm: AnyAlgorithm) -> Result<Trainer<f32>> {
    let initial = [vec![1.0f32; 60], vec![-1.0; 20]];
    let shapes = [vec![6, 10], vec![20]];
    let engine = EngineOptions { bucket_bytes: 200, first_bucket_bytes: 200, ..Setup::default().engine };
    let setup = Setup { engine, ..Setup::default() };
    Trainer::with_shapes(comm, algorithm, setup, &initial, &shapes)
}

/// Makes steps of an algorithm, with gradients that depend on the rank and on the step count of the algorithm.
fn train(comm: &Communicator, trainer: &mut Trainer<f32>, steps: std::ops::Range<usize>) -> Result<()> {
    for step in steps {
        let pull = |at: usize| ((at * 13 + comm.rank() * 29 + step * 7) % 23) as f32 * 0.1 - 1.0;
        trainer.step(|_, x| x.iter().enumerate().map(|(at, x)| 0.3 * x + pull(at)).collect())?;
    }
    Ok(())
}

/// Makes steps with a learning rate of 0, which change nothing, and switches.
fn switched(comm: &Communicator, algorithm: &AnyAlgorithm) -> Result<Trainer<f32>> {
    let mut trainer = trainer(comm, GradientAllReduce.into())?;
    trainer.engine().set_learning_rate(0.0);
    train(comm, &mut trainer, 0..BEFORE)?;
    trainer.engine().switch(algorithm.clone())?;
    trainer.engine().set_learning_rate(RATE);
    Ok(trainer)
}

#[test]
fn an_algorithm_begins_after_a_switch_as_it_begins_a_training() {
    for algorithm in algorithms() {
        let same = spawn(TransportKind::Thread, RANKS, |comm| {
            let mut alone = trainer(&comm, algorithm.clone())?;
            alone.engine().set_learning_rate(RATE);
            train(&comm, &mut alone, 0..STEPS)?;
            let expected = alone.parameters()?;
            alone.engine().settle()?;
            let mut after = switched(&comm, &algorithm)?;
            train(&comm, &mut after, 0..STEPS)?;
            let found = after.parameters()?;
            after.engine().settle()?;
            Ok(found == expected)
        });
        assert!(same.unwrap().iter().all(|same| *same), "{algorithm:?}");
    }
}

#[test]
fn a_warm_up_goes_on_from_a_checkpoint_that_was_saved_after_a_switch() {
    for algorithm in algorithms() {
        let scratch = Scratch::new();
        let same = spawn(TransportKind::Thread, RANKS, |comm| {
            let mut first = switched(&comm, &algorithm)?;
            train(&comm, &mut first, 0..2)?;
            let checkpoints = Checkpoints::new(scratch.path());
            checkpoints.save(first.engine(), Record::default())?;
            train(&comm, &mut first, 2..STEPS)?;
            let expected = first.parameters()?;
            first.engine().settle()?;
            drop(first);
            let mut second = trainer(&comm, algorithm.clone())?;
            checkpoints.load(second.engine())?;
            train(&comm, &mut second, 2..STEPS)?;
            let found = second.parameters()?;
            second.engine().settle()?;
            Ok(found == expected)
        });
        assert!(same.unwrap().iter().all(|same| *same), "{algorithm:?}");
    }
}
