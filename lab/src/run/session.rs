//! One training on one rank: resumes it, counts its steps and epochs, saves it, evaluates the replicas, and reports.

use super::log::{Judged, RunLog};
use super::memory::TrainedStep;
use super::provenance::MadeWith;
use super::saves::{Resumed, Saves};
use super::share::by_step;
use super::spent::Spent;
use super::work::StepWork;
use super::{CheckedRun, RunError, Trained, baseline};
use hexagram::sampler::loader::{DataLoader, LoaderState};
use hexagram::{Communicator, ReduceOp};
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A running training, on one rank. All methods but [`epochs`](Self::epochs) are collective calls.
pub struct TrainingSession<'a> {
    run: &'a CheckedRun,
    comm: &'a Communicator,
    log: RunLog<'a>,
    saves: Saves,
    first_epoch: u64,
    epoch: CurrentEpoch,
    /// The part of the first epoch that earlier members of the job have trained.
    continued: Option<Continued>,
}

/// Part of an epoch before a change of members.
struct Continued {
    spent: Spent,
    position: LoaderState,
}

/// Current epoch.
struct CurrentEpoch {
    number: u64,
    /// Losses of this rank's batches so far.
    losses: Vec<f64>,
    /// Tokens of this rank's batches so far, where samples cost differently, and the number of samples.
    tokens: Vec<f64>,
    samples: usize,
    began: Instant,
    blocked_before: Duration,
    /// Time and bytes of the steps before a change of members.
    spent_before: Spent,
    /// Position of the loader after the last step.
    position: Option<LoaderState>,
}

impl CurrentEpoch {
    fn new(number: u64, blocked_before: Duration) -> Self {
        let began = Instant::now();
        CurrentEpoch {
            number,
            losses: Vec::new(),
            tokens: Vec::new(),
            samples: 0,
            began,
            blocked_before,
            spent_before: Spent::default(),
            position: None,
        }
    }
}

