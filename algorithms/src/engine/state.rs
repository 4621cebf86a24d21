//! Saving and restoring the engine state: [`checkpoint`](crate::checkpoint) writes it to files, and training continues
//! from it bit for bit.
//!
//! ```text
//! algorithm, algorithm-options, ranks, rank, step, learning-rate, model      facts
//! updates                                the number of steps, without skipped ones
//! optimizer-options                      optimizer, groups and learning rate of the options
//! algorithm-begun                        the first step of the algorithm
//! tuned/…                                the result of autotune
//! plan/order, plan/members, plan/counts  the present buckets: expected order, and places of parameters
//! scaler/scale, scaler/clean             if the loss is scaled
//! parameter/<name>                       if the engine owns them
//! optimizer/<slot>/<name>                the optimizer state, by parameter, independent of the buckets;
//!                                        nothing if its slot has no elements for the parameter
//! algorithm/<bucket>/<field>             the fields that the algorithm declares in `checkpoint`
//! shared, averaged, chunked              facts: the names of fields that survive among a different number of ranks
//! weight/<parameter>                     facts: weights in the mean of the replicas, if they are not 1
//! ```

use super::captured::{CapturedState, Facts, kept_shape};
use super::hooks::PassContents;
use super::plan::{ModelPlan, PlanLayout, wide};
use super::{DataParallel, EngineOptions, hooks};
use crate::host_copy::on_host_again;
use crate::plugin::{Field, Fields, StepInfo};
use crate::record::{Record, all_or_none, described, does_not_fit};
use hexagram_logical::{Buffer, Error, ReduceOp, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State of an engine, for saving and restoring: see [`DataParallel::checkpoint`].
///
/// ```
/// use hexagram::algorithms::DataParallel;
/// use hexagram::logical::Result;
///
/// /// Goes on in `new` where `old` is.
/// fn hand_over(old: &mut DataParallel, new: &mut DataParallel) -> Result<()> {
///     let record = old.checkpoint().save()?;
///     new.checkpoint().load(record)
/// }
/// ```
pub struct Checkpoint<'a>(&'a mut DataParallel);

impl DataParallel {
    /// Returns the methods that save and load the engine state. [`Checkpoints`](crate::Checkpoints) stores it in files.
    pub fn checkpoint(&mut self) -> Checkpoint<'_> {
        Checkpoint(self)
    }
}

impl Checkpoint<'_> {
    /// Returns the complete state, except that of the framework: step, learning rate, buckets, parameters and optimizer
    /// state if the engine has them, and the state of the algorithm. A collective call, between steps; background work
    /// of the algorithm is [settled](DataParallel::settle) first.
    ///
    /// # Errors
    /// [`Error::Usage`] during a step, or with accumulated gradients that no step has used, which a checkpoint would
    /// lose; errors of the communication.
    pub fn save(&mut self) -> Result<Record> {
        all_or_none(&self.0.comm, self.0.between_steps())?;
        self.0.captured(|| None)?.into_record()
    }

    /// Copies the state that [`save`](Self::save) returns, but does not check first that all ranks can. Without background work
    /// of the algorithm, it is not a collective call. Reuses the memory of an `earlier` state, which it asks for when no
    /// communication is left that could fail.
    pub(crate) fn capture(
        &mut self,
        earlier: impl FnOnce() -> Option<CapturedState>,
    ) -> Result<CapturedState> {
        self.0.between_steps()?;
        self.0.captured(earlier)
    }

    /// Restores a state that [`save`](Self::save) returned: the next steps equal those of an uninterrupted run, bit for
    /// bit, if the algorithm is deterministic. A collective call, between steps or before the first, on an engine
    /// created with the same parameters, algorithm, options and ranks. The saved buckets replace those of the options;
    /// parameters need not be set before.
    ///
    /// # Errors
    /// [`Error::Usage`] on every rank if the record of one rank does not fit, with the difference. Nothing is changed
    /// then, unless only the state of the algorithm does not fit: after that, no rank can continue.
    pub fn load(&mut self, record: Record) -> Result<()> {
        self.load_if_read(Ok(record))
    }

    /// Restores a state like [`load`](Self::load), if this rank may have failed to read its own: the other ranks are
    /// notified then, and do not wait.
    ///
    /// # Errors
    /// As [`load`](Self::load), and the error of a record on every rank.
    pub fn load_if_read(&mut self, record: Result<Record>) -> Result<()> {
        self.0.load_state(record, Saver::SameRank)
    }

    /// Restores a state of a different number of ranks. Fields of the algorithm that cannot be kept were removed from it, and
    /// begin anew.
    pub(crate) fn load_resized(&mut self, record: Record) -> Result<()> {
        self.0.load_state(Ok(record), Saver::OtherRanks)
    }
}

