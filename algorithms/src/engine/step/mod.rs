//! A step: forward pass, backward pass, optimizer, and the hooks of the algorithm around them.
//!
//! | file | content |
//! |---|---|
//! | `mod` | the calls of the training loop, in the order of a step |
//! | `clip` | clipping of gradients by their norm |
//! | `idle` | parameters that a step leaves unchanged |
//! | `join` | ranks that run out of data |
//! | `multi_gradient` | several gradients of one batch |
//! | `pending_buckets`, `wait_for` | buckets that a step leaves in progress; waits in the next forward pass |
//! | `rate` | the learning rate |

mod clip;
mod idle;
mod join;
mod multi_gradient;
mod pending_buckets;
mod rate;
mod wait_for;

pub use join::Uneven;
pub(super) use pending_buckets::PendingBuckets;

use super::hooks::{self, PassContents};
use super::runner::{BucketTransfer, HookStage, RunnerRequest};

use super::start::check_is_free;
use super::{DataParallel, Mode, Order, Unused};
use crate::optimizer::Optimizer;
use crate::plugin::StepInfo;
use crate::trace::Kind;
use hexagram_logical::{Error, ReadView, Result, runtime};
use std::sync::Arc;

impl DataParallel {
    /// Begins a training forward pass: algorithms that communicate parameters do so during that pass. A loop that does
    /// not call it loses the overlap; [`DataParallel::begin`] then does the work. The algorithm owns the parameters
    /// until [`DataParallel::finish`].
    ///
    /// # Errors
    /// The error that ended the communication thread, if it has failed.
    pub fn forward(&mut self) -> Result<()> {
        self.enter(Kind::Forward);
        self.follow_rate();
        // While parameters are in progress, their hooks cannot start: `begin` starts them later.
        let later = self.waits_for_the_end() || self.overlaps_forward();
        let outcome = self.announce(true).and_then(|_| if later { Ok(()) } else { self.begin_forward() });
        self.checked(outcome)
    }

    /// Returns true if all hooks of this step wait until the pass has ended.
    fn waits_for_the_end(&self) -> bool {
        !self.started || self.scaler.is_some()
    }

    /// Returns true if the hooks of the gradients wait until the pass has ended.
    fn holds_gradients(&self) -> bool {
        self.waits_for_the_end() || self.clips_before() || !self.is_last_evaluation()
    }

    pub(super) fn begin_forward(&mut self) -> Result<()> {
        if !self.forwarded {
            self.hand_over(HookStage::Forward, false)?;
            self.forwarded = true;
            self.unsettled = true;
        }
        Ok(())
    }

    /// Begins a backward pass.
    ///
    /// # Errors
    /// [`Error::Usage`] if the last pass was not finished, as only this rank would lose its gradients; or if an
    /// algorithm that works on parameters was not notified of the step after it.
    pub fn begin(&mut self, mode: Mode) -> Result<()> {
        self.enter(Kind::Backward);
        self.follow_rate();
        let outcome = self.begin_pass(mode);
        self.checked(outcome)
    }

    pub(super) fn begin_pass(&mut self, mode: Mode) -> Result<()> {
        self.complete()?;
        self.check_learning_rate()?;
        self.stepped_with_last()?;
        if mode == Mode::Synchronize {
            self.announce(true)?;
            if self.options.order == Order::Listed {
                self.start()?;
            }
            if !self.waits_for_the_end() {
                self.begin_forward()?;
            }
        }
        let held = self.holds_gradients();
        let mut backward = hooks::lock(&self.backward);
        backward.set_present(self.present);
        backward.begin(mode, held)
    }

