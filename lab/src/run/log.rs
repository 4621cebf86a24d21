//! Reporter of a training while it runs and at its end: prints, writes metrics.jsonl, and draws the picture.

use super::memory::TrainedStep;
use super::metrics::{EpochMetrics, MetricsFile, StepMetrics};
use super::progress::EpochProgress;
use super::report::RunReport;
use super::saves::Saves;
use super::spent::Spent;
use super::work::StepWork;
use super::{CheckedRun, RunError, picture};
use crate::program::console::bytes;
use crate::program::ranks::since_launch;
use hexagram::algorithms::LearningRate;
use hexagram::algorithms::engine::Evaluation;
use hexagram::algorithms::trace::Trace;
use hexagram::physical::stdout::print;
use hexagram::{Communicator, ReduceOp, World};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Result of a training, of all replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged {
    /// Share of the held-out images that the mean of the replicas recognizes.
    pub(super) test_accuracy: f64,
    /// True if all replicas are bit-identical.
    pub(super) replicas_identical: bool,
    /// Bytes that all-reduce of the gradients sends in a step of this model, on all ranks.
    pub(super) bytes_per_step: f64,
}

/// Reporter of the running training: rank 0 prints and writes, the others only contribute.
pub(super) struct RunLog<'a> {
    run: &'a CheckedRun,
    world: &'a World,
    progress: EpochProgress,
    /// On rank 0.
    metrics: Option<MetricsFile>,
    /// True if figures, or the picture, could not be kept.
    is_lost: bool,
    began: Instant,
    epoch: u64,
    /// Time at which each step of the epoch ended, and the algorithm's metrics of the step.
    ended: Vec<(Duration, BTreeMap<String, f64>)>,
    /// Steps of all ranks together, and all epochs; and their seconds.
    count: f64,
    blocked_s: f64,
    steps_s: f64,
    samples: f64,
    /// Work of all ranks and epochs, where samples cost differently.
    work: Option<StepWork>,
    rate: LearningRate,
    /// Number of steps of each rank, through checkpoints.
    steps: u64,
    resumed_at: u64,
    /// True if earlier members of the job have made the steps before.
    is_continued: bool,
    /// Losses of the steps that earlier members have made in the epoch.
    earlier: Vec<f64>,
    /// Bytes that this rank sent before the epoch, or outside training.
    sent_before: u64,
    /// Bytes of all ranks and epochs.
    bytes: u64,
    loss: f64,
}

impl<'a> RunLog<'a> {
    /// Creates the reporter of a training with this many steps per epoch, at this learning rate. Rank 0 creates the
    /// folder of the figures.
    ///
    /// # Errors
    /// [`Error::System`](hexagram::Error::System) if the folder or the file cannot be created.
    pub(super) fn new(
        run: &'a CheckedRun,
        world: &'a World,
        (steps, rate): (u64, LearningRate),
    ) -> Result<Self, RunError> {
        let first = world.rank() == 0;
        let directory = run.options.directory(world.size());
        // Earlier members of the job may have written to it.
        let appends = world.generation().is_some_and(|generation| generation > 1);
        let metrics = if first { Some(MetricsFile::open(directory, appends)?) } else { None };
        let began = match world.generation() {
            Some(_) => run.memory().began(),
            None => Instant::now(),
        };
        let progress = EpochProgress::new(world.rank(), steps);
        Ok(RunLog {
            run,
            world,
            progress,
            metrics,
            is_lost: false,
            began,
            epoch: 0,
            ended: Vec::new(),
            count: 0.0,
            blocked_s: 0.0,
            steps_s: 0.0,
            samples: 0.0,
            work: None,
            rate,
            steps: 0,
            resumed_at: 0,
            is_continued: false,
            earlier: Vec::new(),
            sent_before: 0,
            bytes: 0,
            loss: f64::NAN,
        })
    }

    /// Counts from the step that the training begins with, and bytes from here.
    pub(super) fn resumed(&mut self, steps: u64) {
        self.steps = steps;
        self.resumed_at = steps;
        self.sent_before = self.world.traffic().payload_sent();
    }

    /// Reports that the training continues among different members, after these losses in the epoch.
    pub(super) fn continued(&mut self, earlier: Vec<f64>) {
        self.is_continued = true;
        self.earlier = earlier;
        self.say(&format!("continues at step {} with {} ranks", self.resumed_at, self.world.size()));
    }

