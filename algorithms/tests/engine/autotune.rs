//! Autotune finds the best settings for a known cost, without an effect on parameters or state.

use super::warmed_up::sampled;
use hexagram_algorithms::engine::autotune::{Autotune, Cost, Tuning};
use hexagram_algorithms::logical::testing::{spawn, spawn_hosts};
use hexagram_algorithms::logical::{Buffer, Communicator, ReduceOp, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, fitting};
use hexagram_algorithms::{
    About, Adam, Algorithm, AnyAlgorithm, Bucket, Context, EngineOptions, Fields, GradientAllReduce,
    Optimizer, Order, Sgd, registry,
};
use std::sync::Arc;
use std::time::Duration;

/// 32 tensors of 1 KiB: large enough to be cut in many ways.
const TENSORS: usize = 32;
const KIB: usize = 1 << 10;
/// The warm-up and all trials, and some more steps.
const STEPS: usize = 36;

/// Smallest for buckets of 20 KiB, two streams, and hierarchy.
fn cost(tuning: Tuning) -> Duration {
    let far = (tuning.bucket_bytes as f64 / (20 * KIB) as f64).ln().abs();
    let streams = (tuning.streams.min(9) as f64 - 2.0).abs();
    let hierarchy = if tuning.hierarchical { 0.0 } else { 1.0 };
    Duration::from_secs_f64(1.0 + far + 0.1 * streams + 0.1 * hierarchy)
}

fn autotune() -> Autotune {
    Autotune {
        warm_up: 3,
        steps: 2,
        bucket_bytes: [1, 5, 10, 20, 40, 80].map(|size| size * KIB).to_vec(),
        cost: Some(Cost(Arc::new(cost))),
        ..Autotune::default()
    }
}

fn setup(optimizer: Arc<dyn Optimizer>, order: Order, autotune: Option<Autotune>) -> Setup {
    let first_bucket_bytes = 3 * KIB;
    let bucket_bytes = 7 * KIB;
    let engine =
        EngineOptions { order, first_bucket_bytes, bucket_bytes, autotune, ..EngineOptions::default() };
    Setup { learning_rate: 0.25, optimizer, engine }
}

fn trainer(comm: &Communicator, algorithm: impl Into<AnyAlgorithm>, setup: Setup) -> Result<Trainer<f32>> {
    let initial: Vec<Vec<f32>> = (0..TENSORS).map(|index| vec![index as f32; 256]).collect();
    Trainer::new(comm, algorithm, setup, &initial)
}

/// Integer gradients, whose sums over four ranks are exact in any order.
fn train(comm: &Communicator, trainer: &mut Trainer<f32>, steps: usize) -> Result<()> {
    for step in 0..steps {
        let gradient =
            |index: usize, at: usize| ((at + 3 * index + 5 * step + 7 * comm.rank()) % 16) as f32 - 8.0;
        trainer.step(|index, x| (0..x.len()).map(|at| gradient(index, at)).collect())?;
    }
    Ok(())
}

/// The complete result of a tuned training and of one without autotune; and the final buckets and settings.
fn tuned_and_not(
    algorithm: impl Fn() -> AnyAlgorithm + Sync,
    optimizer: impl Fn() -> Arc<dyn Optimizer> + Sync,
    order: Order,
) -> (Option<Tuning>, usize) {
    let run = |comm: Communicator| {
        let train = |autotune| -> Result<_> {
            let mut trainer = trainer(&comm, algorithm(), setup(optimizer(), order, autotune))?;
            train(&comm, &mut trainer, STEPS)?;
            let engine = trainer.engine();
            let tuning = engine.telemetry().tuned();
            let buckets = engine.telemetry().buckets().len();
            let state = engine.checkpoint().save()?;
            let of_replica = |name: &str| name.starts_with("parameter/") || name.starts_with("optimizer/");
            let mut replica = Vec::new();
            for (name, saved) in state.tensors().filter(|(name, _)| of_replica(name)) {
                replica.push((name.to_owned(), saved.values.host::<f32>()?.to_vec()));
            }
            Ok((tuning, buckets, replica))
        };
        let (tuning, buckets, replica) = train(Some(autotune()))?;
        assert!(replica == train(None)?.2, "tuned and untuned replicas differ");
        Ok((tuning, buckets))
    };
    let found = spawn(TransportKind::Thread, 2, run).unwrap();
    assert!(found.iter().all(|rank| *rank == found[0]), "{found:?}");
    found[0]
}

fn gradient_all_reduce() -> AnyAlgorithm {
    GradientAllReduce.into()
}

const BEST: Tuning = Tuning { bucket_bytes: 20 * KIB, streams: 2, hierarchical: false };
/// 3 KiB, and the rest in buckets of 20 KiB.
const BEST_BUCKETS: usize = 1 + 29_usize.div_ceil(20);

#[test]
fn it_finds_the_known_best_and_replicas_are_those_of_untuned_training() {
    let momentum = || Arc::new(Sgd { momentum: 0.5, ..Sgd::default() }) as Arc<dyn Optimizer>;
    let found = tuned_and_not(gradient_all_reduce, momentum, Order::Listed);
    assert_eq!(found, (Some(BEST), BEST_BUCKETS));
    let adam = || Arc::new(Adam::default()) as Arc<dyn Optimizer>;
    let found = tuned_and_not(gradient_all_reduce, adam, Order::Observed);
    assert_eq!(found, (Some(BEST), BEST_BUCKETS));
}

