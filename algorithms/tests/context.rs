//! What hooks can ask of their context: seeds, weighted means, the loss.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{Algorithm, Bucket, Context, EngineOptions, Trigram};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Seed for all ranks and that of the rank, with rank, step and bucket.
type Drawn = (usize, u64, usize, u64, u64);

/// Steps with the gradients' mean, weighted by the loss, and keeps the seeds.
#[derive(Clone)]
struct Weighs(Arc<Mutex<Vec<Drawn>>>);

/// One for all ranks, as ranks compare it.
impl std::fmt::Debug for Weighs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Weighs")
    }
}

impl Algorithm for Weighs {
    type State = ();

    fn name(&self) -> &'static str {
        "weighs"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
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

/// Trains 3 ranks for two steps with these losses; returns rank 0's model, or every rank's error, and the seeds.
fn train(seed: u64, losses: [Option<f64>; 3]) -> (Vec<std::result::Result<f64, String>>, Vec<Drawn>) {
    let weighs = Weighs(Arc::default());
    let found = spawn(TransportKind::Thread, 3, |comm| {
        let engine =
            EngineOptions { seed, bucket_bytes: 8, first_bucket_bytes: 8, ..Setup::default().engine };
        let setup = Setup { learning_rate: 1.0, engine, ..Setup::default() };
        let mut trainer = Trainer::new(&comm, weighs.clone(), setup, &[vec![0.0f64], vec![0.0]])?;
        for _ in 0..2 {
            if let Some(loss) = losses[comm.rank()] {
                trainer.engine().set_loss(loss);
            }
            if let Err(error) = trainer.step(|_, _| vec![comm.rank() as f64]) {
                return Ok(Err(error.to_string()));
            }
        }
        Ok(Ok(trainer.parameters()?[1][0]))
    });
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
