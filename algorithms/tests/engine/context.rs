//! The context of a hook: seeds, weighted means, the loss; and the metrics that hooks report.

use hexagram_algorithms::async_model_average::AsyncModelAverage;
use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{About, Algorithm, Bucket, Combine, Context, EngineOptions, Needs, Trigram};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Seed for all ranks and that of the rank, with rank, step and bucket.
type Drawn = (usize, u64, usize, u64, u64);

/// Steps with the mean of the gradients, weighted by the loss, and records the seeds.
#[derive(Clone)]
struct Weighs(Arc<Mutex<Vec<Drawn>>>);

/// The same on all ranks, as ranks compare it.
impl std::fmt::Debug for Weighs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Weighs")
    }
}

impl Algorithm for Weighs {
    type State = ();

    fn about(&self) -> About {
        About::new("weighs", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, _: &mut (), bucket: &mut Bucket) -> Result<()> {
        let seeds = (context.shared_seed(), context.own_seed());
        let drawn = (context.rank(), context.step(), context.bucket(), seeds.0, seeds.1);
        self.0.lock().unwrap().push(drawn);
        context.weighted_mean(&mut bucket.gradients, context.loss()?).await
    }
}

/// Reports metrics in every hook, bucket and rank; otherwise the mean of the gradients.
#[derive(Debug, Clone)]
struct GivesOut;

impl Algorithm for GivesOut {
    type State = ();

    fn about(&self) -> About {
        About::new("gives-out", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { parameters: true, ..Needs::default() })
    }

    async fn state(&self, context: &Context, _: &Bucket) -> Result<()> {
        context.metric("of no step", Combine::Sum, 1.0)
    }

    async fn before_forward(&self, context: &Context, _: &mut (), _: &Buffer) -> Result<()> {
        context.metric("step", Combine::Max, context.step() as f64)
    }

    async fn gradients_ready(&self, context: &Context, _: &mut (), bucket: &mut Bucket) -> Result<()> {
        context.metric("gradient", Combine::Norm, context.norm(&bucket.gradients)?)?;
        context.mean(&mut bucket.gradients).await
    }

    async fn after_step(&self, context: &Context, _: &mut (), bucket: &mut Bucket) -> Result<()> {
        if context.step() == 0 {
            context.metric("once", Combine::Sum, 1.0)?;
        }
        context.metric("elements", Combine::Mean, bucket.len() as f64)
    }

    async fn settle(&self, context: &Context, _: &mut (), _: &mut Bucket) -> Result<()> {
        context.metric("of no step", Combine::Sum, 1.0)
    }
}

#[test]
fn what_hooks_give_out_is_there_after_the_step_combined_over_buckets() {
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let engine = EngineOptions { bucket_bytes: 8, first_bucket_bytes: 8, ..Setup::default().engine };
        let setup = Setup { engine, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, GivesOut, setup, &[vec![0.0f64; 3], vec![0.0]])?;
        let mut seen = vec![trainer.engine().metrics().clone()];
        for _ in 0..2 {
            // Gradients (3, 0, 0) and (4) on rank 0; twice that on rank 1.
            let scale = (comm.rank() + 1) as f64;
            trainer.step(|at, _| if at == 0 { vec![3.0 * scale, 0.0, 0.0] } else { vec![4.0 * scale] })?;
            trainer.engine().settle()?;
            seen.push(trainer.engine().metrics().clone());
        }
        Ok(seen)
    });
    for (rank, seen) in found.unwrap().into_iter().enumerate() {
        let gradient = 5.0 * (rank + 1) as f64;
        let expected = |list: &[(&str, f64)]| -> BTreeMap<String, f64> {
            list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        assert_eq!(seen[0], expected(&[]));
        let first = [("step", 0.0), ("gradient", gradient), ("elements", 2.0), ("once", 2.0)];
        assert_eq!(seen[1], expected(&first));
        assert_eq!(seen[2], expected(&[("step", 1.0), ("gradient", gradient), ("elements", 2.0)]));
    }
}

