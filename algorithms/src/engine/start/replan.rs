//! Between steps: the final buckets after the first pass, and the switch to another algorithm.

use super::agree::agree;
use crate::engine::plan::ModelPlan;
use crate::engine::runner::HookStage;
use crate::engine::{DataParallel, check_algorithm, hooks};
use crate::plugin::AnyAlgorithm;
use hexagram_logical::{Error, ReduceOp, Result};

impl DataParallel {
    /// Fixes the order of the buckets: that in which the first pass of rank 0 completed the gradients.
    pub(crate) fn fix_order(&mut self) -> Result<()> {
        let plan = hooks::lock(&self.backward).plan().clone();
        let Some(order) = hooks::lock(&self.backward).observed() else { return Ok(()) };
        let mut order: Vec<i64> = order.into_iter().map(|index| index as i64).collect();
        self.comm.blocking().broadcast(&mut order, 0)?;
        let order: Vec<usize> = order.into_iter().map(|index| index as usize).collect();
        self.install(plan.reordered(&order, &self.options, self.algorithm.needs().buckets))
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        if self.started {
            return Ok(());
        }
        let plan = hooks::lock(&self.backward).plan().clone();
        // The plan may have been made for another algorithm.
        self.install(plan.recut(&self.options, self.algorithm.needs().buckets))
    }

    /// Continues with these buckets, moves the values into them, and makes the algorithm create its states.
    pub(crate) fn install(&mut self, plan: ModelPlan) -> Result<()> {
        let dtypes = plan.buckets().iter().map(|bucket| bucket.dtype);
        let buckets: Vec<_> = dtypes.zip(plan.tensors()).collect();
        let algorithm = self.algorithm.clone();
        let queues = self.queues.clone();
        let metrics = self.collected.clone();
        let urgency = self.overlaps_forward().then(|| plan.urgency());
        let made = self.scheduler.call(async move |runner| {
            runner.set_urgency(urgency);
            runner.install(algorithm, buckets, &queues, &metrics)
        })?;
        let (gradients, parameters): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let mut backward = hooks::lock(&self.backward);
        self.replica.get_mut().relocate(backward.plan(), &plan, &self.queues, parameters)?;
        backward.install(plan, gradients)?;
        drop(backward);
        self.started = true;
        self.run(HookStage::Start)?;
        self.collected.take();
        Ok(())
    }

    /// Switches to another algorithm, from the next step on. A collective call, between steps. The old algorithm
    /// settles, and its states are dropped. Parameters and optimizer state stay if replicas were identical. If the old
    /// algorithm allowed replicas to differ, all parameters become their mean, since the states of the new one may
    /// require equal parameters; so does the optimizer state, if the new one keeps replicas identical. If ranks have
    /// made different numbers of steps, all continue from the largest.
    ///
    /// # Errors
    /// [`Error::Usage`] if ranks switch to different algorithms; errors of the communication.
    pub fn switch(&mut self, algorithm: impl Into<AnyAlgorithm>) -> Result<()> {
        let outcome = self.switch_to(algorithm.into());
        self.checked(outcome)
    }

    fn switch_to(&mut self, algorithm: AnyAlgorithm) -> Result<()> {
        self.between_passes()?;
        let plan = hooks::lock(&self.backward).plan().clone();
        agree(&self.comm, plan.parameters(), &algorithm, &self.options)?;
        check_algorithm(&algorithm, &self.options)?;
        if algorithm.needs().parameters && !self.replica.get_mut().has_parameters() {
            let what = format!("{} works on parameters, which the engine does not have", algorithm.name());
            return Err(Error::usage(what, "use an engine optimizer, or start with such an algorithm"));
        }
        self.settle()?;
        let mut steps = [self.present.step as i64, self.present.updates as i64];
        self.comm.blocking().all_reduce(&mut steps, ReduceOp::Max)?;
        self.present.step = steps[0] as u64;
        self.present.updates = steps[1] as u64;
        self.present.begun = self.present.step;
        self.forwarded = false;
        self.fixed_facts.take();
        self.tune_anew();
        if !self.started {
            self.algorithm = algorithm;
            return Ok(());
        }
        self.mean_of_replicas(algorithm.keeps_replicas_identical())?;
        self.algorithm = algorithm;
        self.install(plan.recut(&self.options, self.algorithm.needs().buckets))
    }

    /// Completes the background work of the algorithm. A collective call, between steps; ranks may call it after
    /// different numbers of steps, and training continues afterwards without a difference. Call it after the last step.
    /// In an asynchronous training, a rank that ends without this call counts as failed, and ends the other ranks.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn settle(&mut self) -> Result<()> {
        let outcome = self.complete().and_then(|()| self.between_passes());
        // Without background work, there is nothing to ask of the communication thread.
        let has_work = self.started && self.algorithm.written().settle;
        let outcome = outcome.and_then(|()| if has_work { self.run(HookStage::Settle) } else { Ok(()) });
        let outcome = outcome.and_then(|()| if self.started { self.queues.check() } else { Ok(()) });
        self.unsettled &= outcome.is_err();
        self.collected.take();
        self.checked(outcome)
    }
}
