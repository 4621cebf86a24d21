//! A step: forward, backward, optimizer, and the algorithm's hooks around them.

use super::backward::{self, Results};
use super::clip::clip;
use super::flight::{self, Stage};
use super::scheduler::Memory;
use super::{DataParallel, Mode, Order, Unused};
use crate::trace::Kind;
use hexagram_logical::{Error, Result};
use std::time::Instant;

impl DataParallel {
    /// A training forward pass begins: algorithms that communicate parameters do it beside that pass. Whoever does not
    /// call it loses the overlap; [`DataParallel::begin`] makes up for it. The parameters are the algorithm's until
    /// [`DataParallel::finish`].
    ///
    /// # Errors
    /// What ended the communication thread, if it has failed.
    pub fn forward(&mut self) -> Result<()> {
        self.enter(Kind::Forward);
        let outcome = self.announce(true).and_then(|_| match self.waits_for_the_end() {
            true => Ok(()),
            false => self.begin_forward(),
        });
        self.checked(outcome)
    }

    /// Whether all hooks of this step wait until the pass has ended.
    fn waits_for_the_end(&self) -> bool {
        !self.started || self.scaler.is_some()
    }

    fn begin_forward(&mut self) -> Result<()> {
        if !self.forwarded {
            self.hand(Stage::Forward, false)?;
            (self.forwarded, self.unsettled) = (true, true);
        }
        Ok(())
    }

    /// Begins a backward pass.
    ///
    /// # Errors
    /// [`Error::Usage`] if the last one was not finished: its gradients would be lost on this rank only.
    pub fn begin(&mut self, mode: Mode) -> Result<()> {
        self.enter(Kind::Backward);
        let outcome = self.begun(mode);
        self.checked(outcome)
    }

    pub(super) fn begun(&mut self, mode: Mode) -> Result<()> {
        self.check_learning_rate()?;
        if mode == Mode::Synchronize {
            self.announce(true)?;
            if self.options.order == Order::Listed {
                self.start()?;
            }
            if !self.waits_for_the_end() {
                self.begin_forward()?;
            }
        }
        let mut backward = backward::lock(&self.backward);
        backward.set_turn(self.turn);
        backward.begin(mode)
    }

    /// Ends a backward pass: waits until every bucket was communicated.
    ///
    /// With [`loss scaling`](super::EngineOptions::loss_scale), [`DataParallel::overflowed`] then says whether the step
    /// is skipped; if not, gradients were divided by the scale.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameters without gradient, [`Error::PeerFailed`] and others from the
    /// communication. After an error no rank can go on.
    pub fn finish(&mut self) -> Result<()> {
        let outcome = self.finished(self.options.unused);
        let ends_step = backward::lock(&self.backward).results() != Results::None;
        self.enter(if ends_step { Kind::Optimizer } else { Kind::Between });
        self.checked(outcome)
    }

    pub(super) fn finished(&mut self, unused: Unused) -> Result<()> {
        let closed = backward::lock(&self.backward).close(unused)?;
        let Some(mut sent) = closed else { return Ok(()) };
        self.announced = false;
        if self.scaler.is_some() && self.while_waiting(Self::overflows)? {
            return Ok(());
        }
        if self.waits_for_the_end() {
            if !self.started {
                self.fix_order()?;
            }
            self.begin_forward()?;
            sent = backward::lock(&self.backward).send_all()?;
        }
        self.wait_for(sent)?;
        if let Some(limit) = self.options.clip_norm {
            let backward = backward::lock(&self.backward);
            clip(backward.plan(), &backward.buffers()?, limit)?;
        }
        Ok(())
    }

    /// Undoes the scaling of the loss, or finds that it was too much.
    fn overflows(&mut self) -> Result<bool> {
        let Some(scaler) = &mut self.scaler else { return Ok(false) };
        // Ranks that do not wait for each other do not make the same steps, either.
        let comm = self.algorithm.trigram().synchronous.then_some(&self.comm);
        let mut backward = backward::lock(&self.backward);
        let overflow = scaler.undo(comm, &backward.buffers()?)?;
        scaler.update(overflow)?;
        if overflow {
            backward.set_results(Results::Overflowed);
        }
        Ok(overflow)
    }