/// Name of the fact that a part of the algorithm begins anew.
pub(crate) const BEGINS_ANEW: &str = "begins-anew";

/// The training that has saved a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saver {
    /// This rank, in a world of the current size.
    SameRank,
    /// A rank among more or fewer.
    OtherRanks,
}

impl DataParallel {
    /// Copies the state between steps, into the memory of an earlier one where possible.
    fn captured(&mut self, earlier: impl FnOnce() -> Option<CapturedState>) -> Result<CapturedState> {
        self.settle()?;
        let earlier = earlier();
        let facts = self.facts()?;
        let plan = hooks::lock(&self.backward).plan().clone();
        let mut memory = earlier.into_iter().flat_map(CapturedState::into_buffers);
        let mut parts = Vec::new();
        for part in self.replica.get_mut().memories(&plan)? {
            let mut copies = Vec::new();
            for index in 0..plan.parameters().len() {
                let Some((buffer, range)) = part.of(index) else { continue };
                copies.push((index, on_host_again(&buffer.read(range)?, memory.next())?));
            }
            parts.push((part.name, copies));
        }
        let mut scaler = Fields::saving();
        self.scaler.iter_mut().try_for_each(|it| it.checkpoint(&mut scaler))?;
        let has_states = self.started && !self.algorithm.is_stateless();
        let (fields, weights) =
            if has_states { (self.scheduler.fields()?, self.weights()?) } else { (Vec::new(), Vec::new()) };
        let scaler = scaler.finish()?;
        Ok(CapturedState { facts, plan, started: self.started, parts, scaler, fields, weights })
    }

    /// Returns the state of the algorithm, by bucket. No communication is in progress.
    pub(super) fn algorithm_state(&self) -> Result<Vec<BTreeMap<String, Buffer>>> {
        let values = |fields: BTreeMap<String, Field>| {
            fields.into_iter().map(|(name, field)| (name, field.values)).collect()
        };
        Ok(self.scheduler.fields()?.into_iter().map(values).collect())
    }

    /// Restores the result of [`algorithm_state`](Self::algorithm_state), into equal buckets.
    pub(super) fn set_algorithm_state(&self, saved: Vec<BTreeMap<String, Buffer>>) -> Result<()> {
        self.scheduler.load_fields(saved, Fields::loading)
    }

    fn facts(&self) -> Result<Facts> {
        let fixed = match self.fixed_facts.get() {
            Some(fixed) => Arc::clone(fixed),
            None => {
                let fixed = self.describe()?;
                Arc::clone(self.fixed_facts.get_or_init(|| Arc::new(fixed)))
            }
        };
        Ok(Facts { fixed, present: self.present, rate: self.rate, tuned: self.tuned() })
    }

    /// Returns the facts that stay until the algorithm is switched.
    fn describe(&self) -> Result<BTreeMap<String, String>> {
        let backward = hooks::lock(&self.backward);
        let mut record = Record::default();
        if self.works_on_parameters() {
            check_names(backward.plan())?;
        }
        record.note("algorithm", self.algorithm.name());
        record.note("algorithm-options", format!("{:?}", self.algorithm));
        record.note("ranks", self.comm.size());
        record.note("rank", self.comm.rank());
        record.note("model", model(backward.plan()));
        record.note("optimizer-options", self.optimizer_options());
        Ok(record.facts)
    }

    /// Returns the engine options that affect the optimizer step.
    fn optimizer_options(&self) -> String {
        let EngineOptions { optimizer, groups, learning_rate, .. } = &self.options;
        let optimizer = optimizer.as_ref().map_or("no optimizer".to_owned(), |it| format!("{it:?}"));
        let rate = learning_rate.map_or(String::new(), |rate| format!(" at {rate}"));
        let groups = if groups.is_empty() { String::new() } else { format!(" with {groups:?}") };
        format!("{optimizer}{rate}{groups}")
    }

