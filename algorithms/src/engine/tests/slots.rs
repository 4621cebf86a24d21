//! The slots of the optimizer in a hook: averaged momenta, against steps computed by hand, and optimizers without
//! slots.

use super::*;
use crate::optimizer::Optimizer;
use crate::plugin::{Needs, Slots};
use crate::slowmo::SlowMo;
use crate::testing::{Quadratic, Setup, Trainer};

const PERIOD: u64 = 2;

/// Averages parameters and momenta every other step.
#[derive(Debug, Clone)]
struct SharedMomentum;

impl Algorithm for SharedMomentum {
    type State = ();

    fn about(&self) -> About {
        About::new("shared-momentum", Trigram { centralized: true, synchronous: true, full_precision: true })
            .keeps_replicas_identical(false)
            .needs(Needs { parameters: true, ..Needs::default() })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn slots_ready(
        &self,
        context: &Context,
        _: &mut (),
        bucket: &mut Bucket,
        slots: &mut Slots,
    ) -> Result<()> {
        let momentum = slots.get_mut("momentum")?;
        assert_eq!(momentum.len(), bucket.len());
        if (context.step() + 1).is_multiple_of(PERIOD) {
            context.mean(momentum).await?;
            context.mean(&mut bucket.parameters).await?;
        }
        Ok(())
    }
}

fn quadratic() -> Quadratic {
    Quadratic { a: vec![1.0, 0.5, 2.0], b: vec![0.0, 3.0, -1.0] }
}

fn setup(momentum: f64) -> Setup {
    let engine = EngineOptions { bucket_bytes: 8, first_bucket_bytes: 8, ..Setup::default().engine };
    Setup { optimizer: Arc::new(Sgd { momentum, ..Sgd::default() }), engine, ..Setup::default() }
}

/// Returns the parameters of every rank after some steps from 1 and −2.
fn train(algorithm: impl Into<AnyAlgorithm>, steps: usize) -> Vec<Vec<f64>> {
    let algorithm = algorithm.into();
    let found = spawn(TransportKind::Thread, 3, |comm| {
        let initial = [vec![1.0], vec![-2.0]];
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup(0.9), &initial)?;
        for _ in 0..steps {
            trainer.step(|_, x| quadratic().gradient(comm.rank(), x))?;
        }
        Ok(trainer.parameters()?.concat())
    });
    found.unwrap()
}

/// Returns the same, computed by hand.
fn by_hand(steps: u64) -> Vec<Vec<f64>> {
    let mut x = vec![vec![1.0, -2.0]; 3];
    let mut u = vec![vec![0.0; 2]; 3];
    for step in 0..steps {
        for rank in 0..3 {
            let gradient = quadratic().gradient(rank, &x[rank]);
            for (at, g) in gradient.iter().enumerate() {
                u[rank][at] = 0.9 * u[rank][at] + g;
                x[rank][at] -= 0.1 * u[rank][at];
            }
        }
        if (step + 1).is_multiple_of(PERIOD) {
            for of_ranks in [&mut x, &mut u] {
                let mean = |at: usize| of_ranks.iter().map(|rank| rank[at]).sum::<f64>() / 3.0;
                let mean = vec![mean(0), mean(1)];
                of_ranks.fill(mean);
            }
        }
    }
    x
}

#[test]
fn momenta_that_a_hook_averages_are_those_of_steps_by_hand() {
    for steps in [1, 2, 3, 7] {
        let found = train(SharedMomentum, steps);
        for (found, expected) in found.iter().flatten().zip(by_hand(steps as u64).iter().flatten()) {
            assert!((found - expected).abs() < 1e-14, "{found} and not {expected} after {steps}");
        }
    }
    // With local momenta, the result differs.
    let own = train(crate::local_sgd::LocalSgd { period: PERIOD, ..Default::default() }, 7);
    assert!((own[0][0] - by_hand(7)[0][0]).abs() > 1e-3);
}

#[test]
fn an_algorithm_around_another_passes_the_slots_on() {
    let around = SlowMo { period: 1 << 40, base: Some(SharedMomentum.into()), ..SlowMo::default() };
    assert_eq!(train(around, 5), train(SharedMomentum, 5));
}

#[test]
fn a_slot_that_the_optimizer_does_not_have_is_named_and_so_is_a_frameworks_optimizer() {
    let said = |optimizer: Option<Arc<dyn Optimizer>>| {
        let errors = spawn(TransportKind::Thread, 2, |comm| {
            let parameter = Parameter { name: "p".to_owned(), dtype: DType::F32, shape: vec![4] };
            let learning_rate = Some(0.1.into());
            let options =
                EngineOptions { optimizer: optimizer.clone(), learning_rate, ..EngineOptions::default() };
            let stepped =
                DataParallel::new(&comm, vec![parameter], SharedMomentum, options).and_then(|mut engine| {
                    engine.begin(Mode::Synchronize)?;
                    engine.hooks().ready_slice(0, &[1.0f32; 4])?;
                    engine.finish_and_step()
                });
            Ok(stepped.unwrap_err().to_string())
        });
        errors.unwrap()
    };
    for text in said(None) {
        assert!(text.contains("shared-momentum works on the state of the optimizer"), "{text}");
    }
    let adam: Arc<dyn Optimizer> = Arc::new(crate::Adam::default());
    let texts = said(Some(adam));
    assert!(
        texts.iter().any(|text| text.contains("no slot `momentum`; it has first-moment, second-moment")),
        "{texts:?}"
    );
    let texts = said(Some(Arc::new(Sgd::default())));
    assert!(texts.iter().any(|text| text.contains("no slot `momentum`; use an optimizer")), "{texts:?}");
}
