//! Changes of members after the last step of a training, whose save, evaluation and report are then repeated.

use super::{clean, folder, metrics, resume};
use clap::{Args, Command, FromArgMatches};
use hexagram::algorithms::{EngineOptions, Mode, Parameter};
use hexagram::launch::{Job, Outcome};
use hexagram::sampler::dataset::Items;
use hexagram::{Communicator, DataLoader, Result, World};
use hexagram_lab::run::{
    CheckedRun, RunError, RunOptions, TaskOptions, TaskReplica, TrainingSession, values,
};
use hexagram_lab::task::{GradientReady, ModelValues};
use hexagram_lab::{ModelEvaluation, Task};
use rustix::process::{Signal, getpid, kill_process};
use std::env::var;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Variable with the options of a rank; and the one that dies, with the number of the evaluation in which it does.
const OPTIONS: &str = "LAST_OPTIONS";
const DEATH: &str = "LAST_DEATH";

const EPOCHS: usize = 2;

/// A task that ends the process in an evaluation.
#[derive(Debug)]
struct Dying {
    task: Box<dyn Task>,
    /// Number of evaluations before the last.
    left: AtomicUsize,
    saved: PathBuf,
}

impl Dying {
    /// Deletes the last checkpoint, as if its save had not ended, and ends the process.
    fn die(&self) {
        let last = self.saved.join("step-000056");
        while !last.is_dir() {
            thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_dir_all(last).unwrap();
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

impl Task for Dying {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.task.parameters()
    }

    fn initial(&self, seed: u64) -> ModelValues {
        self.task.initial(seed)
    }

    fn labels(&self) -> &[usize] {
        self.task.labels()
    }

    fn batch(&self) -> Option<usize> {
        self.task.batch()
    }

    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        self.task.gradient(values, samples, ready)
    }

    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        self.task.evaluate(values)
    }

    fn accuracy(&self, values: &ModelValues) -> Option<f64> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.die();
        }
        self.task.accuracy(values)
    }
}

/// Trains as one rank of the job.
fn rank(options: &str) -> Result<ExitCode, RunError> {
    let command = TaskOptions::augment_args(RunOptions::augment_args(Command::new("train")));
    let matches = command.get_matches_from([vec!["train".into()], shell_words::split(options)?].concat());
    let options = RunOptions::from_arg_matches(&matches)?;
    let (task, subject) = TaskOptions::from_arg_matches(&matches)?.load("train", &options)?;
    let (process, evaluation) = (var("HEXAGRAM_RANK")?, var(DEATH)?);
    let (dying, evaluation) = evaluation.split_once(' ').unwrap();
    let left = if process == dying { evaluation.parse()? } else { usize::MAX };
    let saved = options.checkpoint.clone().unwrap();
    let task = Dying { task, left: AtomicUsize::new(left), saved };
    let run = CheckedRun::check(options, subject)?;
    run.start(|world| train(&run, &task, world))
}

fn train(run: &CheckedRun, task: &Dying, world: &World) -> Result<ExitCode, RunError> {
    let comm = Communicator::open(world, 0)?;
    let options: EngineOptions = run.engine();
    let mut replica = TaskReplica::new(&comm, task, run.algorithm.clone(), (options, run.options.seed))?;
    let samples = Items((0..run.subject.samples).collect());
    let mut loader = DataLoader::with_collate(samples, run.share(world)?, |samples, _| Ok(samples))?;
    let mut session = TrainingSession::begin(run, &comm, &mut replica, &mut loader)?;
    for epoch in session.epochs() {
        session.begin_epoch(epoch, &replica);
        let mut batches = loader.iter();
        while let Some(samples) = batches.next() {
            let samples = samples?;
            let mut loss = f64::NAN;
            replica.engine.step_with(|engine| -> Result<()> {
                let values = values(engine, task)?;
                engine.forward()?;
                engine.begin(Mode::Synchronize)?;
                let hooks = engine.hooks();
                loss =
                    task.gradient(&values, &samples, &mut |at, gradient| hooks.ready_slice(at, gradient))?;
                Ok(())
            })?;
            session.step(&mut replica, loss, batches.state())?;
        }
        drop(batches);
        session.end_epoch(&mut replica)?;
    }
    session.finish(&mut replica)
}

#[test]
fn a_change_of_members_after_the_last_step_loses_neither_its_save_nor_its_evaluation() {
    if let Ok(options) = var(OPTIONS) {
        assert_eq!(rank(&options).unwrap(), ExitCode::SUCCESS);
        return;
    }
    let name = thread::current().name().unwrap().to_owned();
    // Two ranks have no samples left after the last step of three.
    for every in [40, 56] {
        // In the evaluation of the last epoch, and in that of the training.
        for (dying, evaluation) in [(0, EPOCHS - 1), (1, EPOCHS - 1), (0, EPOCHS)] {
            let (out, saved) = (folder("last"), folder("last-saved"));
            let options = format!(
                "--epochs {EPOCHS} --batch 17 --every {every} --out '{}' --checkpoint '{}'",
                out.display(),
                saved.display()
            );
            let job = Job {
                elastic: Some(2),
                arguments: [&name, "--exact", "--nocapture"].map(Into::into).into(),
                environment: vec![
                    (OPTIONS.into(), options.into()),
                    (DEATH.into(), format!("{dying} {evaluation}").into()),
                ],
                ..Job::new(3, std::env::current_exe().unwrap())
            };
            assert_eq!(job.run().unwrap(), Outcome::Success);
            let lines = metrics("last");
            let summary = lines.last().unwrap();
            assert_eq!((&summary["event"], &summary["ranks"]), (&"summary".into(), &2.into()), "{summary}");
            for field in ["final_loss", "test_accuracy", "samples_per_s", "steps_per_s", "comm_fraction"] {
                let figure = summary[field].as_f64();
                assert!(figure.is_some_and(|figure| figure >= 0.0), "{field} of {summary}");
            }
            assert!(summary["final_loss"].as_f64() < Some(0.5), "{summary}");
            assert!(resume::newest(&saved).ends_with("step-000056"), "{:?}", resume::newest(&saved));
            ["last", "last-saved"].into_iter().for_each(clean);
        }
    }
}