    /// Brings the figures of earlier members of the job to the step and the epoch, from 0, from which the training continues:
    /// later ones are removed, and those of `earlier` steps that are missing are added.
    pub(super) fn restore(&mut self, epoch: u64, earlier: &[TrainedStep]) {
        let Some(metrics) = &mut self.metrics else { return };
        let mut restored = metrics.take_back(self.steps, epoch);
        for own in earlier {
            restored = restored.and_then(|()| {
                metrics.step(StepMetrics {
                    epoch: own.epoch + 1,
                    step: own.step,
                    loss: own.loss,
                    learning_rate: self.rate.at(own.step - 1),
                    seconds: own.ended.as_secs_f64(),
                    metrics: own.metrics.clone(),
                    tokens: Vec::new(),
                })
            });
        }
        let restored = restored.and_then(|()| metrics.flush());
        self.lost(restored.err());
    }

    /// Begins an epoch, which counts from 0.
    pub(super) fn begin(&mut self, epoch: u64) {
        self.epoch = epoch + 1;
        self.ended.clear();
        self.progress.epoch(format!("epoch {}/{}", self.epoch, self.run.options.epochs));
    }

    /// Counts a step with the loss of its batch, and the algorithm's metrics. Returns when it ended.
    pub(super) fn step(&mut self, loss: f64, metrics: &BTreeMap<String, f64>) -> Duration {
        let ended = self.began.elapsed();
        self.ended.push((ended, metrics.clone()));
        self.progress.step(loss);
        ended
    }

    /// Gathers the time and traffic of all ranks in the epoch, and reports them. A collective call.
    ///
    /// # Errors
    /// Those of the communication.
    pub(super) fn end(
        &mut self,
        comm: &Communicator,
        losses: &[f64],
        evaluation: Evaluation<f64>,
        (spent, work): (Spent, Option<StepWork>),
    ) -> Result<(), RunError> {
        let mut sums = spent.numbers();
        comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
        let [count, blocked, steps, bytes_sent, samples] = sums;
        let first_step = self.steps + 1;
        let all = [&std::mem::take(&mut self.earlier), losses].concat();
        self.loss = all.iter().sum::<f64>() / all.len() as f64;
        self.count += count;
        self.blocked_s += blocked;
        self.steps_s += steps;
        self.bytes += bytes_sent as u64;
        self.samples += samples;
        if let Some(work) = &work {
            self.work.get_or_insert_default().add(work.clone());
        }
        self.steps += losses.len() as u64;
        let epoch = EpochMetrics {
            epoch: self.epoch,
            loss: self.loss,
            test_accuracy: evaluation.result,
            consensus_distance: evaluation.consensus_distance,
            samples_per_s: samples * comm.size() as f64 / steps,
            comm_fraction: blocked / steps,
            bytes_sent: bytes_sent as u64,
            seconds: self.began.elapsed().as_secs_f64(),
            work,
        };
        self.progress.line(describe(&epoch, self.run.options.epochs));
        self.keep(first_step, losses, epoch);
        // The evaluation's traffic does not count as the training's.
        self.sent_before = self.world.traffic().payload_sent();
        Ok(())
    }

    /// Writes the figures of an epoch and its steps, on rank 0.
    fn keep(&mut self, first_step: u64, losses: &[f64], epoch: EpochMetrics) {
        let Some(metrics) = &mut self.metrics else { return };
        let mut kept = Ok(());
        let mut tokens = epoch.work.iter().flat_map(|work| &work.tokens);
        for (step, (loss, (ended, given))) in (first_step..).zip(losses.iter().zip(&self.ended)) {
            kept = kept.and(metrics.step(StepMetrics {
                epoch: self.epoch,
                step,
                loss: *loss,
                learning_rate: self.rate.at(step - 1),
                seconds: ended.as_secs_f64(),
                metrics: given.clone(),
                tokens: tokens.next().cloned().unwrap_or_default(),
            }));
        }
        let kept = kept.and(metrics.epoch(epoch));
        self.lost(kept.err());
    }

    /// Returns the bytes that this rank sent since the epoch began.
    pub(super) fn sent(&self) -> u64 {
        self.world.traffic().payload_sent() - self.sent_before
    }

    /// Warns once that figures are lost; the training continues.
    fn lost(&mut self, error: Option<impl std::fmt::Display>) {
        let Some(error) = error else { return };
        if !std::mem::replace(&mut self.is_lost, true) {
            self.say(&format!("{error}; the training continues"));
        }
    }

    /// Prints a message of this program on rank 0.
    fn say(&self, message: &str) {
        self.progress.line(format!("{}: {message}", self.run.subject.program));
    }

