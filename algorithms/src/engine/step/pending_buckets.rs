//! Buckets that a step leaves in progress under [`Overlap::Forward`](crate::Overlap::Forward), and the work that each
//! still needs.

use crate::plugin::StepInfo;

/// Remaining work of the last step on one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// The hooks on its gradients, and the optimizer step.
    Gradients,
    /// The optimizer step.
    Step,
    /// The hooks after the optimizer step.
    Hooks,
}

/// Buckets that a step has left in progress.
#[derive(Default)]
pub(crate) struct PendingBuckets {
    /// Remaining work of each bucket; empty if the last step is complete.
    lacks: Vec<Lack>,
    /// Optimizer step for the buckets that still need it; `None` before that step.
    step: Option<StepInfo>,
}

impl PendingBuckets {
    /// Leaves the gradients of all buckets in progress.
    pub(super) fn await_gradients(&mut self, buckets: usize) {
        *self = PendingBuckets { lacks: vec![Lack::Gradients; buckets], step: None };
    }

    /// Leaves all buckets to the hooks after the step.
    pub(super) fn await_hooks(&mut self, buckets: usize) {
        *self = PendingBuckets { lacks: vec![Lack::Hooks; buckets], step: None };
    }

    /// Records the optimizer step; returns the buckets on which it can be made immediately.
    pub(crate) fn step(&mut self, step: StepInfo, buckets: usize) -> Vec<usize> {
        if self.lacks.is_empty() {
            return (0..buckets).collect();
        }
        self.step = Some(step);
        let here = (0..buckets).filter(|bucket| self.lacks[*bucket] == Lack::Step).collect();
        self.lacks.iter_mut().filter(|lack| **lack == Lack::Step).for_each(|lack| *lack = Lack::Nothing);
        here
    }

    /// Records a bucket that has returned; returns the optimizer step to make on it.
    pub(crate) fn arrived(&mut self, bucket: usize) -> Option<StepInfo> {
        let lack = self.lacks.get_mut(bucket)?;
        let stepless = *lack == Lack::Gradients && self.step.is_none();
        let lacked = std::mem::replace(lack, if stepless { Lack::Step } else { Lack::Nothing });
        self.step.filter(|_| lacked == Lack::Gradients)
    }

    /// Returns true if the communication thread owns a bucket.
    pub(super) fn has_left(&self, bucket: usize) -> bool {
        matches!(self.lacks.get(bucket), Some(Lack::Gradients | Lack::Hooks))
    }

    /// Returns true if the communication thread owns any bucket.
    pub(crate) fn is_under_way(&self) -> bool {
        (0..self.lacks.len()).any(|bucket| self.has_left(bucket))
    }

    /// Returns the number of buckets of the last step, or 0 if that step is complete.
    pub(crate) fn buckets(&self) -> usize {
        self.lacks.len()
    }

    /// Returns true if the last step is complete.
    pub(crate) fn is_empty(&self) -> bool {
        self.lacks.is_empty()
    }
}
