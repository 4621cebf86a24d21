//! A backward pass around its hooks: its beginning and its end, and the gradients between two passes.

use super::{Backward, Gradient, GradientBucket, on_their_way};
use crate::engine::Unused;
use crate::engine::plan::{BucketPlan, ModelPlan};
use crate::engine::precision::narrow;
use crate::engine::runner::Requests;
use crate::plugin::StepInfo;
use hexagram_logical::{Buffer, DType, Error, ReadView, Result};

/// Use of the gradients of a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Gradients are communicated, together with the accumulated ones.
    Synchronize,
    /// Gradients are added to the accumulated ones, without communication: `no_sync`.
    Accumulate,
}

/// Contents of the buffers between two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassContents {
    /// Nothing, or the gradients that earlier passes accumulated.
    None,
    /// Gradients as the algorithm left them, not yet used by a step.
    Synchronized,
    /// Gradients that some rank could not represent: their step must be skipped.
    Overflowed,
}

impl Backward {
    /// Creates the state before the first pass. `buffers` are those of the buckets of the plan, which is not final
    /// before [`Backward::install`].
    pub(crate) fn new(plan: ModelPlan, requests: Requests, buffers: Vec<Buffer>) -> Self {
        let slots = slots(&plan, buffers);
        let gradients = vec![Gradient::Missing; plan.parameters().len()];
        let idle = vec![false; gradients.len()];
        Backward {
            plan,
            generation: 0,
            requests,
            held: false,
            slots,
            gradients,
            idle,
            open: None,
            sent: 0,
            results: PassContents::None,
            mistake: None,
            present: StepInfo::default(),
            observed: Some(Vec::new()),
        }
    }

    pub(crate) fn plan(&self) -> &ModelPlan {
        &self.plan
    }

    /// Returns the number of times that buckets were recreated, or moved to another buffer by a hook.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the gradients of a bucket.
    pub(crate) fn buffer(&self, bucket: usize) -> Result<&Buffer> {
        self.slots.get(bucket).and_then(|slot| slot.buffer.as_ref()).ok_or_else(on_their_way)
    }

    /// Returns the gradient buffers, by bucket.
    pub(crate) fn buffers(&self) -> Result<Vec<&Buffer>> {
        self.slots.iter().map(|slot| slot.buffer.as_ref().ok_or_else(on_their_way)).collect()
    }

    /// Continues with another plan, and moves the present gradients into its buffers.
    pub(crate) fn install(&mut self, plan: ModelPlan, buffers: Vec<Buffer>) -> Result<()> {
        self.plan.relocate(&self.buffers()?, &plan, &buffers)?;
        self.slots = slots(&plan, buffers);
        self.plan = plan;
        self.generation += 1;
        self.observed = None;
        Ok(())
    }

    /// Returns the parameters in the order in which their gradients arrived in the first pass; those without gradient
    /// come last. `None` once the plan is final.
    pub(crate) fn observed(&self) -> Option<Vec<usize>> {
        let mut order = self.observed.clone()?;
        let mut seen = vec![false; self.gradients.len()];
        order.iter().for_each(|index| seen[*index] = true);
        order.extend((0..seen.len()).rev().filter(|index| !seen[*index]));
        Some(order)
    }

    /// Takes the gradients of one bucket. Call it outside a pass.
    pub(crate) fn take(&mut self, bucket: usize) -> Result<Buffer> {
        self.slots[bucket].buffer.take().ok_or_else(on_their_way)
    }

    /// Returns for each parameter whether the step after the last pass leaves it unchanged.
    pub(crate) fn idle(&self) -> &[bool] {
        &self.idle
    }

    pub(crate) fn idle_mut(&mut self) -> &mut [bool] {
        &mut self.idle
    }

    pub(crate) fn set_present(&mut self, present: StepInfo) {
        self.present = present;
    }

    pub(crate) fn results(&self) -> PassContents {
        self.results
    }

    pub(crate) fn set_results(&mut self, results: PassContents) {
        self.results = results;
    }

    /// Returns true if accumulating passes have left gradients for the next one.
    pub(crate) fn has_accumulated(&self) -> bool {
        self.gradients.iter().any(|gradient| *gradient != Gradient::Missing)
    }

