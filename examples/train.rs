//! Trains a net on handwritten digits by several ranks: `cargo run --release --example train`.
//!
//! Read [`train`] and [`step`]. The net is the laboratory's, with a hand-written gradient, so no framework is
//! compiled. `adapters/candle/examples` have the same loop with a framework. The program runs the same way alone and
//! under `hexagram run`, mpirun, srun and torchrun, over shared memory, TCP or threads. Every fifth image is held
//! out, and never trained on.

use clap::Args;
use hexagram::algorithms::{DataParallel, EngineOptions, Mode};
use hexagram::sampler::dataset::Items;
use hexagram::{Communicator, DataLoader, Result, World};
use hexagram_lab::Task;
use hexagram_lab::run::{self, Failure, Run, Session, Subject, TaskReplica};
use hexagram_lab::task::{Digits, Images};
use std::path::PathBuf;
use std::process::ExitCode;

const ABOUT: &str = "\
Train a net of one hidden layer on handwritten digits, by several ranks.

Under mpirun, torchrun or `hexagram run` it is one rank; otherwise it starts its ranks itself.";

/// Options of this program, in addition to those of every training.
#[derive(Args)]
struct Own {
    /// A file of digits instead of the built-in ones: 64 pixels 0..16 and a label per line, .csv or .csv.gz
    #[arg(long)]
    data: Option<PathBuf>,
}

pub(crate) fn main() -> ExitCode {
    run::main("train", ABOUT, |options, own: Own| {
        let images = own.data.map_or_else(Images::embedded, Images::read)?;
        let digits = Digits::wide(&images);
        let subject = Subject {
            program: "train",
            model: "digits".to_owned(),
            rates: "digits",
            dtype: "f32",
            samples: digits.images().len(),
            digest: digits.images().digest(),
        };
        let run = Run::check(options, subject)?;
        run.start(|world| train(&run, &digits, world))
    })
}

/// Trains on one rank, from the initial values to the report; returns the exit code.
fn train(run: &Run, digits: &Digits, world: &World) -> Result<ExitCode, Failure> {
    let comm = Communicator::open(world, 0)?;

    // Every rank has a replica of the net, and an equal share of the samples, in a new order in each epoch.
    let queue = run.options.device.queue(world.local_rank())?;
    let options = EngineOptions { queue, ..run.engine() };
    let mut replica = TaskReplica::new(&comm, digits, run.algorithm.clone(), (options, run.options.seed))?;
    let samples = Items((0..digits.images().len()).collect());
    let mut loader = DataLoader::with_collate(samples, run.share(world)?, |samples, _| Ok(samples))?;

    let mut session = Session::begin(run, &comm, &mut replica, &mut loader)?;
    for epoch in session.epochs() {
        session.begin_epoch(epoch, &replica);
        let mut batches = loader.iter();
        while let Some(samples) = batches.next() {
            let loss = step(&mut replica.engine, digits, &samples?)?;
            session.step(&mut replica, loss, batches.state())?;
        }
        drop(batches);
        session.end_epoch(&mut replica)?;
    }
    session.finish(&mut replica)
}

/// Makes a step on one batch, together with all ranks; returns this rank's loss.
fn step(engine: &mut DataParallel, digits: &Digits, samples: &[usize]) -> Result<f64> {
    let mut loss = None;
    // Once, or as often as the algorithm takes a gradient of each batch.
    engine.step_with(|engine| {
        let values = run::values(engine, digits)?;
        engine.forward()?;
        engine.begin(Mode::Synchronize)?;
        // Each gradient leaves as soon as it is complete, while the backward pass continues.
        let hooks = engine.hooks();
        let of_batch =
            digits.gradient(&values, samples, &mut |at, gradient| hooks.ready_slice(at, gradient))?;
        loss.get_or_insert(of_batch);
        Ok(())
    })?;
    Ok(loss.unwrap_or(f64::NAN))
}
