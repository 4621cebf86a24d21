//! A step: forward, backward, optimizer, and the algorithm's hooks around them.

use super::backward;
use super::flight::{self, Stage};
use super::scheduler::Memory;
use super::{DataParallel, Mode, Order};
use hexagram_logical::{Error, Result};
use std::time::Instant;

impl DataParallel {
    /// A training forward pass begins: algorithms that communicate parameters do it beside that pass. Whoever does not
    /// call it loses the overlap; [`DataParallel::begin`] makes up for it.
    ///
    /// # Errors
    /// What ended the communication thread, if it has failed.
    pub fn forward(&mut self) -> Result<()> {
        if self.forwarded || !self.started {
            return Ok(());
        }
        let outcome = self.hand(Stage::Forward, false).map(drop);
        self.forwarded = true;
        self.checked(outcome)
    }

    /// Begins a backward pass.
    ///
    /// # Errors
    /// [`Error::Usage`] if the last one was not finished: its gradients would be lost on this rank only.
    pub fn begin(&mut self, mode: Mode) -> Result<()> {
        let outcome = self.begun(mode);
        self.checked(outcome)
    }

    fn begun(&mut self, mode: Mode) -> Result<()> {
        if mode == Mode::Synchronize {
            if self.options.order == Order::Listed {
                self.start()?;
            }
            self.forward()?;
        }
        let mut backward = backward::lock(&self.backward);
        backward.set_turn(self.turn);
        backward.begin(mode)
    }

    /// Ends a backward pass: waits until every bucket was communicated.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameters without gradient, [`Error::PeerFailed`] and others from the
    /// communication. After an error no rank can go on.
    pub fn finish(&mut self) -> Result<()> {
        let outcome = self.finished();
        self.checked(outcome)
    }

    fn finished(&mut self) -> Result<()> {
        let closed = backward::lock(&self.backward).close()?;
        let Some(mut sent) = closed else { return Ok(()) };
        if !self.started {
            self.fix_order()?;
            self.forward()?;
            sent = backward::lock(&self.backward).send_all()?;
        }
        self.wait_for(sent)?;
        if let Some(limit) = self.options.clip_norm {
            self.replica.clip(&backward::lock(&self.backward).buffers()?, limit)?;
        }
        Ok(())
    }

    /// One step of the engine's optimizer with the gradients of the last pass, and the algorithm's part after it.
    ///
    /// # Errors
    /// [`Error::Usage`] without an optimizer, a learning rate, or gradients; errors of the communication.
    pub fn step(&mut self) -> Result<()> {
        let outcome = self.optimize().and_then(|()| self.stepped());
        self.checked(outcome)
    }

    fn optimize(&mut self) -> Result<()> {
        let Some(optimizer) = self.options.optimizer.clone() else {
            let remedy = "set EngineOptions::optimizer, or step with the framework's and call stepped";
            return Err(Error::usage("the engine has no optimizer", remedy));
        };
        let backward = backward::lock(&self.backward);
        if !backward.has_results() {
            return Err(Error::usage("there are no synchronized gradients", "call finish first"));
        }
        self.replica.step(&*optimizer, self.turn, &backward.buffers()?)
    }

    /// The framework's own optimizer has stepped; where the engine works on parameters, they were set. The algorithm
    /// does its part after it.
    ///
    /// # Errors
    /// Errors of the communication.
    pub fn stepped(&mut self) -> Result<()> {
        if self.algorithm.needs().parameters {
            self.run(Stage::Step)?;
        }
        backward::lock(&self.backward).used();
        self.turn.step += 1;
        self.forwarded = false;
        Ok(())
    }

    /// Runs a hook of all buckets, between backward passes, and waits for it.
    pub(super) fn run(&mut self, stage: Stage) -> Result<()> {
        let handed = self.hand(stage, true)?;
        self.wait_for(handed)
    }

    /// Hands all buckets' parameters over, with or without their gradients.
    pub(super) fn hand(&mut self, stage: Stage, gradients: bool) -> Result<usize> {
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

    pub(super) fn wait_for(&mut self, buckets: usize) -> Result<()> {
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
