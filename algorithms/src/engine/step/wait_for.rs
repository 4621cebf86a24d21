//! Communication during the next forward pass ([`Overlap::Forward`]): the work that a step leaves in progress, and the
//! waits for it.
//!
//! ```text
//! training thread                                communication thread
//! ---------------                                --------------------
//! finish, step: do not wait                 ◄─►  buckets in progress, those of the front layers first
//! forward of the first module:
//!   wait_for(its parameters)                ◄──  bucket done: optimizer step on it
//!   computes                                ◄─►  the others continue
//! forward of the next module: the same
//! begin: waits for the rest
//! ```
//!
//! With an algorithm that has a hook after the optimizer step, that hook gets all buckets together, after `step` has
//! stepped on all of them: `finish` waits for their gradients, and this hook overlaps with the forward pass.
//!
//! The optimizer steps on each bucket separately, with the number and learning rate of its step, so results are bit for
//! bit those of [`Overlap::Backward`], whatever the order of arrival. Every call that needs a parameter waits for it;
//! all except the forward pass wait for all parameters.
//!
//! Sources: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler),
//! SOSP 2019; Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), SysML 2019.

use super::pending_buckets::PendingBuckets;
use crate::engine::{DataParallel, Overlap, hooks};
use crate::trace::Kind;
use hexagram_logical::Result;

impl DataParallel {
    /// Waits until these parameters have their values after the last step.
    ///
    /// With [`Overlap::Forward`], a training loop calls it in the forward pass, before each module, with the indices of
    /// the parameters of that module. It returns immediately if none of them is in progress. Parameters that were
    /// already waited for, or read with [`parameter`](Self::parameter), need no call; [`begin`](Self::begin) waits for
    /// the rest.
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
    /// [`Error::Usage`](hexagram_logical::Error::Usage) for an index out of range; the error that ended the
    /// communication of the last step, after which ranks cannot continue.
    pub fn wait_for(&self, parameters: &[usize]) -> Result<()> {
        let outcome = parameters.iter().try_for_each(|parameter| {
            let (bucket, _) = hooks::lock(&self.backward).plan().place(*parameter)?;
            self.bring(bucket)
        });
        self.checked(outcome)
    }

    /// Waits until all parameters have their values after the last step, like [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// The error that ended the communication of the last step, after which ranks cannot continue.
    pub fn wait_for_all(&self) -> Result<()> {
        let outcome = self.bring_all();
        self.checked(outcome)
    }

    pub(crate) fn overlaps_forward(&self) -> bool {
        self.options.overlap == Overlap::Forward
    }

    /// Returns true if the optimizer steps on each bucket when the bucket is needed, not in [`DataParallel::step`].
    pub(super) fn defers_gradients(&self) -> bool {
        self.overlaps_forward() && !self.algorithm.written().after_step
    }

    /// Completes all work that the last step has left in progress.
    pub(crate) fn complete(&mut self) -> Result<()> {
        if self.pending.get_mut().is_empty() {
            return Ok(());
        }
        self.bring_all()?;
        *self.pending.get_mut() = PendingBuckets::default();
        self.metrics = self.collected.take();
        Ok(())
    }

    /// Waits until all buckets have returned.
    pub(super) fn bring_all(&self) -> Result<()> {
        let buckets = self.pending.borrow().buckets();
        (0..buckets).try_for_each(|bucket| self.bring(bucket))
    }

    /// Waits for the gradient of a parameter, if it is in progress.
    pub(crate) fn bring_gradient(&self, parameter: usize) -> Result<()> {
        let (bucket, _) = hooks::lock(&self.backward).plan().place(parameter)?;
        self.bring(bucket)
    }

    /// Waits until a bucket has returned; takes those that return before it, too.
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