    /// Reports the options of a resumed training that differ from before.
    pub(super) fn changed(&self, differences: &[String]) {
        if !differences.is_empty() {
            self.say(&format!("continues with a change: {}", differences.join("; ")));
        }
    }

    /// Prints the file of the trace, and its main figures.
    pub(super) fn traced(&self, trace: &Trace, file: &Path) {
        self.progress.line(format!("{}\n{} is the trace", trace.report(), file.display()));
    }

    /// Warns of a failure that does not end the training.
    pub(super) fn warn(&self, warning: Option<String>) {
        warning.into_iter().for_each(|warning| self.say(&warning));
    }

    /// Reports it and returns true if the checkpoint was of the end of the training: after this many steps, none was
    /// made.
    pub(super) fn nothing_left(&self, steps: u64) -> bool {
        if steps > self.resumed_at || self.is_continued {
            return false;
        }
        let epochs = self.run.options.epochs;
        self.say(&format!(
            "the checkpoint is of step {steps}, the end of --epochs {epochs} already; give more epochs to continue"
        ));
        true
    }

    /// Reports the result of the training, and draws the run; returns the exit code.
    pub(super) fn finish(mut self, saves: &Saves, result: Judged) -> ExitCode {
        // The other ranks have no output.
        let Some(mut metrics) = self.metrics.take() else { return ExitCode::SUCCESS };
        let options = &self.run.options;
        let report = self.report(&result, saves.failed());
        let summarized = metrics.summary(&report.fields());
        self.lost(summarized.err());
        let sampler = report.work.as_ref().map(|(sampler, _)| format!(", {sampler}")).unwrap_or_default();
        let title =
            format!("{} on {} ranks over {}{sampler}", options.algorithm, report.ranks, options.transport);
        let directory = metrics.directory().to_owned();
        self.lost(
            picture::save(&directory.join("plot.svg"), &title, metrics.steps(), metrics.epochs()).err(),
        );
        self.warn(saves.summary());
        let told = match options.json {
            true => report.json().to_string(),
            false => {
                let files = match self.is_lost {
                    false => "metrics.jsonl and plot.svg are in",
                    true => "the figures could not all be written to",
                };
                format!("{}\n{files} {}", report.text(), directory.display())
            }
        };
        let is_kept = !self.is_lost && !saves.lacks_the_last();
        self.progress.finish();
        match print(&told) {
            Err(error) => error.report(self.run.subject.program),
            Ok(()) if is_kept => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
        }
    }

    /// Returns the report of the whole run.
    fn report(&self, result: &Judged, failed_saves: u64) -> RunReport {
        let CheckedRun { options, algorithm, stepper, subject, .. } = self.run;
        let ranks = self.world.size();
        let of_all_reduce = result.bytes_per_step * self.count / ranks as f64;
        RunReport {
            ranks,
            algorithm: options.algorithm.clone(),
            trigram: algorithm.trigram().symbol(),
            model: subject.model.clone(),
            device: options.device.to_string(),
            optimizer: stepper.optimizer.spelled(),
            learning_rate: stepper.learning_rate,
            transport: options.transport.to_string(),
            epochs: options.epochs,
            test_accuracy: result.test_accuracy,
            final_loss: self.loss,
            samples_per_s: self.samples * ranks as f64 / self.steps_s,
            steps_per_s: self.count / self.steps_s,
            bytes_sent: self.bytes,
            bytes_of_gradient_all_reduce: of_all_reduce as u64,
            comm_fraction: self.blocked_s / self.steps_s,
            replicas_identical: result.replicas_identical,
            failed_saves,
            work: subject.costs.as_ref().map(|costs| costs.sampler).zip(self.work.clone()),
            wall_s: since_launch().as_secs_f64(),
        }
    }
}

fn describe(epoch: &EpochMetrics, epochs: u64) -> String {
    let work = epoch.work.as_ref().map(|work| format!("\n          {}", work.text())).unwrap_or_default();
    format!(
        "epoch {:>2}/{epochs}  loss {:.4}  accuracy {:.2} %  apart {:.3}  {:>6.0} samples/s  {:>4.1} % communication  {} sent{work}",
        epoch.epoch,
        epoch.loss,
        100.0 * epoch.test_accuracy,
        epoch.consensus_distance,
        epoch.samples_per_s,
        100.0 * epoch.comm_fraction,
        bytes(epoch.bytes_sent)
    )
}