    fn between_steps(&self) -> Result<()> {
        let backward = hooks::lock(&self.backward);
        let refuse = |what: &str| {
            let what = format!("a checkpoint was requested {what}");
            Err(Error::usage(what, "save and load after step or stepped, before the next forward"))
        };
        if backward.is_open() {
            return refuse("within a backward pass");
        }
        if backward.results() != PassContents::None {
            return refuse("between a backward pass and its step");
        }
        if self.present.evaluation > 0 {
            return refuse("between two gradients of a step");
        }
        if backward.has_accumulated() {
            return refuse("with gradients accumulated that no step has used");
        }
        if self.forwarded && self.algorithm.needs().parameters {
            return refuse("within a forward pass");
        }
        Ok(())
    }

    fn load_state(&mut self, record: Result<Record>, saver: Saver) -> Result<()> {
        let complete = self.complete();
        let record = complete.and_then(|()| self.between_steps()).and(record);
        let fits = record.and_then(|record| Ok((self.fitting(&record, saver)?, record)));
        let (plan, mut record) = all_or_none(&self.comm, fits)?;
        let outcome = self.put_in(&mut record, plan, saver);
        self.checked(outcome)
    }

    /// Returns the plan of a record that fits this engine, if it has one.
    fn fitting(&self, record: &Record, saver: Saver) -> Result<Option<ModelPlan>> {
        let own = self.facts()?.into_record();
        let same: &[&str] =
            if saver == Saver::SameRank { &["algorithm", "ranks", "rank"] } else { &["algorithm"] };
        for name in same {
            let saved: String = record.noted(name)?;
            let own: String = own.noted(name)?;
            if saved != own {
                return Err(does_not_fit(format!("is of {name} {saved}, not {own}")));
            }
        }
        same_model(&record.noted::<String>("model")?, &own.noted::<String>("model")?)?;
        let change = "switch to the new ones";
        same_options(
            &record.noted::<String>("algorithm-options")?,
            &format!("{:?}", self.algorithm),
            change,
        )?;
        let change = "change the learning rate with set_learning_rate";
        same_options(&record.noted::<String>("optimizer-options")?, &self.optimizer_options(), change)?;
        record.noted::<u64>("step")?;
        record.noted::<u64>("algorithm-begun")?;
        let backward = hooks::lock(&self.backward);
        self.has_all_memories(record, backward.plan())?;
        if record.tensor("scaler/scale").is_ok() != self.scaler.is_some() {
            let says = |scaled: bool| if scaled { "a scaled loss" } else { "an unscaled loss" };
            let own = says(self.scaler.is_some());
            let saved = says(self.scaler.is_none());
            return Err(does_not_fit(format!("is of {saved}, and this engine of {own}")));
        }
        match record.tensor("plan/members") {
            Err(_) => Ok(None),
            Ok(_) => {
                let order = record.get("plan/order")?;
                let members = record.get("plan/members")?;
                let layout = PlanLayout { order, members, counts: record.get("plan/counts")? };
                backward.plan().with_layout(&layout).map(Some)
            }
        }
    }

    /// Fails unless the record has exactly the parameters and optimizer slots of the engine.
    fn has_all_memories(&self, record: &Record, plan: &ModelPlan) -> Result<()> {
        let mut expected = 0;
        for kept in self.replica.borrow().memories(plan)? {
            for (index, parameter) in plan.parameters().iter().enumerate() {
                let Some((_, range)) = kept.of(index) else { continue };
                let name = format!("{}/{}", kept.name, parameter.name);
                let saved = record.tensor(&name)?;
                let saved = described(saved.values.dtype(), &saved.shape);
                let own = described(wide(parameter.dtype), &kept_shape(parameter, range.len()));
                if saved != own {
                    return Err(does_not_fit(format!("has {saved} as `{name}`, not {own}")));
                }
                expected += 1;
            }
        }
        let of_it = |name: &&str| name.starts_with("parameter/") || name.starts_with("optimizer/");
        let found = record.tensors().map(|(name, _)| name).filter(of_it).count();
        if found != expected {
            let what = format!("has {found} tensors of parameters and optimizer, this engine {expected}");
            return Err(does_not_fit(what));
        }
        Ok(())
    }