    /// Returns the error of the first refused call in the current pass.
    pub(crate) fn mistake(&self) -> Option<&Error> {
        self.mistake.as_ref()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns true if a pass is in progress whose gradients will be communicated.
    pub(crate) fn synchronizes(&self) -> bool {
        self.open == Some(Mode::Synchronize)
    }

    /// Begins a pass. If buckets are `held`, [`send_all`](Self::send_all) hands them over at its end.
    pub(crate) fn begin(&mut self, mode: Mode, held: bool) -> Result<()> {
        if self.is_open() {
            let what = "a backward pass began before the last one was finished";
            return Err(Error::usage(
                what,
                "call finish after every backward pass, also after one that failed",
            ));
        }
        self.open = Some(mode);
        self.held = held;
        self.results = PassContents::None;
        self.mistake = None;
        self.sent = 0;
        for (slot, bucket) in self.slots.iter_mut().zip(self.plan.buckets()) {
            slot.missing = bucket.members.len();
        }
        Ok(())
    }

    /// Hands over all buckets together, after a pass that held them.
    pub(crate) fn send_all(&mut self) -> Result<usize> {
        (0..self.slots.len()).try_for_each(|bucket| self.send(bucket))?;
        Ok(self.sent)
    }

    /// Ends the pass; returns the number of buckets that the communication thread owns, if the caller must wait for
    /// them.
    pub(crate) fn close(&mut self, unused: Unused) -> Result<Option<usize>> {
        let Some(mode) = self.open else {
            return Err(Error::usage("finish without a backward pass", "call begin first"));
        };
        let outcome = match self.mistake.take() {
            Some(mistake) => Err(mistake),
            None if mode == Mode::Synchronize => self.complete(unused),
            None => Ok(()),
        };
        self.open = None;
        outcome?;
        if mode == Mode::Synchronize {
            self.idle = self.gradients.iter().map(|gradient| *gradient == Gradient::Missing).collect();
        }
        for gradient in &mut self.gradients {
            *gradient = match (mode, *gradient) {
                (Mode::Accumulate, Gradient::Ready) => Gradient::Partial,
                (Mode::Accumulate, other) => other,
                (Mode::Synchronize, _) => Gradient::Missing,
            };
        }
        if mode == Mode::Accumulate {
            return Ok(None);
        }
        self.results = PassContents::Synchronized;
        Ok(Some(self.sent))
    }

    /// Handles the parameters without a gradient in this pass.
    fn complete(&mut self, unused: Unused) -> Result<()> {
        if unused == Unused::Error {
            self.check_reached()?;
        }
        for parameter in 0..self.gradients.len() {
            let before = self.gradients[parameter];
            if before == Gradient::Ready {
                continue;
            }
            let (bucket, range) = self.plan.place(parameter)?;
            if let (Gradient::Missing, Some(buffer)) = (before, &self.slots[bucket].buffer) {
                buffer.write(range)?.clear();
            }
            self.count(bucket)?;
        }
        Ok(())
    }

    fn check_reached(&self) -> Result<()> {
        let named = self.plan.parameters().iter().zip(&self.gradients);
        let missing = named.filter(|(_, gradient)| **gradient == Gradient::Missing);
        let names: Vec<String> = missing.map(|(parameter, _)| format!("`{}`", parameter.name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let remedy = "use them in the loss, omit them, or set the option `unused` to zero";
        Err(Error::usage(format!("{} parameters got no gradient: {}", names.len(), names.join(", ")), remedy))
    }

    pub(crate) fn take_back(&mut self, bucket: usize, buffer: Buffer) {
        let slot = &mut self.slots[bucket];
        // A hook may have replaced the buffer, instead of copying.
        let now = buffer.address().addr().get();
        if std::mem::replace(&mut slot.place, now) != now {
            self.generation += 1;
        }
        slot.buffer = Some(buffer);
    }

    pub(crate) fn gradient(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        match (self.results, &self.slots[bucket].buffer) {
            (PassContents::Synchronized, Some(buffer)) => {
                narrow(buffer, range, self.plan.parameters()[parameter].dtype)
            }
            (PassContents::Overflowed, _) => {
                let remedy = "skip the step if `overflowed` is true";
                Err(Error::usage("the gradients have overflowed", remedy))
            }
            _ => Err(Error::usage("no gradients are synchronized", "call finish first")),
        }
    }

    pub(crate) fn buckets(&self) -> Vec<(DType, usize)> {
        self.plan.buckets().iter().map(|bucket| (bucket.dtype, bucket.len)).collect()
    }
}

fn slots(plan: &ModelPlan, buffers: Vec<Buffer>) -> Vec<GradientBucket> {
    let slot = |(bucket, buffer): (&BucketPlan, Buffer)| GradientBucket {
        place: buffer.address().addr().get(),
        buffer: Some(buffer),
        missing: bucket.members.len(),
    };
    plan.buckets().iter().zip(buffers).map(slot).collect()
}