    /// Ends a backward pass: waits until every bucket has been communicated, or leaves them in progress with
    /// [`Overlap::Forward`](super::Overlap::Forward).
    ///
    /// With [`loss scaling`](super::EngineOptions::loss_scale),
    /// [`LossScaling::overflowed`](super::LossScaling::overflowed) then returns whether the step is skipped; if not,
    /// gradients were divided by the scale.
    ///
    /// # Errors
    /// [`Error::Usage`] with the names of the parameters without a gradient; [`Error::PeerFailed`] and other errors of
    /// the communication. Ranks cannot continue after an error.
    pub fn finish(&mut self) -> Result<()> {
        let outcome = self.finish_pass(self.options.unused);
        let ends_step = hooks::lock(&self.backward).results() != PassContents::None;
        self.enter(if ends_step { Kind::Optimizer } else { Kind::Between });
        self.checked(outcome)
    }

    pub(super) fn finish_pass(&mut self, unused: Unused) -> Result<()> {
        let Some(sent) = self.close_pass(unused)? else { return Ok(()) };
        if self.defers_gradients() {
            self.pending.get_mut().await_gradients(sent);
            return Ok(());
        }
        self.take_back_all(sent)?;
        self.queues.check()?;
        if self.overflowed() { Ok(()) } else { self.clip_after() }
    }

    /// Ends the pass on this thread; returns the number of buckets to wait for, or `None` if nothing is communicated,
    /// or because of an overflow.
    fn close_pass(&mut self, unused: Unused) -> Result<Option<usize>> {
        self.check_last_evaluation()?;
        let closed = hooks::lock(&self.backward).close(unused)?;
        let Some(mut sent) = closed else { return Ok(None) };
        self.announced = false;
        if self.scaler.is_some() && self.while_waiting(Self::overflows)? {
            return Ok(None);
        }
        self.agree_on_idle()?;
        let held = self.holds_gradients();
        if self.waits_for_the_end() {
            if !self.started {
                self.fix_order()?;
            }
            self.begin_forward()?;
        }
        if held {
            if self.clip_before()? {
                hooks::lock(&self.backward).set_results(PassContents::Overflowed);
                return Ok(None);
            }
            sent = hooks::lock(&self.backward).send_all()?;
        }
        Ok(Some(sent))
    }

    /// Undoes the scaling of the loss, or finds an overflow.
    fn overflows(&mut self) -> Result<bool> {
        let Some(scaler) = &mut self.scaler else { return Ok(false) };
        // Ranks that do not wait for each other do not make the same steps either.
        let comm = self.algorithm.trigram().synchronous.then_some(&self.comm);
        let mut backward = hooks::lock(&self.backward);
        let overflow = scaler.undo(comm, &backward.buffers()?)?;
        scaler.update(overflow)?;
        if overflow {
            backward.set_results(PassContents::Overflowed);
        }
        Ok(overflow)
    }

    /// Returns true if the last pass has overflowed.
    pub(super) fn overflowed(&self) -> bool {
        hooks::lock(&self.backward).results() == PassContents::Overflowed
    }

    /// Makes one step of the engine optimizer with the gradients of the last pass, and runs the hook of the algorithm
    /// after it. With [`Overlap::Forward`](super::Overlap::Forward) it does not wait: see [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// [`Error::Usage`] without an optimizer, a learning rate, or gradients; errors of the communication.
    pub fn step(&mut self) -> Result<()> {
        let outcome = self.optimize().and_then(|()| self.after_step());
        self.checked(outcome)
    }

    /// Ends the pass and steps: [`DataParallel::finish`] and [`DataParallel::step`] in one call. The optimizer steps on
    /// each bucket while later ones are still in progress, unless gradients are clipped after communication, as their
    /// norm covers all buckets. With [`Overlap::Forward`](super::Overlap::Forward) it waits for none.
    ///
    /// # Errors
    /// As both.
    pub fn finish_and_step(&mut self) -> Result<()> {
        if self.overlaps_forward() {
            return self.finish().and_then(|()| self.step());
        }
        self.finish_and_step_into(|_, _| Ok(()))
    }