#[test]
fn built_in_algorithms_give_out_what_they_find_by_themselves() {
    spawn(TransportKind::Thread, 3, |comm| {
        let choco = ChocoSgd { consensus: None, ..ChocoSgd::min_max8() };
        let mut trainer = Trainer::new(&comm, choco, Setup::default(), &[vec![1.0f32; 8]])?;
        trainer.step(|_, x| x.to_vec())?;
        let found = trainer.engine().metrics().get("consensus").copied();
        assert!(found.is_some_and(|step| step > 0.0 && step <= 1.0), "{found:?}");
        let eager = AsyncModelAverage { interval: 0.0, ..AsyncModelAverage::default() };
        trainer.engine().switch(eager)?;
        let mut came = None;
        let mut made = 0.0;
        let started = Instant::now();
        // An average arrives some time after all ranks have begun it.
        while started.elapsed() < Duration::from_secs(60) {
            trainer.step(|_, x| x.to_vec())?;
            made += 1.0;
            let found = trainer.engine().metrics().get("staleness").copied();
            came = came.or(found.map(|steps| (steps, made)));
            let mut waits = [f64::from(u8::from(came.is_none()))];
            comm.blocking().all_reduce(&mut waits, ReduceOp::Max)?;
            if waits[0] == 0.0 {
                break;
            }
        }
        assert!(came.is_some_and(|(steps, made)| (1.0..made).contains(&steps)), "{came:?}");
        trainer.engine().settle()
    })
    .unwrap();
}

/// Trains 3 ranks for two steps with these losses; returns the model of rank 0, or the error of every rank, and the
/// seeds.
fn train(seed: u64, losses: [Option<f64>; 3]) -> (Vec<std::result::Result<f64, String>>, Vec<Drawn>) {
    let weighs = Weighs(Arc::default());
    let learnt = |comm: &Communicator| {
        let engine =
            EngineOptions { seed, bucket_bytes: 8, first_bucket_bytes: 8, ..Setup::default().engine };
        let setup = Setup { learning_rate: 1.0, engine, ..Setup::default() };
        let mut trainer = Trainer::new(comm, weighs.clone(), setup, &[vec![0.0f64], vec![0.0]])?;
        for _ in 0..2 {
            if let Some(loss) = losses[comm.rank()] {
                trainer.engine().set_loss(loss);
            }
            trainer.step(|_, _| vec![comm.rank() as f64])?;
        }
        Ok(trainer.parameters()?[1][0])
    };
    // The failure of another rank may arrive while this one still creates its engine.
    let found =
        spawn(TransportKind::Thread, 3, |comm| Ok(learnt(&comm).map_err(|error: Error| error.to_string())));
    let drawn = weighs.0.lock().unwrap().clone();
    (found.unwrap(), drawn)
}

#[test]
fn a_mean_is_weighted_by_each_ranks_loss() {
    // Gradients 0, 1 and 2 with weights 5, 1 and 2: their mean is 5/8, in each of two steps.
    let (found, _) = train(0, [Some(5.0), Some(1.0), Some(2.0)]);
    assert!(found.iter().all(|x| (x.clone().unwrap() + 1.25).abs() < 1e-12), "{found:?}");
}

#[test]
fn weights_that_make_no_mean_and_a_loss_that_is_not_told_are_refused() {
    let refused = |losses, said: &str| {
        let (found, _) = train(0, losses);
        assert!(found.iter().all(|x| x.clone().unwrap_err().contains(said)), "{found:?}");
    };
    refused([Some(0.0); 3], "all ranks have a weight of 0");
    refused([Some(1.0), Some(-1.0), Some(1.0)], "rank 1 has a weight of -1");
    refused([Some(1.0), Some(1.0), None], "needs the loss");
}

#[test]
fn seeds_are_alike_on_all_ranks_or_each_ranks_own_and_depend_on_step_bucket_and_seed() {
    let (_, drawn) = train(7, [Some(1.0); 3]);
    assert_eq!(drawn.len(), 3 * 2 * 2);
    for (_, step, bucket, shared, _) in &drawn {
        let alike = drawn.iter().filter(|other| other.3 == *shared);
        assert!(
            alike.clone().count() == 3 && alike.clone().all(|other| (other.1, other.2) == (*step, *bucket))
        );
    }
    let own: BTreeSet<u64> = drawn.iter().map(|drawn| drawn.4).collect();
    assert_eq!(own.len(), drawn.len());
    let sorted = |mut drawn: Vec<Drawn>| {
        drawn.sort_unstable();
        drawn
    };
    assert_eq!(sorted(train(7, [Some(1.0); 3]).1), sorted(drawn.clone()));
    let (_, other) = train(8, [Some(1.0); 3]);
    assert!(other.iter().all(|other| drawn.iter().all(|drawn| drawn.3 != other.3)));
}