    fn put_in(&mut self, record: &mut Record, plan: Option<ModelPlan>, saver: Saver) -> Result<()> {
        self.settle()?;
        let old = hooks::lock(&self.backward).plan().clone();
        for kept in self.replica.get_mut().memories(&old)? {
            for (index, parameter) in old.parameters().iter().enumerate() {
                let Some((buffer, range)) = kept.of(index) else { continue };
                let saved = &record.tensor(&format!("{}/{}", kept.name, parameter.name))?.values;
                buffer.write(range)?.copy_from(&saved.read_all()?)?;
            }
        }
        self.present.step = record.noted("step")?;
        self.present.updates =
            if record.notes("updates") { record.noted("updates")? } else { self.present.step };
        self.present.begun = record.noted("algorithm-begun")?;
        if record.notes("learning-rate") {
            self.rate = Some(record.noted("learning-rate")?);
            self.follow_rate();
        }
        if saver == Saver::OtherRanks {
            self.agree_on_steps(record.notes(BEGINS_ANEW))?;
        }
        self.forwarded = false;
        if let Some(scaler) = &mut self.scaler {
            let mut fields = Fields::loading(buffers(record.detach("scaler")));
            scaler.checkpoint(&mut fields)?;
        }
        let Some(plan) = plan else {
            // It was saved before the algorithm had states: the algorithm creates new ones.
            return if self.started { self.install(old) } else { Ok(()) };
        };
        let count = plan.buckets().len();
        self.install(plan)?;
        let mut states = record.detach("algorithm");
        let states = (0..count).map(|bucket| buffers(states.detach(&bucket.to_string()))).collect();
        if saver == Saver::OtherRanks {
            return all_or_none(&self.comm, self.scheduler.load_fields(states, Fields::loading_some));
        }
        self.restore_tuning(record)?;
        all_or_none(&self.comm, self.set_algorithm_state(states))
    }
}

impl DataParallel {
    /// Takes the most steps of any rank, since those of an asynchronous algorithm differ. An algorithm of which a part
    /// begins anew takes its first step next.
    fn agree_on_steps(&mut self, begins_anew: bool) -> Result<()> {
        let StepInfo { step, updates, begun, .. } = self.present;
        let mut most = [step, updates, begun, begins_anew.into()].map(|number| number as i64);
        self.comm.blocking().all_reduce(&mut most, ReduceOp::Max)?;
        let [step, updates, begun, begins_anew] = most.map(|number| number as u64);
        self.present =
            StepInfo { step, updates, begun: if begins_anew > 0 { step } else { begun }, ..self.present };
        Ok(())
    }
}

/// Fails if two parameters have the same name.
fn check_names(plan: &ModelPlan) -> Result<()> {
    let mut names = BTreeSet::new();
    match plan.parameters().iter().find(|parameter| !names.insert(&parameter.name)) {
        None => Ok(()),
        Some(parameter) => {
            let what = format!("two parameters are called `{}`", parameter.name);
            Err(Error::usage(what, "give each a unique name"))
        }
    }
}

fn buffers(record: Record) -> BTreeMap<String, Buffer> {
    record.tensors.into_iter().map(|(name, saved)| (name, saved.values)).collect()
}

/// Returns the parameters of the model, one per line.
fn model(plan: &ModelPlan) -> String {
    let line = |parameter: &super::Parameter| {
        format!("`{}` {}", parameter.name, described(parameter.dtype, &parameter.shape))
    };
    plan.parameters().iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Fails unless the options of a checkpoint are those of the engine; `change` is the remedy in the error.
fn same_options(saved: &str, own: &str, change: &str) -> Result<()> {
    if saved == own {
        return Ok(());
    }
    let what = format!("the checkpoint is of a training by {saved}, not {own}");
    Err(Error::usage(what, format!("load it with the options it was saved with, and then {change}")))
}

fn same_model(saved: &str, own: &str) -> Result<()> {
    let saved: Vec<&str> = saved.lines().collect();
    let own: Vec<&str> = own.lines().collect();
    for (saved, own) in saved.iter().zip(&own) {
        if saved != own {
            return Err(does_not_fit(format!("is of a model with {saved}, where this one has {own}")));
        }
    }
    if saved.len() != own.len() {
        let what = format!("is of a model of {} parameters, and this one has {}", saved.len(), own.len());
        return Err(does_not_fit(what));
    }
    Ok(())
}
