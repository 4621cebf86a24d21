//! Several gradients of one batch in a step: the algorithm moves the parameters after a gradient, and needs the next
//! one at the new position.
//!
//! ```text
//! x as the last step left it
//! forward, begin, backward ──► g₁ at x        hook evaluated: parameters ← x̂     evaluate_again: true
//! forward, begin, backward ──► g₂ at x̂                                           evaluate_again: false
//! finish, step             ──►                hooks gradients_ready, after_backward: parameters ← x
//!                                             optimizer; after_step
//! ```
//!
//! The number of gradients of a step follows from the step number alone, so ranks agree on it. A loop that does not
//! make all passes is refused at the end of the first one: its step would use moved parameters, not those of the model.

use crate::engine::hooks::PassContents;
use crate::engine::runner::HookStage;
use crate::engine::{DataParallel, Unused, hooks};
use crate::trace::Kind;
use hexagram_logical::{Error, Result};

impl DataParallel {
    /// Ends a backward pass that is not the last of the step, and returns true: the algorithm has moved the parameters,
    /// and needs the gradient of the same batch there, by another forward and backward pass. Returns false, without any
    /// effect, if the current pass is the last of the step. Call it instead of [`finish`](Self::finish) until it
    /// returns false. Most algorithms take one gradient per step, and do not need it. If gradients are accumulated over
    /// several passes, accumulate them again.
    ///
    /// ```
    /// use hexagram::logical::Result;
    /// use hexagram::algorithms::{DataParallel, Mode};
    ///
    /// fn step(engine: &mut DataParallel, gradient: impl Fn(&[f32]) -> Vec<f32>) -> Result<()> {
    ///     loop {
    ///         let gradient = gradient(&engine.values::<f32>(0)?);
    ///         engine.begin(Mode::Synchronize)?;
    ///         engine.hooks().ready_slice(0, &gradient)?;
    ///         if !engine.evaluate_again()? {
    ///             return engine.finish_and_step();
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`finish`](Self::finish); [`Error::Usage`] with a loss that is scaled.
    pub fn evaluate_again(&mut self) -> Result<bool> {
        if self.is_last_evaluation() {
            return Ok(false);
        }
        let outcome = self.end_evaluation(self.options.unused);
        self.enter(Kind::Between);
        self.checked(outcome).map(|()| true)
    }

    /// Makes a step, with as many gradients as the algorithm needs: `pass` reads the parameters, and makes the forward
    /// and backward passes of one batch, from [`forward`](Self::forward) to the last of [`hooks`](Self::hooks).
    ///
    /// # Errors
    /// The errors of `pass`; [`Error::Usage`] after a pass that ended between two gradients, as the other gradient
    /// would be of another batch; as [`evaluate_again`](Self::evaluate_again) and
    /// [`finish_and_step`](Self::finish_and_step).
    pub fn step_with<E: From<Error>>(
        &mut self,
        mut pass: impl FnMut(&mut Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.check_all_evaluated()?;
        loop {
            pass(self)?;
            if !self.evaluate_again()? {
                return Ok(self.finish_and_step()?);
            }
        }
    }

    /// Returns the number of gradients in the current step.
    fn evaluations(&self) -> u32 {
        self.algorithm.evaluations(self.present.own_step()).max(1)
    }

    /// Returns true if the next or current gradient is the last of the step.
    pub(super) fn is_last_evaluation(&self) -> bool {
        self.present.evaluation + 1 >= self.evaluations()
    }

    /// Ends a pass that is not the last of the step, with the algorithm hook after it.
    pub(super) fn end_evaluation(&mut self, unused: Unused) -> Result<()> {
        if self.scaler.is_some() {
            let what =
                format!("{} takes several gradients a step, and the loss is scaled", self.algorithm.name());
            let remedy = "leave out loss_scale: after a skipped step, the parameters would stay moved";
            return Err(Error::usage(what, remedy));
        }
        if hooks::lock(&self.backward).close(unused)?.is_none() {
            let remedy = "end a pass that accumulates with `finish`, and ask after the one that synchronizes";
            return Err(Error::usage("a pass that only accumulates is not a gradient yet", remedy));
        }
        if !self.started {
            self.fix_order()?;
        }
        self.begin_forward()?;
        hooks::lock(&self.backward).set_results(PassContents::None);
        self.run(HookStage::Evaluate)?;
        self.queues.check()?;
        self.present.evaluation += 1;
        self.forwarded = false;
        Ok(())
    }

    /// Fails if the current pass must end with [`evaluate_again`](Self::evaluate_again).
    pub(super) fn check_last_evaluation(&self) -> Result<()> {
        if self.is_last_evaluation() || !hooks::lock(&self.backward).synchronizes() {
            return Ok(());
        }
        let name = self.algorithm.name();
        let count = self.evaluations();
        let at = self.present.evaluation + 1;
        let what =
            format!("{name} takes {count} gradients of each batch, and gradient {at} was to be the last");
        let remedy = "call `evaluate_again` in the training loop before a pass ends";
        Err(Error::usage(what, remedy))
    }

    /// Fails between two gradients of a step, where a gradient of another batch would be taken for the second: for an
    /// adapter whose loop is not [`step_with`](Self::step_with).
    ///
    /// # Errors
    /// [`Error::Usage`] after an [`evaluate_again`](Self::evaluate_again) that returned true, until the step has ended.
    pub fn check_all_evaluated(&self) -> Result<()> {
        if self.present.evaluation == 0 {
            return Ok(());
        }
        let what = format!("{} waits for another gradient of the same batch", self.algorithm.name());
        Err(Error::usage(what, "make another pass where evaluate_again returns true"))
    }
}
