//! Communication beside the next forward pass ([`Overlap::Forward`]): what a step leaves on its way, and the waits that
//! bring it.
//!
//! ```text
//! training thread                                communication thread
//! ---------------                                --------------------
//! finish, step: waits for nothing           ◄─►  buckets on their way, those of the front layers first
//! forward of the first module:
//!   wait_for(its parameters)                ◄──  bucket done: optimizer's step on it
//!   computes                                ◄─►  the others go on
//! forward of the next module: the same
//! begin: waits for what nobody has asked for
//! ```
//!
//! An algorithm that has something to do after the optimizer's step gets all its buckets at once, when `step` has made
//! that step on all of them: `finish` waits for their gradients, and what is on its way under the forward pass is what
//! the algorithm does then.
//!
//! The optimizer steps on each bucket by itself, with the number and the learning rate of the step that it belongs to, so
//! that results are bit for bit those of [`Overlap::Backward`], whatever arrives when. Every call that needs a parameter
//! waits for it; all but the forward pass wait for all of them.
//!
//! Sources: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler),
//! SOSP 2019; Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), SysML 2019.

use super::pending::Pending;
use super::{DataParallel, Overlap, hooks};
use crate::trace::Kind;
use hexagram_logical::Result;

impl DataParallel {
    /// Waits until parameters are as the last step leaves them.
    ///
    /// With [`Overlap::Forward`] a training loop calls it in the forward pass, before each module, with the numbers of
    /// that module's parameters. Where nothing is on its way it returns at once. What others have asked for, or
    /// [`parameter`](Self::parameter) has read, need not be waited for; and [`begin`](Self::begin) waits for the rest.
    ///
    /// ```
    /// use hexagram::algorithms::DataParallel;
    /// use hexagram::logical::Result;
    ///
    /// /// Runs a model's layers, each with the numbers of its parameters.
    /// fn forward(engine: &mut DataParallel, layers: &[(Vec<usize>, fn(&DataParallel))]) -> Result<()> {
    ///     engine.forward()?;
    ///     for (parameters, compute) in layers {
    ///         engine.wait_for(parameters)?;
    ///         compute(engine);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) if there is no such parameter; what has ended the communication
    /// of the last step, after which no rank can go on.
    pub fn wait_for(&self, parameters: &[usize]) -> Result<()> {
        let outcome = parameters.iter().try_for_each(|parameter| {
            let (bucket, _) = hooks::lock(&self.backward).plan().place(*parameter)?;
            self.bring(bucket)
        });
        self.checked(outcome)
    }

    /// Waits until all parameters are as the last step leaves them, as [`wait_for`](Self::wait_for) does for some.
    ///
    /// # Errors
    /// What has ended the communication of the last step, after which no rank can go on.
    pub fn wait_for_all(&self) -> Result<()> {
        let outcome = self.bring_all();
        self.checked(outcome)
    }

    pub(super) fn overlaps_forward(&self) -> bool {
        self.options.overlap == Overlap::Forward
    }

    /// Returns true if the optimizer steps on each bucket when it is asked for, and not in [`DataParallel::step`].
    pub(super) fn defers_gradients(&self) -> bool {
        self.overlaps_forward() && !self.algorithm.written().after_step
    }

    /// Waits for all that the last step has left on its way.
    pub(super) fn complete(&mut self) -> Result<()> {
        if self.pending.get_mut().is_empty() {
            return Ok(());
        }
        self.bring_all()?;
        *self.pending.get_mut() = Pending::default();
        self.metrics = self.collected.take();
        Ok(())
    }

    /// Waits until all buckets are here.
    pub(super) fn bring_all(&self) -> Result<()> {
        let buckets = self.pending.borrow().buckets();
        (0..buckets).try_for_each(|bucket| self.bring(bucket))
    }

    /// Waits for a parameter's gradient, if it is on its way.
    pub(super) fn bring_gradient(&self, parameter: usize) -> Result<()> {
        let (bucket, _) = hooks::lock(&self.backward).plan().place(parameter)?;
        self.bring(bucket)
    }

    /// Waits until a bucket is here; those that arrive before it are taken, too.
    fn bring(&self, bucket: usize) -> Result<()> {
        if !self.pending.borrow().has_left(bucket) {
            return Ok(());
        }
        let before = self.enter(Kind::Waiting);
        while self.pending.borrow().has_left(bucket) {
            let arrived = self.take_back()?;
            let step = self.pending.borrow_mut().arrived(arrived);
            if let Some(step) = step {
                self.enter(Kind::Optimizer);
                self.optimize_bucket(arrived, step)?;
                self.enter(Kind::Waiting);
            }
        }
        self.enter(before);
        self.queues.of(bucket).check()
    }
}
