//! Uneven inputs: a rank that has run out of data participates in the steps of the others, with zero gradients.
//!
//! ```text
//! each step, synchronous algorithms:   every rank sends whether it trains, and γ: 16(n−1) bytes from each
//! a rank that has run out:             g ← 0, then the same step as all others
//! none trains any more:                all are done
//! ```
//!
//! Means are still over all n ranks: a step in which k of them train is k/n as long. Because joined ranks make every
//! step, with the learning rate of the training ranks, replicas of centralized synchronous algorithms stay identical on
//! all n. Like `Join` of PyTorch's DDP, without its option to divide by k.
//!
//! With asynchronous algorithms, no rank waits for a joined rank: it settles, and so serves the others until they
//! settle too. But all ranks begin the background work together, in their first step: a rank that has not made a step
//! makes one with zero gradients.

use crate::engine::{DataParallel, Mode, Unused};
use hexagram_logical::{Error, Result};

/// Training loops that end at different times: see [`DataParallel::uneven`].
pub struct Uneven<'a>(&'a mut DataParallel);

impl DataParallel {
    /// Returns the methods for a rank that has run out of data before others, with
    /// [`EngineOptions::uneven`](crate::EngineOptions::uneven).
    pub fn uneven(&mut self) -> Uneven<'_> {
        Uneven(self)
    }
}

impl Uneven<'_> {
    /// Participates in the steps of the other ranks until all have run out of data, like this rank. Every rank calls it
    /// after its last step. Accumulated gradients count in the next step. With an asynchronous algorithm it is
    /// equivalent to [`DataParallel::settle`]; no rank may run out before the end of a synchronous warm-up.
    ///
    /// # Errors
    /// [`Error::Usage`] without [`EngineOptions::uneven`](crate::EngineOptions::uneven), or without an optimizer of the
    /// engine (then see [`Uneven::shadow`]); errors of the communication.
    pub fn join(&mut self) -> Result<()> {
        while self.shadow()? {
            self.0.step()?;
        }
        Ok(())
    }

    /// Makes one backward pass of zeros, if any rank still trains: [`Uneven::join`] for a training loop that uses an
    /// optimizer of the framework. The loop then steps with the gradients, as after [`DataParallel::finish`], and calls
    /// this again until it returns false. The learning rate is that of the ranks that train.
    ///
    /// # Errors
    /// As [`Uneven::join`].
    pub fn shadow(&mut self) -> Result<bool> {
        let outcome = self.0.shadow_pass();
        self.0.checked(outcome)
    }

    /// Returns the learning rate of the step that [`Uneven::shadow`] has begun, which is that of the training ranks;
    /// `None` if they have not set one. For loops that use an optimizer of the framework.
    pub fn learning_rate(&self) -> Option<f64> {
        self.0.present.learning_rate
    }
}

impl DataParallel {
    fn shadow_pass(&mut self) -> Result<bool> {
        if !self.options.uneven {
            let remedy = "set the option `uneven` on all ranks";
            return Err(Error::usage(
                "ranks that run out of data at different times were not announced",
                remedy,
            ));
        }
        if !self.algorithm.trigram().synchronous && self.unsettled {
            return self.settle().map(|()| false);
        }
        if self.algorithm.trigram().synchronous && !self.announce(false)? {
            return Ok(false);
        }
        self.begin_pass(Mode::Synchronize)?;
        while !self.is_last_evaluation() {
            self.end_evaluation(Unused::Zero)?;
            self.begin_pass(Mode::Synchronize)?;
        }
        self.finish_pass(Unused::Zero)?;
        Ok(true)
    }

    /// Notifies the other ranks, before a step, whether this one trains; returns whether any does.
    pub(super) fn announce(&mut self, trains: bool) -> Result<bool> {
        if !self.options.uneven || !self.algorithm.trigram().synchronous {
            return Ok(trains);
        }
        if self.announced {
            return Ok(true);
        }
        let mine = [f64::from(u8::from(trains)), self.present.learning_rate.unwrap_or(f64::NAN)];
        let mut all = vec![0.0; mine.len() * self.comm.size()];
        self.while_waiting(|engine| engine.comm.blocking().all_gather(&mine, &mut all))?;
        let one_that_trains = all.chunks(mine.len()).find(|rank| rank[0] != 0.0);
        self.announced = one_that_trains.is_some();
        if let (Some(rank), false) = (one_that_trains, trains) {
            self.present.learning_rate = Some(rank[1]).filter(|rate| !rate.is_nan());
        }
        Ok(self.announced)
    }
}
