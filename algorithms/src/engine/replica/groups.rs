//! The parameter groups and the state of the optimizer during training, for a framework that has both in objects of its
//! own.

use crate::engine::start::{check_groups, check_is_free, unfit};
use crate::engine::{DataParallel, EngineOptions, hooks};
use crate::optimizer::{Members, ParameterGroup};
use crate::plugin::StepForm;
use hexagram_logical::{Buffer, Error, Result};

/// State of the engine optimizer: see [`DataParallel::optimizer_state`].
pub struct OptimizerState {
    /// Number of steps that it has made on this rank.
    pub steps: u64,
    /// Values of each slot and parameter: slot name, parameter index, and a copy.
    pub slots: Vec<(String, usize, Buffer)>,
}

impl DataParallel {
    /// Sets the factors of learning rate and weight decay of the groups in [`EngineOptions::groups`], or of all
    /// parameters if there are no groups, in their order, from the next [`step`](Self::step) on. All ranks must set the
    /// same.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are two factors per group, at least 0, and the algorithm allows them.
    pub fn set_group_factors(&mut self, factors: &[(f64, f64)]) -> Result<()> {
        let all = [ParameterGroup::of(Members::Named("*".to_owned()))];
        let groups = if self.options.groups.is_empty() { &all[..] } else { &self.options.groups };
        if factors.len() != groups.len() {
            let what = format!("{} pairs of factors were given for {} groups", factors.len(), groups.len());
            return Err(Error::usage(what, "give one for each group of the options"));
        }
        let changed = groups.iter().zip(factors).map(|(group, (learning_rate, weight_decay))| {
            ParameterGroup { learning_rate: *learning_rate, weight_decay: *weight_decay, ..group.clone() }
        });
        let changed: Vec<ParameterGroup> = changed.collect();
        changed.iter().try_for_each(ParameterGroup::check)?;
        check_groups(&self.algorithm, &changed)?;
        self.replica.get_mut().set_groups(changed);
        Ok(())
    }

    /// Returns the state of the engine optimizer on this rank. Call it between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] while the algorithm works on parameters; errors of the communication of the last step.
    pub fn optimizer_state(&mut self) -> Result<OptimizerState> {
        self.wait_for_all()?;
        let plan = hooks::lock(&self.backward).plan().clone();
        let mut slots = Vec::new();
        for kept in self.replica.get_mut().memories(&plan)? {
            let Some(slot) = kept.name.strip_prefix("optimizer/") else { continue };
            for index in 0..plan.parameters().len() {
                let Some((buffer, range)) = kept.of(index) else { continue };
                let copy = buffer.zeroed_same_device(buffer.dtype(), range.len())?;
                copy.write_all()?.copy_from(&buffer.read(range)?)?;
                slots.push((slot.to_owned(), index, copy));
            }
        }
        Ok(OptimizerState { steps: self.present.updates, slots })
    }

    /// Restores a state that [`optimizer_state`](Self::optimizer_state) returned. Call it between steps, on all ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] if it belongs to another optimizer or model; nothing is changed then.
    pub fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        let own = self.optimizer_state()?;
        let outline = |state: &OptimizerState| {
            let mut all: Vec<_> = state
                .slots
                .iter()
                .map(|(slot, index, v)| (slot.clone(), *index, v.dtype() as u8, v.len()))
                .collect();
            all.sort();
            all
        };
        if outline(&own) != outline(state) {
            let what = "the state belongs to another optimizer or model";
            return Err(Error::usage(what, "pass the result of optimizer_state"));
        }
        let plan = hooks::lock(&self.backward).plan().clone();
        for kept in self.replica.get_mut().memories(&plan)? {
            for (slot, index, values) in &state.slots {
                if kept.name.strip_prefix("optimizer/") == Some(slot)
                    && let Some((buffer, range)) = kept.of(*index)
                {
                    buffer.write(range)?.copy_from(&values.read_all()?)?;
                }
            }
        }
        self.present.updates = state.steps;
        Ok(())
    }

    /// Returns the options of the engine, including the optimizer that the algorithm names.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }
}

impl DataParallel {
    /// Fails if an optimizer of the framework, whose steps have this form, does not fit the algorithm. The engine has
    /// no access to that optimizer: the training loop, or an adapter, calls this before the first step.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason.
    pub fn check_framework_optimizer(&self, form: StepForm, name: &str) -> Result<()> {
        match self.algorithm().optimizers().include(form) {
            true => check_is_free(self.algorithm()),
            false => Err(unfit(self.algorithm(), name)),
        }
    }
}