/// u ← u/2 + ḡ, with which the optimizer steps; and, if it `shares`, state that is not per element.
#[derive(Debug, Clone)]
struct Momentum {
    shares: bool,
}

struct Remembered {
    momentum: Buffer,
    steps: u64,
    share: Buffer,
}

impl Algorithm for Momentum {
    type State = Remembered;

    fn about(&self) -> About {
        About::new("momentum", GradientAllReduce.about().trigram)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Remembered> {
        let share = Buffer::from_slice(&[1.0f32; 3])?;
        Ok(Remembered { momentum: context.zeros_like(&bucket.gradients)?, steps: 0, share })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Remembered,
        bucket: &mut Bucket,
    ) -> Result<()> {
        assert_eq!(state.steps, context.step());
        state.steps += 1;
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Mean).await?;
        context.blend(0.5, &state.momentum, 1.0, &bucket.gradients)?;
        context.copy(&state.momentum, &bucket.gradients)
    }

    fn checkpoint(&self, state: &mut Remembered, fields: &mut Fields) -> Result<()> {
        fields.buffer("momentum", &mut state.momentum)?;
        fields.count("steps", &mut state.steps)?;
        if self.shares { fields.buffer("share", &mut state.share) } else { Ok(()) }
    }
}

fn plain() -> Arc<dyn Optimizer> {
    Arc::new(Sgd::default())
}

#[test]
fn an_algorithms_state_moves_with_the_parameters() {
    let found = tuned_and_not(|| Momentum { shares: false }.into(), plain, Order::Observed);
    assert_eq!(found, (Some(BEST), BEST_BUCKETS));
}

#[test]
fn buckets_stay_where_the_state_is_not_of_elements_and_the_rest_is_tuned() {
    let found = tuned_and_not(|| Momentum { shares: true }.into(), plain, Order::Listed);
    let untouched = 1 + 29_usize.div_ceil(7);
    assert_eq!(found, (Some(Tuning { bucket_bytes: 7 * KIB, ..BEST }), untouched));
}

#[test]
fn hierarchy_is_tried_on_several_hosts_with_several_ranks() {
    for (hosts, hierarchical) in [([0, 0, 1, 1], true), ([0, 0, 0, 0], false), ([0, 1, 2, 3], false)] {
        let run = |comm: Communicator| {
            let train = |autotune| -> Result<_> {
                let setup = setup(plain(), Order::Listed, autotune);
                let mut trainer = trainer(&comm, gradient_all_reduce(), setup)?;
                train(&comm, &mut trainer, STEPS)?;
                Ok((trainer.engine().telemetry().tuned(), trainer.parameters()?))
            };
            let (tuned, parameters) = train(Some(autotune()))?;
            assert!(parameters == train(None)?.1, "tuned and untuned replicas differ");
            Ok(tuned)
        };
        assert_eq!(
            spawn_hosts(&hosts, run).unwrap(),
            [Some(Tuning { hierarchical, ..BEST }); 4],
            "{hosts:?}"
        );
    }
}

#[test]
fn what_was_found_goes_on_from_a_checkpoint() {
    spawn(TransportKind::Thread, 2, |comm| {
        let new = || trainer(&comm, gradient_all_reduce(), setup(plain(), Order::Observed, Some(autotune())));
        let mut first = new()?;
        train(&comm, &mut first, STEPS)?;
        let state = first.engine().checkpoint().save()?;
        let mut second = new()?;
        second.engine().checkpoint().load(state)?;
        assert_eq!(second.engine().telemetry().tuned(), Some(BEST));
        assert_eq!(second.engine().telemetry().buckets(), first.engine().telemetry().buckets());
        // A search in progress starts again.
        let mut early = new()?;
        train(&comm, &mut early, 10)?;
        let state = early.engine().checkpoint().save()?;
        let mut late = new()?;
        late.engine().checkpoint().load(state)?;
        assert_eq!(late.engine().telemetry().tuned(), None);
        train(&comm, &mut late, STEPS)?;
        assert_eq!(late.engine().telemetry().tuned(), Some(BEST));
        Ok(())
    })
    .unwrap();
}

/// With the clock, for every algorithm: all ranks find the same settings, and training continues.
#[test]
fn every_algorithm_can_be_tuned_by_the_clock() {
    for algorithm in sampled(registry::all()) {
        let name = algorithm.name();
        let run = |comm: Communicator| {
            let autotune = Autotune { cost: None, ..autotune() };
            let algorithm = registry::named(name)?;
            let setup = setup(fitting(&algorithm, plain()), Order::Observed, Some(autotune));
            let mut trainer = trainer(&comm, algorithm, Setup { learning_rate: 1e-3, ..setup })?;
            train(&comm, &mut trainer, STEPS)?;
            trainer.engine().settle()?;
            Ok((trainer.engine().telemetry().tuned(), trainer.engine().telemetry().buckets()))
        };
        let found = spawn(TransportKind::Thread, 2, run).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found[0].0.is_some() && found.iter().all(|rank| *rank == found[0]), "{name}: {found:?}");
    }
}