    /// Ends the pass and steps, and passes the index and the new values of each parameter to `publish` as soon as they
    /// are final: after the step of its bucket, or at the end if the algorithm still works on them. It waits for all
    /// buckets.
    ///
    /// # Errors
    /// As both, and the first error of `publish`.
    pub fn finish_and_step_into<E: From<Error>>(
        &mut self,
        mut publish: impl FnMut(usize, &ReadView) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let early = !self.clips_after() && !self.algorithm.needs().parameters;
        let sent = self.checked_with(|engine| {
            engine.optimizer()?;
            match engine.clips_after() {
                true => engine.finish_pass(engine.options.unused).map(|()| None),
                false => engine.close_pass(engine.options.unused),
            }
        })?;
        if sent.is_none() {
            self.checked_with(Self::optimize)?;
        }
        for _ in 0..sent.unwrap_or_default() {
            let bucket = self.checked_with(Self::take_back_and_step)?;
            if early {
                self.publish(bucket, &mut publish)?;
            }
        }
        self.checked_with(|engine| engine.queues.check())?;
        self.checked_with(Self::after_step)?;
        self.checked_with(Self::complete)?;
        if sent.is_none() || !early {
            let buckets = hooks::lock(&self.backward).plan().buckets().len();
            (0..buckets).try_for_each(|bucket| self.publish(bucket, &mut publish))?;
        }
        Ok(())
    }

    pub(super) fn checked_with<R>(&mut self, work: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let outcome = work(self);
        self.checked(outcome)
    }

    fn take_back_and_step(&mut self) -> Result<usize> {
        let bucket = self.while_waiting(|engine| engine.take_back())?;
        self.enter(Kind::Optimizer);
        self.optimize_bucket(bucket, self.present)?;
        Ok(bucket)
    }

    /// Makes the optimizer step on a bucket that this thread owns.
    pub(super) fn optimize_bucket(&self, bucket: usize, step: StepInfo) -> Result<()> {
        let optimizer = self.optimizer()?;
        let backward = hooks::lock(&self.backward);
        let gradients = backward.buffer(bucket)?;
        let bytes = gradients.len() * gradients.dtype().size();
        self.record_step((step, bucket, bytes), &gradients.queue(), || {
            let mut replica = self.replica.borrow_mut();
            let idle = replica.parts_of(backward.plan(), bucket, backward.idle());
            replica.step(&*optimizer, step, bucket, gradients, &idle)
        })
    }

    fn publish<E: From<Error>>(
        &self,
        bucket: usize,
        publish: &mut impl FnMut(usize, &ReadView) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let backward = hooks::lock(&self.backward);
        let members = &backward.plan().buckets()[bucket].members;
        let replica = self.replica.borrow();
        members.iter().try_for_each(|(index, _)| publish(*index, &replica.get(backward.plan(), *index)?))
    }

    fn optimize(&mut self) -> Result<()> {
        self.optimizer()?;
        let backward = hooks::lock(&self.backward);
        let results = backward.results();
        let buckets = backward.plan().buckets().len();
        drop(backward);
        match results {
            PassContents::None => Err(Error::usage("no gradients are synchronized", "call finish first")),
            PassContents::Overflowed => Ok(()),
            PassContents::Synchronized => {
                let mut here = self.pending.get_mut().step(self.present, buckets).into_iter();
                here.try_for_each(|bucket| self.optimize_bucket(bucket, self.present))
            }
        }
    }

    fn optimizer(&self) -> Result<Arc<dyn Optimizer>> {
        self.check_learning_rate()?;
        self.options.optimizer.clone().ok_or_else(|| {
            let remedy = "set the option `optimizer`, or step with that of the framework";
            Error::usage("the engine has no optimizer", remedy)
        })
    }

    /// Notifies the engine that an optimizer of the framework has stepped; if the engine works on parameters, set them
    /// before. Runs the hook of the algorithm after the step.
    ///
    /// # Errors
    /// [`Error::Usage`] if the algorithm [names](crate::Optimizers::Named) an optimizer, or uses the state of the
    /// engine optimizer; errors of the communication.
    pub fn stepped(&mut self) -> Result<()> {
        let outcome = check_is_free(&self.algorithm).and_then(|()| self.complete());
        let outcome = outcome.and_then(|()| self.after_step());
        self.checked(outcome)
    }

