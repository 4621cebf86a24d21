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

use super::{DataParallel, Overlap, hooks};
use crate::plugin::StepInfo;
use crate::trace::Kind;
use hexagram_logical::Result;

/// Remainder of the last step of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// The hooks on its gradients, and the optimizer's step.
    Gradients,
    /// The optimizer's step.
    Step,
    /// The hooks after the optimizer's step.
    Hooks,
}

/// Buckets that a step has left on their way.
#[derive(Default)]
pub(super) struct Pending {
    /// Remainder of each bucket; empty if the last step is complete.
    lacks: Vec<Lack>,
    /// Step that the optimizer makes on those that lack it; `None` before [`DataParallel::step`].
    step: Option<StepInfo>,
}

impl Pending {
    /// Leaves the gradients of all buckets on their way.
    pub(super) fn await_gradients(&mut self, buckets: usize) {
        *self = Pending { lacks: vec![Lack::Gradients; buckets], step: None };
    }

    /// Leaves all buckets to the hooks after the step.
    pub(super) fn await_hooks(&mut self, buckets: usize) {
        *self = Pending { lacks: vec![Lack::Hooks; buckets], step: None };
    }

    /// Takes note of the optimizer's step; returns the buckets that it can be made on at once.
    pub(super) fn step(&mut self, step: StepInfo, buckets: usize) -> Vec<usize> {
        if self.lacks.is_empty() {
            return (0..buckets).collect();
        }
        self.step = Some(step);
        let here = (0..buckets).filter(|bucket| self.lacks[*bucket] == Lack::Step).collect();
        self.lacks.iter_mut().filter(|lack| **lack == Lack::Step).for_each(|lack| *lack = Lack::Nothing);
        here
    }

    /// Takes note of a bucket that is back; returns the step that the optimizer is to make on it.
    fn arrived(&mut self, bucket: usize) -> Option<StepInfo> {
        let lack = self.lacks.get_mut(bucket)?;
        let stepless = *lack == Lack::Gradients && self.step.is_none();
        let lacked = std::mem::replace(lack, if stepless { Lack::Step } else { Lack::Nothing });
        self.step.filter(|_| lacked == Lack::Gradients)
    }

    /// Returns true if the communication thread has a bucket.
    fn has_left(&self, bucket: usize) -> bool {
        matches!(self.lacks.get(bucket), Some(Lack::Gradients | Lack::Hooks))
    }

    /// Returns true if the communication thread has any bucket.
    pub(super) fn is_under_way(&self) -> bool {
        (0..self.lacks.len()).any(|bucket| self.has_left(bucket))
    }

    /// Returns true if the last step is complete.
    pub(super) fn is_empty(&self) -> bool {
        self.lacks.is_empty()
    }
}

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
        let buckets = self.pending.borrow().lacks.len();
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
