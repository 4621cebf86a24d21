//! Several gradients per step: SAM and STORM written as algorithms, against steps computed in f64; and loops that do
//! not make the passes.

use super::*;
use crate::plugin::{Fields, Needs};
use crate::slowmo::SlowMo;
use crate::testing::{Quadratic, Setup, Trainer, resumes_exactly};

/// Radius ρ of SAM, and share a of a new gradient in STORM.
const RADIUS: f64 = 0.5;
const SHARE: f64 = 0.3;
const RATE: f64 = 0.1;
const RANKS: usize = 3;

/// Sharpness-aware minimization with the mean gradient: its gradient at x + ρ g / ‖g‖ steps from x.
#[derive(Debug, Clone)]
struct Sam;

impl Algorithm for Sam {
    type State = Buffer;

    fn about(&self) -> About {
        About::new("sam", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn evaluations(&self, _: u64) -> u32 {
        2
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Buffer> {
        context.copy_of(&bucket.parameters)
    }

    async fn evaluated(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Result<()> {
        context.mean(&mut bucket.gradients).await?;
        context.copy(&bucket.parameters, x)?;
        let norm = context.norm(&bucket.gradients)?.max(f64::MIN_POSITIVE);
        context.add_scaled(RADIUS / norm, &bucket.gradients, &bucket.parameters)
    }

    async fn gradients_ready(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Result<()> {
        assert_eq!(context.evaluation(), 1);
        context.copy(x, &bucket.parameters)?;
        context.mean(&mut bucket.gradients).await
    }
}

/// STORM (Cutkosky and Orabona, 2019): d ← g(x) + (1 − a)(d − g(x of the step before)), both with the batch of this
/// step; the step follows the mean of d over the ranks. Its first step takes one gradient.
#[derive(Debug, Clone)]
struct Storm;

/// Parameters of this step and of the one before, the estimate d, and the gradient of this step.
struct StormState {
    now: Buffer,
    before: Buffer,
    estimate: Buffer,
    gradient: Buffer,
}

impl Algorithm for Storm {
    type State = StormState;

    fn about(&self) -> About {
        About::new("storm", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { parameters: true, ..Needs::default() })
    }

    fn evaluations(&self, own_step: u64) -> u32 {
        if own_step == 0 { 1 } else { 2 }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<StormState> {
        let zeros = || context.zeros_like(&bucket.parameters);
        Ok(StormState { now: zeros()?, before: zeros()?, estimate: zeros()?, gradient: zeros()? })
    }

    async fn evaluated(&self, context: &Context, state: &mut StormState, bucket: &mut Bucket) -> Result<()> {
        context.copy(&bucket.gradients, &state.gradient)?;
        context.copy(&bucket.parameters, &state.now)?;
        context.copy(&state.before, &bucket.parameters)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut StormState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.own_step() == 0 {
            context.copy(&bucket.gradients, &state.estimate)?;
        } else {
            let keep = 1.0 - SHARE;
            context.combine(keep, &state.estimate, &[(-keep, &bucket.gradients), (1.0, &state.gradient)])?;
            context.copy(&state.now, &bucket.parameters)?;
        }
        context.copy(&bucket.parameters, &state.before)?;
        context.copy(&state.estimate, &bucket.gradients)?;
        context.mean(&mut bucket.gradients).await
    }

    fn checkpoint(&self, state: &mut StormState, fields: &mut Fields) -> Result<()> {
        fields.buffer("before", &mut state.before)?;
        fields.buffer("estimate", &mut state.estimate)
    }
}

fn quadratic() -> Quadratic {
    Quadratic { a: vec![1.0, 0.5, 2.0], b: vec![0.0, 3.0, -1.0] }
}

/// Returns the gradient of a rank for the batch of a step: with a different noise per step, the same at every point.
fn noisy(rank: usize, step: usize, x: &[f64]) -> Vec<f64> {
    let noise = ((rank * 7 + step * 13) % 11) as f64 / 11.0 - 0.5;
    quadratic().gradient(rank, x).iter().zip(x).map(|(g, x)| g * (1.0 + noise) + 0.1 * x * x).collect()
}

fn setup() -> Setup {
    let engine = EngineOptions { bucket_bytes: 8, first_bucket_bytes: 8, ..Setup::default().engine };
    Setup { learning_rate: RATE, engine, ..Setup::default() }
}

/// Returns the parameters of every rank after some steps from 1 and −2.
fn train(algorithm: impl Into<AnyAlgorithm>, steps: usize) -> Vec<Vec<f64>> {
    let algorithm = algorithm.into();
    let found = spawn(TransportKind::Thread, RANKS, |comm| {
        let mut trainer = Trainer::new(&comm, algorithm.clone(), setup(), &[vec![1.0], vec![-2.0]])?;
        for step in 0..steps {
            trainer.step(|_, x| noisy(comm.rank(), step, x))?;
        }
        Ok(trainer.parameters()?.concat())
    });
    found.unwrap()
}

/// Returns the mean of the vectors of all ranks.
fn mean(of: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
    let all: Vec<Vec<f64>> = (0..RANKS).map(of).collect();
    (0..all[0].len()).map(|at| all.iter().map(|one| one[at]).sum::<f64>() / RANKS as f64).collect()
}

fn assert_near(found: &[Vec<f64>], expected: &[f64]) {
    for rank in found {
        let near = rank.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-13);
        assert!(near, "{rank:?} and not {expected:?}");
    }
}

#[test]
fn sam_steps_from_x_with_the_gradient_of_where_it_is_steepest() {
    let mut x = vec![1.0, -2.0];
    for step in 0..6 {
        let g = mean(|rank| noisy(rank, step, &x));
        let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
        let there: Vec<f64> = x.iter().zip(&g).map(|(x, g)| x + RADIUS * g / norm).collect();
        let g = mean(|rank| noisy(rank, step, &there));
        x.iter_mut().zip(&g).for_each(|(x, g)| *x -= RATE * g);
        assert_near(&train(Sam, step + 1), &x);
    }
    let around = SlowMo { period: 1 << 40, base: Some(Sam.into()), ..SlowMo::default() };
    assert_eq!(train(around, 6), train(Sam, 6));
}

#[test]
fn storm_takes_this_steps_batch_at_the_parameters_before() {
    let mut x = vec![1.0, -2.0];
    let mut before = x.clone();
    let mut estimates = vec![vec![0.0; 2]; RANKS];
    for step in 0..5 {
        for (rank, estimate) in estimates.iter_mut().enumerate() {
            let now = noisy(rank, step, &x);
            let then = noisy(rank, step, &before);
            for (at, d) in estimate.iter_mut().enumerate() {
                let kept = if step == 0 { 0.0 } else { (1.0 - SHARE) * (*d - then[at]) };
                *d = now[at] + kept;
            }
        }
        before.clone_from(&x);
        let d = mean(|rank| estimates[rank].clone());
        x.iter_mut().zip(&d).for_each(|(x, d)| *x -= RATE * d);
        assert_near(&train(Storm, step + 1), &x);
    }
}

#[test]
fn a_training_with_several_gradients_resumes_bit_for_bit() {
    let setup = || Setup { learning_rate: RATE, ..Setup::default() };
    for before in [1, 2] {
        resumes_exactly(2, before, 3, &setup, || Storm).unwrap();
    }
    resumes_exactly(2, 2, 2, &setup, || Sam).unwrap();
}

/// Returns the errors of two ranks for a loop, on an engine of one parameter of four.
fn said(options: EngineOptions, work: impl Fn(&mut DataParallel) -> Result<()> + Sync) -> Vec<String> {
    let errors = spawn(TransportKind::Thread, 2, |comm| {
        // The error of the other rank may arrive while this one still creates its engine.
        let engine = trained_by(&comm, parameters(1, 4), Sam, options.clone(), (RATE, 1.0));
        let refused = engine.and_then(|mut engine| work(&mut engine));
        Ok(refused.unwrap_err().to_string())
    });
    errors.unwrap()
}

#[test]
fn a_loop_that_does_not_make_the_second_pass_is_refused_by_name() {
    let ready = |engine: &mut DataParallel| {
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f32; 4])
    };
    let refused = |work: &(dyn Fn(&mut DataParallel) -> Result<()> + Sync), text: &str| {
        for error in said(EngineOptions::default(), work) {
            assert!(error.contains(text), "{error}");
        }
    };
    let first = "sam takes 2 gradients of each batch, and gradient 1 was to be the last";
    refused(&|engine| ready(engine).and_then(|()| engine.finish()), first);
    refused(&|engine| ready(engine).and_then(|()| engine.finish_and_step()), first);
    let half = |engine: &mut DataParallel| ready(engine).and_then(|()| engine.evaluate_again().map(drop));
    refused(&|engine| half(engine).and_then(|()| engine.step()), "no gradients are synchronized");
    refused(&|engine| half(engine).and_then(|()| engine.settle()), "sam waits for another gradient");
    refused(
        &|engine| half(engine).and_then(|()| engine.checkpoint().save().map(drop)),
        "between two gradients of a step",
    );
    // The second gradient would be of the next batch.
    let next = |engine: &mut DataParallel| half(engine).and_then(|()| engine.step_with(ready));
    refused(&next, "sam waits for another gradient of the same batch");
    let accumulate = |engine: &mut DataParallel| {
        engine.begin(Mode::Accumulate)?;
        engine.hooks().ready_slice(0, &[1.0f32; 4])?;
        engine.evaluate_again().map(drop)
    };
    refused(&accumulate, "a pass that only accumulates");
    let scaled = EngineOptions { loss_scale: Some(LossScale::default()), ..EngineOptions::default() };
    for error in said(scaled, half) {
        assert!(error.contains("the loss is scaled"), "{error}");
    }
}

#[test]
fn accumulated_gradients_are_taken_anew_and_a_rank_without_data_makes_the_passes_too() {
    let options = || EngineOptions { uneven: true, ..options(1 << 20, 1 << 20) };
    let found = spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = trained_by(&comm, parameters(1, 1), Sam, options(), (RATE, 1.0))?;
        for _ in 0..2 - comm.rank() {
            engine.step_with(|engine| {
                let x = value(engine, 0)[0];
                // The gradient 2 x, half of it in each of two passes.
                pass(engine, Mode::Accumulate, &[vec![x]])?;
                engine.begin(Mode::Synchronize)?;
                engine.hooks().ready_slice(0, &[x])
            })?;
        }
        engine.uneven().join()?;
        Ok(value(&engine, 0)[0])
    });
    // One step of both ranks, and one in which one of them has a gradient of zero.
    let first = 1.0 - 0.1 * 2.0 * 1.5;
    let second = first - 0.1 * (first + 0.5);
    for x in found.unwrap() {
        assert!((x - second).abs() < 1e-6, "{x} and not {second}");
    }
}