    /// What to multiply the loss with, in the next backward pass: 1 without loss scaling.
    pub fn loss_scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, |scaler| scaler.scale())
    }

    /// Whether the last pass ended in gradients that are too large for the loss's scale, on any rank: then there is
    /// nothing to step with, on all ranks. [`DataParallel::step`] and [`DataParallel::stepped`] do nothing.
    pub fn overflowed(&self) -> bool {
        backward::lock(&self.backward).results() == Results::Overflowed
    }

    /// One step of the engine's optimizer with the gradients of the last pass, and the algorithm's part after it.
    ///
    /// # Errors
    /// [`Error::Usage`] without an optimizer, a learning rate, or gradients; errors of the communication.
    pub fn step(&mut self) -> Result<()> {
        let outcome = self.optimize().and_then(|()| self.after_step());
        self.checked(outcome)
    }

    fn optimize(&mut self) -> Result<()> {
        let Some(optimizer) = self.options.optimizer.clone() else {
            let remedy = "set EngineOptions::optimizer, or step with the framework's and call stepped";
            return Err(Error::usage("the engine has no optimizer", remedy));
        };
        self.check_learning_rate()?;
        let backward = backward::lock(&self.backward);
        match backward.results() {
            Results::None => Err(Error::usage("there are no synchronized gradients", "call finish first")),
            Results::Synchronized => self.replica.step(&*optimizer, self.turn, &backward.buffers()?),
            Results::Overflowed => Ok(()),
        }
    }

    fn check_learning_rate(&self) -> Result<()> {
        match self.turn.learning_rate {
            Some(rate) if !rate.is_finite() || rate < 0.0 => {
                let remedy = "give set_learning_rate a positive number, or 0 for steps that change nothing";
                Err(Error::usage(format!("nothing can be learnt with a learning rate of {rate}"), remedy))
            }
            _ => Ok(()),
        }
    }

    /// The framework's own optimizer has stepped; where the engine works on parameters, they were set. The algorithm
    /// does its part after it.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn stepped(&mut self) -> Result<()> {
        let outcome = self.after_step();
        self.checked(outcome)
    }

    fn after_step(&mut self) -> Result<()> {
        if !self.overflowed() {
            if self.algorithm.needs().parameters {
                self.run(Stage::Step)?;
            }
            self.turn.step += 1;
            self.forwarded = false;
        }
        backward::lock(&self.backward).set_results(Results::None);
        self.enter(Kind::Between);
        self.tune()
    }

    /// Runs a hook of all buckets, between backward passes, and waits for it.
    pub(super) fn run(&mut self, stage: Stage) -> Result<()> {
        let handed = self.hand(stage, true)?;
        self.wait_for(handed)
    }

    /// Hands all buckets' parameters over, with or without their gradients.
    fn hand(&mut self, stage: Stage, gradients: bool) -> Result<usize> {
        let mut backward = backward::lock(&self.backward);
        let buckets = backward.plan().buckets().len();
        if stage == Stage::Forward && !self.algorithm.needs().parameters {
            return Ok(0);
        }
        for bucket in 0..buckets {
            let memory = Memory {
                gradients: if gradients { Some(backward.take(bucket)?) } else { None },
                parameters: self.replica.lend(bucket, self.algorithm.needs().parameters)?,
            };
            self.scheduler.port().send(flight::Order::Hook { stage, bucket, memory, turn: self.turn })?;
        }
        Ok(buckets)
    }

    fn wait_for(&mut self, buckets: usize) -> Result<()> {
        self.while_waiting(|engine| engine.take_back(buckets))
    }

    fn take_back(&mut self, buckets: usize) -> Result<()> {
        let started = Instant::now();
        for _ in 0..buckets {
            let (bucket, memory) = self.scheduler.wait()?;
            if let Some(gradients) = memory.gradients {
                backward::lock(&self.backward).take_back(bucket, gradients);
            }
            self.replica.take_back(bucket, memory.parameters);
        }
        self.blocked += started.elapsed();
        Ok(())
    }
}