impl<'a> TrainingSession<'a> {
    /// Begins a training, or resumes one from a checkpoint if the options ask for that.
    ///
    /// # Errors
    /// If the schedule of the learning rate does not fit, the folder cannot be written, or the checkpoint cannot be
    /// loaded.
    pub fn begin<B: Send + 'static>(
        run: &'a CheckedRun,
        comm: &'a Communicator,
        replica: &mut impl Trained,
        loader: &mut DataLoader<B>,
    ) -> Result<Self, RunError> {
        let steps = loader.len().unwrap_or(0) as u64;
        let rate = run.schedule(steps)?;
        let mut log = RunLog::new(run, comm.world(), (steps, rate))?;
        let generation = comm.world().generation();
        let saves = Saves::new(&run.options, MadeWith::of(run, rate), generation.is_some());
        if run.options.trace.is_some() {
            replica.trace()?;
        }
        let (resumed, is_continued) = Self::resume(run, &saves, replica, loader)?;
        // After resuming: a learning rate that has changed replaces the one that was saved.
        replica.set_learning_rate(rate);
        saves.check(replica)?;
        let step = replica.engine().steps();
        let mut earlier = match generation > Some(1) {
            true => run.memory().earlier(comm, step)?,
            false => Vec::new(),
        };
        log.resumed(step);
        if generation > Some(1) {
            log.restore(resumed.epoch, &earlier);
        }
        earlier.retain(|own| own.epoch == resumed.epoch);
        let spent = earlier.last().map(|own| own.spent).unwrap_or_default();
        let continued = is_continued.then(|| Continued { spent, position: loader.state() });
        if is_continued {
            log.continued(earlier.into_iter().map(|own| own.loss).collect());
        } else {
            log.changed(&resumed.changed);
        }
        let epoch = CurrentEpoch::new(resumed.epoch, Duration::ZERO);
        Ok(TrainingSession { run, comm, log, saves, first_epoch: resumed.epoch, epoch, continued })
    }

    /// Continues from the last steps of the members of an elastic job, or from a checkpoint if the options ask for that. Returns
    /// true in the first case.
    fn resume<B: Send + 'static>(
        run: &CheckedRun,
        saves: &Saves,
        replica: &mut impl Trained,
        loader: &mut DataLoader<B>,
    ) -> Result<(Resumed, bool), RunError> {
        let generation = replica.engine().communicator().world().generation();
        if generation.is_some()
            && let Some(continued) = Saves::continue_kept(replica, loader, &mut run.memory().snapshots)?
        {
            return Ok((continued, true));
        }
        // Without any rank that has the last steps, a later generation continues from the newest checkpoint.
        let resumed = match run.options.resume || generation > Some(1) {
            true => saves.resume(replica, loader, run.options.change)?,
            false => Resumed::default(),
        };
        Ok((resumed, false))
    }

    /// Returns the numbers of the epochs that are left.
    pub fn epochs(&self) -> Range<u64> {
        self.first_epoch..self.run.options.epochs
    }

    /// Begins an epoch.
    pub fn begin_epoch(&mut self, number: u64, replica: &impl Trained) {
        self.log.begin(number);
        let blocked_before = replica.engine().telemetry().blocked();
        self.epoch = CurrentEpoch::new(number, blocked_before);
        if let Some(Continued { spent, position }) = self.continued.take() {
            self.epoch.spent_before = spent;
            self.epoch.position = Some(position);
        }
        self.run.memory().forget();
    }

    /// Counts the samples of the next step's batch, and returns the weight of its gradient in the mean over ranks: its
    /// tokens over those of an average batch, so that each token counts the same, whichever rank has it. 1 if all samples
    /// cost the same. Needed before each step only if they do not.
    pub fn weight(&mut self, samples: &[usize]) -> f32 {
        let Some(costs) = &self.run.subject.costs else { return 1.0 };
        let tokens = costs.sum(samples);
        self.epoch.tokens.push(tokens);
        self.epoch.samples += samples.len();
        (tokens / costs.of_batch(self.run.options.batch)) as f32
    }

    /// Counts a step with the loss of its batch; the loader is then at `position`. Saves the training if a checkpoint
    /// is due.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn step(
        &mut self,
        replica: &mut impl Trained,
        loss: f64,
        position: LoaderState,
    ) -> Result<(), RunError> {
        self.epoch.losses.push(loss);
        if self.run.subject.costs.is_none() {
            self.epoch.samples += self.run.options.batch;
        }
        let ended = self.log.step(loss, replica.engine().metrics());
        if self.comm.world().generation().is_some() {
            let step = self.trained(replica, loss, ended);
            let mut memory = self.run.memory();
            memory.push(step);
            replica.keep(&mut memory.snapshots, &|| Saves::own(&position, self.comm.size()))?;
        }
        if self.saves.is_due(replica.engine().steps()) {
            self.log.warn(self.saves.finish(replica)?);
            self.log.warn(self.saves.begin(replica, &position)?);
        }
        self.epoch.position = Some(position);
        Ok(())
    }

    /// Returns the last step of this rank, with its figures.
    fn trained(&self, replica: &impl Trained, loss: f64, ended: Duration) -> TrainedStep {
        let CurrentEpoch { number, tokens, .. } = &self.epoch;
        let engine = replica.engine();
        let (blocked, steps) = self.time(replica);
        TrainedStep {
            epoch: *number,
            step: engine.steps(),
            loss,
            tokens: tokens.last().copied().unwrap_or(1.0),
            ended,
            metrics: engine.metrics().clone(),
            spent: self.spent(blocked, steps),
        }
    }

    /// Returns the time of this rank's steps in the epoch so far, waiting for communication and in all, since a change of
    /// members.
    fn time(&self, replica: &impl Trained) -> (Duration, Duration) {
        let blocked = replica.engine().telemetry().blocked() - self.epoch.blocked_before;
        (blocked, self.epoch.began.elapsed())
    }

    /// Returns time and bytes of this rank's steps in the epoch so far, also before a change of members.
    fn spent(&self, blocked: Duration, steps: Duration) -> Spent {
        let CurrentEpoch { losses, samples, spent_before, .. } = &self.epoch;
        let (bytes, count) = (self.log.sent(), losses.len());
        spent_before.plus(Spent { count, blocked, steps, bytes, samples: *samples })
    }

    /// Ends an epoch: saves the training after the last one, evaluates the mean of the replicas, and reports both.
    ///
    /// # Errors
    /// Errors of the communication and of the evaluation.
    pub fn end_epoch(&mut self, replica: &mut impl Trained) -> Result<(), RunError> {
        // Without a step, the last checkpoint was of the end of an epoch.
        let Some(position) = self.epoch.position.take() else { return Ok(()) };
        let is_last = self.epoch.number + 1 == self.run.options.epochs;
        // If the members have changed after the last step, its save may be lost.
        let is_repeated = self.epoch.losses.is_empty();
        if is_last && self.saves.is_due_at_the_end(replica.engine().steps(), is_repeated) {
            self.log.warn(self.saves.finish(replica)?);
            self.log.warn(self.saves.begin(replica, &position)?);
        }
        let (blocked, steps) = self.time(replica);
        if !self.run.algorithm.trigram().synchronous {
            // Messages in flight are the algorithm's traffic, not the evaluation's.
            replica.settle()?;
        }
        let work = self.work(blocked, steps)?;
        let losses = self.losses(work.as_ref())?;
        let spent = self.spent(blocked, steps);
        let evaluation = replica.evaluate()?;
        self.log.end(self.comm, &losses, evaluation, (spent, work))
    }

    /// Returns the mean loss of each step over all ranks, or over their tokens.
    fn losses(&self, work: Option<&StepWork>) -> Result<Vec<f64>, RunError> {
        let mut losses = self.epoch.losses.clone();
        let Some(work) = work else {
            if !losses.is_empty() {
                self.comm.blocking().all_reduce(&mut losses, ReduceOp::Mean)?;
            }
            return Ok(losses);
        };
        losses.iter_mut().zip(&self.epoch.tokens).for_each(|(loss, tokens)| *loss *= tokens);
        self.comm.blocking().all_reduce(&mut losses, ReduceOp::Sum)?;
        let sums = work.tokens.iter().map(|ranks| ranks.iter().sum::<f64>());
        losses.iter_mut().zip(sums).for_each(|(loss, tokens)| *loss /= tokens);
        Ok(losses)
    }

    /// Gathers the work of all ranks in the epoch, where samples cost differently.
    fn work(&self, blocked: Duration, steps: Duration) -> Result<Option<StepWork>, RunError> {
        let Some(costs) = &self.run.subject.costs else { return Ok(None) };
        if self.epoch.losses.is_empty() {
            return Ok(None);
        }
        let ranks = self.comm.size();
        let tokens = &self.epoch.tokens[..];
        let own = [tokens, &[blocked.as_secs_f64(), steps.as_secs_f64()]].concat();
        let mut all = vec![0.0; own.len() * ranks];
        self.comm.blocking().all_gather(&own, &mut all)?;
        let of = |rank: &[f64], at: usize| rank[tokens.len() + at];
        let by_rank: Vec<&[f64]> = all.chunks_exact(own.len()).collect();
        let steps: Vec<Vec<f64>> = by_rank.iter().map(|rank| rank[..tokens.len()].to_vec()).collect();
        let options = &self.run.options;
        Ok(Some(StepWork {
            tokens: by_step(&steps),
            waited: by_rank.iter().map(|rank| of(rank, 0)).collect(),
            seconds: by_rank.iter().map(|rank| of(rank, 1)).collect(),
            at_random: costs.at_random(self.epoch.number, ranks, (options.batch, options.seed))?,
        }))
    }

    /// Ends the training: evaluates the mean of the replicas, and reports. Returns the exit code.
    ///
    /// # Errors
    /// If the trace cannot be written, or replicas differ under an algorithm that keeps them identical.
    pub fn finish(mut self, replica: &mut impl Trained) -> Result<ExitCode, RunError> {
        self.log.warn(self.saves.finish(replica)?);
        if self.log.nothing_left(replica.engine().steps()) {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(file) = &self.run.options.trace
            && let Some(trace) = replica.collect()?
        {
            trace.save(file)?;
            self.log.traced(&trace, file);
        }
        let replicas_identical = replica.is_identical()?;
        replica.average()?;
        let test_accuracy = replica.evaluate()?.result;
        let bytes_per_step = baseline::bytes_per_step(replica.engine())?;
        let code = self.log.finish(&self.saves, Judged { test_accuracy, replicas_identical, bytes_per_step });
        if self.comm.world().generation().is_some() {
            // If rank 0 dies before it has reported, the others repeat that.
            self.comm.blocking().barrier()?;
        }
        let algorithm = &self.run.algorithm;
        if !replicas_identical && algorithm.keeps_replicas_identical() {
            return Err(format!("the replicas differ, which {} must not allow", algorithm.name()).into());
        }
        Ok(code)
    }
}
