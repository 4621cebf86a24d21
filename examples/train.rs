//! Trains a net on handwritten digits by several ranks: `cargo run --release --example train`; or, with `--task text`, a
//! network on lines of different lengths.
//!
//! Read [`train`] and [`step`]. The net is the laboratory's own, with its gradient written by hand, so that no framework is
//! compiled; with one, `adapters/candle/examples` have the same loop. The program runs alike alone and under
//! `hexagram run`, mpirun, srun and torchrun, over shared memory, TCP or threads. Held out, and never trained on, is every
//! fifth image, or line.

use hexagram::algorithms::{DataParallel, EngineOptions, Mode};
use hexagram::sampler::dataset::Items;
use hexagram::{Communicator, DataLoader, Result, World};
use hexagram_lab::Task;
use hexagram_lab::run::{self, CheckedRun, RunError, TaskOptions, TaskReplica, TrainingSession};
use std::borrow::Cow;
use std::process::ExitCode;

const ABOUT: &str = "\
Train a net of one hidden layer on handwritten digits, by several ranks; or a network that predicts the characters of \
lines of different lengths.

Under mpirun, torchrun or `hexagram run` it is one rank; otherwise it starts its ranks itself.";

pub(crate) fn main() -> ExitCode {
    run::main("train", ABOUT, |options, own: TaskOptions| {
        let (task, subject) = own.load("train", &options)?;
        let run = CheckedRun::check(options, subject)?;
        run.start(|world| train(&run, &*task, world))
    })
}

/// Trains on one rank, from the initial values to the report; returns the exit code.
fn train(run: &CheckedRun, task: &dyn Task, world: &World) -> Result<ExitCode, RunError> {
    let comm = Communicator::open(world, 0)?;

    // Every rank has a replica of the net, and its share of the samples, in a new order in each epoch.
    let queue = run.options.device.queue(world.local_rank())?;
    let options = EngineOptions { queue, ..run.engine() };
    let mut replica = TaskReplica::new(&comm, task, run.algorithm.clone(), (options, run.options.seed))?;
    let samples = Items((0..run.subject.samples).collect());
    let mut loader = DataLoader::with_collate(samples, run.share(world)?, |samples, _| Ok(samples))?;

    let mut session = TrainingSession::begin(run, &comm, &mut replica, &mut loader)?;
    for epoch in session.epochs() {
        session.begin_epoch(epoch, &replica);
        let mut batches = loader.iter();
        while let Some(samples) = replica.engine.trace().loading(|| batches.next()) {
            let samples = samples?;
            let weight = session.weight(&samples);
            let loss = step(&mut replica.engine, task, (&samples, weight))?;
            session.step(&mut replica, loss, batches.state())?;
        }
        drop(batches);
        session.end_epoch(&mut replica)?;
    }
    session.finish(&mut replica)
}

/// Makes a step on one batch, together with all ranks; returns this rank's loss. Its gradient has a weight in the mean over
/// ranks: 1, unless samples cost differently.
fn step(engine: &mut DataParallel, task: &dyn Task, (samples, weight): (&[usize], f32)) -> Result<f64> {
    let mut loss = None;
    // Once, or as often as the algorithm takes a gradient of each batch.
    engine.step_with(|engine| {
        let values = run::values(engine, task)?;
        engine.forward()?;
        engine.begin(Mode::Synchronize)?;
        // Each gradient leaves as soon as it is complete, while the backward pass goes on.
        let hooks = engine.hooks();
        let of_batch = task.gradient(&values, samples, &mut |at, gradient| {
            let mut weighted = Cow::Borrowed(gradient);
            if weight != 1.0 {
                weighted.to_mut().iter_mut().for_each(|slope| *slope *= weight);
            }
            hooks.ready_slice(at, &weighted)
        })?;
        loss.get_or_insert(of_batch);
        Ok(())
    })?;
    Ok(loss.unwrap_or(f64::NAN))
}
