//! Buckets that a step leaves on their way under [`Overlap::Forward`](super::Overlap::Forward): what each still lacks.

use crate::plugin::StepInfo;

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
    /// Step that the optimizer makes on those that lack it; `None` before the optimizer's step.
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
    pub(super) fn arrived(&mut self, bucket: usize) -> Option<StepInfo> {
        let lack = self.lacks.get_mut(bucket)?;
        let stepless = *lack == Lack::Gradients && self.step.is_none();
        let lacked = std::mem::replace(lack, if stepless { Lack::Step } else { Lack::Nothing });
        self.step.filter(|_| lacked == Lack::Gradients)
    }

    /// Returns true if the communication thread has a bucket.
    pub(super) fn has_left(&self, bucket: usize) -> bool {
        matches!(self.lacks.get(bucket), Some(Lack::Gradients | Lack::Hooks))
    }

    /// Returns true if the communication thread has any bucket.
    pub(super) fn is_under_way(&self) -> bool {
        (0..self.lacks.len()).any(|bucket| self.has_left(bucket))
    }

    /// Returns the number of buckets of the last step, unless that is complete.
    pub(super) fn buckets(&self) -> usize {
        self.lacks.len()
    }

    /// Returns true if the last step is complete.
    pub(super) fn is_empty(&self) -> bool {
        self.lacks.is_empty()
    }
}