    /// Notifies the engine that the step after the last pass is skipped, by a loop that has scaled the loss itself and
    /// found an overflow. The optimizer and its bias correction do not count it, nor does a warm-up of an algorithm
    /// that works only on gradients. An algorithm that works on parameters runs its hook and counts a step, since other
    /// ranks may have made a step.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn left_out(&mut self) -> Result<()> {
        let outcome = self.complete().and_then(|()| self.end_step(false));
        self.checked(outcome)
    }

    fn after_step(&mut self) -> Result<()> {
        self.end_step(true)
    }

    fn end_step(&mut self, has_stepped: bool) -> Result<()> {
        if !self.overflowed() && (has_stepped || self.algorithm.needs().parameters) {
            self.hooks_after_step()?;
            self.present.step += 1;
            self.present.updates += u64::from(has_stepped);
            self.present.evaluation = 0;
            self.forwarded = false;
        }
        self.present.loss = None;
        if self.pending.get_mut().is_empty() {
            self.metrics = self.collected.take();
        }
        hooks::lock(&self.backward).set_results(PassContents::None);
        self.enter(Kind::Between);
        self.tune()
    }

    /// Runs the hooks of the algorithm after the optimizer step, or leaves them in progress.
    fn hooks_after_step(&mut self) -> Result<()> {
        if !self.algorithm.needs().parameters {
            return Ok(());
        }
        if !self.overlaps_forward() {
            return self.run(HookStage::Step);
        }
        if self.algorithm.written().after_step {
            let handed = self.hand_over(HookStage::Step, true)?;
            self.pending.get_mut().await_hooks(handed);
        }
        Ok(())
    }

    /// Runs a hook on all buckets, between backward passes, and waits for it.
    pub(super) fn run(&mut self, stage: HookStage) -> Result<()> {
        let handed = self.hand_over(stage, true)?;
        self.take_back_all(handed)
    }

    /// Hands over the parameters of all buckets, with or without their gradients.
    fn hand_over(&mut self, stage: HookStage, gradients: bool) -> Result<usize> {
        let mut backward = hooks::lock(&self.backward);
        let buckets = backward.plan().buckets().len();
        if stage == HookStage::Forward && !self.algorithm.needs().parameters {
            return Ok(0);
        }
        // The communication thread still has the parameters from the hooks before the forward pass.
        let parameters = stage != HookStage::Evaluate && self.algorithm.needs().parameters;
        let slots = stage == HookStage::Step && self.algorithm.reads_slots();
        let mut replica = self.replica.borrow_mut();
        for bucket in 0..buckets {
            let memory = BucketTransfer {
                gradients: if gradients { Some(backward.take(bucket)?) } else { None },
                parameters: replica.lend(bucket, parameters)?,
                slots: if slots { replica.lend_slots(bucket) } else { None },
                overflowed: false,
            };
            self.scheduler.requests().send(RunnerRequest::Hook {
                stage,
                bucket,
                memory,
                present: self.present,
            })?;
        }
        Ok(buckets)
    }

    fn take_back_all(&mut self, buckets: usize) -> Result<()> {
        self.while_waiting(|engine| (0..buckets).try_for_each(|_| engine.take_back().map(drop)))
    }

    /// Waits for a bucket whose hooks are done; returns its index.
    pub(super) fn take_back(&self) -> Result<usize> {
        let started = runtime::now();
        let (bucket, memory) = self.scheduler.wait()?;
        if memory.overflowed {
            hooks::lock(&self.backward).set_results(PassContents::Overflowed);
        }
        if let Some(gradients) = memory.gradients {
            hooks::lock(&self.backward).take_back(bucket, gradients);
        }
        self.replica.borrow_mut().take_back(bucket, memory.parameters, memory.slots);
        self.blocked.set(self.blocked.get() + started.elapsed());
        Ok(bucket)
    }
}
