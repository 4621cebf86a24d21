//! One backward pass: which gradients are there, and which buckets are complete.

use super::plan::Plan;
use super::precision::{narrow, widen};
use super::runner::{Request, Stage};
use super::scheduler::{Memory, Requests};
use super::{Mode, Unused};
use crate::plugin::StepInfo;
use hexagram_logical::{Buffer, DType, Error, ReadView, Result, WriteView};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of a parameter's gradient in the pass under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gradient {
    /// The bucket has nothing of it.
    Missing,
    /// The bucket has a part of it, from earlier passes that only accumulated, or written in place.
    Partial,
    /// The gradient is complete.
    Ready,
}

/// Contents of the buffers between two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Results {
    /// Nothing, or what earlier passes accumulated.
    None,
    /// Gradients as the algorithm left them, which no step has used.
    Synchronized,
    /// Gradients that some rank could not represent: their step is to be skipped.
    Overflowed,
}

struct GradientBucket {
    /// Gradients; `None` while the communication thread has them.
    buffer: Option<Buffer>,
    /// Number of members whose gradient this pass still owes.
    missing: usize,
}

pub(super) struct Backward {
    plan: Plan,
    requests: Requests,
    /// True if buckets wait for the end of the pass.
    held: bool,
    slots: Vec<GradientBucket>,
    gradients: Vec<Gradient>,
    /// Mode of the pass under way, if there is one.
    open: Option<Mode>,
    /// Number of buckets handed over in this pass.
    sent: usize,
    results: Results,
    /// Error of the first call of the pass under way that was refused.
    mistake: Option<Error>,
    /// Step under way, for the hooks.
    present: StepInfo,
    /// Parameters in the order in which their gradients came, until the plan is final.
    observed: Option<Vec<usize>>,
}

impl Backward {
    /// Creates the state before the first pass. `buffers` are those of the plan's buckets; the plan is not final before
    /// [`Backward::install`].
    pub(super) fn new(plan: Plan, held: bool, requests: Requests, buffers: Vec<Buffer>) -> Self {
        let slots = slots(&plan, buffers);
        let gradients = vec![Gradient::Missing; plan.parameters().len()];
        Backward {
            plan,
            requests,
            held,
            slots,
            gradients,
            open: None,
            sent: 0,
            results: Results::None,
            mistake: None,
            present: StepInfo::default(),
            observed: Some(Vec::new()),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the gradients of a bucket.
    pub(super) fn buffer(&self, bucket: usize) -> Result<&Buffer> {
        self.slots.get(bucket).and_then(|slot| slot.buffer.as_ref()).ok_or_else(on_their_way)
    }

    /// Returns the gradients' buffers, by bucket.
    pub(super) fn buffers(&self) -> Result<Vec<&Buffer>> {
        self.slots.iter().map(|slot| slot.buffer.as_ref().ok_or_else(on_their_way)).collect()
    }

    /// Goes on with another plan, and moves gradients that are there into its buffers.
    pub(super) fn install(&mut self, plan: Plan, buffers: Vec<Buffer>) -> Result<()> {
        self.plan.relocate(&self.buffers()?, &plan, &buffers.iter().collect::<Vec<_>>())?;
        self.slots = slots(&plan, buffers);
        self.plan = plan;
        self.observed = None;
        Ok(())
    }

    /// Returns the parameters in the order in which their gradients came in the first pass; those without any come
    /// last. `None` once the plan is final.
    pub(super) fn observed(&self) -> Option<Vec<usize>> {
        let mut order = self.observed.clone()?;
        let mut seen = vec![false; self.gradients.len()];
        order.iter().for_each(|index| seen[*index] = true);
        order.extend((0..seen.len()).rev().filter(|index| !seen[*index]));
        Some(order)
    }

    /// Takes the gradients of one bucket, while no pass is under way.
    pub(super) fn take(&mut self, bucket: usize) -> Result<Buffer> {
        self.slots[bucket].buffer.take().ok_or_else(on_their_way)
    }

    pub(super) fn set_present(&mut self, present: StepInfo) {
        self.present = present;
    }

    pub(super) fn results(&self) -> Results {
        self.results
    }

    pub(super) fn set_results(&mut self, results: Results) {
        self.results = results;
    }

    /// Returns true if passes that only accumulated have left gradients for the next one.
    pub(super) fn has_accumulated(&self) -> bool {
        self.gradients.iter().any(|gradient| *gradient != Gradient::Missing)
    }

    /// Returns the error of the first call of the pass under way that was refused.
    pub(super) fn mistake(&self) -> Option<&Error> {
        self.mistake.as_ref()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn begin(&mut self, mode: Mode) -> Result<()> {
        if self.is_open() {
            let what = "a backward pass began before the last one was finished";
            return Err(Error::usage(
                what,
                "call finish after every backward pass, also after one that failed",
            ));
        }
        self.open = Some(mode);
        self.results = Results::None;
        self.mistake = None;
        self.sent = 0;
        for (slot, bucket) in self.slots.iter_mut().zip(self.plan.buckets()) {
            slot.missing = bucket.members.len();
        }
        Ok(())
    }

    /// Does what a hook asks for. What is refused is remembered: a pass with a mistake in it must not end well.
    pub(super) fn hook<R>(&mut self, work: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let outcome = work(self);
        if let (Err(error), true, None) = (&outcome, self.is_open(), &self.mistake) {
            self.mistake = Some(error.clone());
        }
        outcome
    }

    /// Takes a gradient; hands its bucket over if it was the last of it.
    pub(super) fn ready(&mut self, parameter: usize, gradient: &Buffer) -> Result<()> {
        let announced = self.plan.parameter(parameter)?;
        let dtype = announced.dtype;
        let len = announced.len();
        if (gradient.dtype(), gradient.len()) != (dtype, len) {
            let what = format!("has a gradient of {} × {}", gradient.len(), gradient.dtype());
            return Err(self.refused(parameter, &what, &format!("{len} × {dtype} were announced")));
        }
        let mut to = self.expected(parameter)?;
        widen(&gradient.read_all()?, &mut to, self.gradients[parameter] == Gradient::Partial)?;
        drop(to);
        self.mark(parameter)
    }

    /// Takes a gradient that is zero but for some rows.
    pub(super) fn ready_rows(&mut self, parameter: usize, rows: &[usize], values: &Buffer) -> Result<()> {
        let announced = self.plan.parameter(parameter)?;
        let dtype = announced.dtype;
        let count = announced.shape.first().copied().unwrap_or(1);
        let width = announced.len().checked_div(count).unwrap_or(0);
        if (values.dtype(), values.len()) != (dtype, rows.len() * width) {
            let what = format!("has {} rows of {} × {} together", rows.len(), values.len(), values.dtype());
            return Err(self.refused(parameter, &what, &format!("give each row {width} × {dtype}")));
        }
        if let Some(row) = rows.iter().find(|row| **row >= count) {
            return Err(self.refused(
                parameter,
                &format!("has no row {row}"),
                &format!("it has {count} rows"),
            ));
        }
        drop(self.in_place(parameter)?);
        let (bucket, place) = self.plan.place(parameter)?;
        let buffer = self.slots[bucket].buffer.as_ref().ok_or_else(on_their_way)?;
        for (at, row) in rows.iter().enumerate() {
            let start = place.start + row * width;
            let from = values.read(at * width..(at + 1) * width)?;
            widen(&from, &mut buffer.write(start..start + width)?, true)?;
        }
        self.mark(parameter)
    }

    /// Returns a gradient's memory, with what is there of it: zeros at first.
    pub(super) fn in_place(&mut self, parameter: usize) -> Result<WriteView> {
        let mut to = self.expected(parameter)?;
        if self.gradients[parameter] == Gradient::Missing {
            to.clear();
            self.gradients[parameter] = Gradient::Partial;
        }
        Ok(to)
    }

    /// Returns what is there of a gradient.
    pub(super) fn written(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        self.slots[bucket].buffer.as_ref().ok_or_else(on_their_way)?.read(range)
    }

    /// Marks a gradient that was written in place.
    pub(super) fn ready_in_place(&mut self, parameter: usize) -> Result<()> {
        drop(self.expected(parameter)?);
        if self.gradients[parameter] == Gradient::Missing {
            let remedy = "write it with Hooks::with_gradient, or give it to Hooks::ready";
            return Err(self.refused(
                parameter,
                "was marked ready, but nothing of its gradient was written",
                remedy,
            ));
        }
        self.mark(parameter)
    }

    /// Returns the memory where a gradient belongs, if the pass still owes it.
    fn expected(&self, parameter: usize) -> Result<WriteView> {
        let (bucket, range) = self.plan.place(parameter)?;
        if !self.is_open() {
            return Err(self.refused(
                parameter,
                "got a gradient outside a backward pass",
                "call begin first",
            ));
        }
        if self.gradients[parameter] == Gradient::Ready {
            let remedy = "mark each parameter once per backward pass, when its whole gradient is there";
            return Err(self.refused(parameter, "was marked ready twice in one backward pass", remedy));
        }
        let Some(buffer) = &self.slots[bucket].buffer else {
            let what = "got a gradient while its bucket was being communicated";
            return Err(self.refused(parameter, what, "do not call begin before finish"));
        };
        buffer.write(range)
    }

    fn refused(&self, parameter: usize, what: &str, remedy: &str) -> Error {
        Error::usage(format!("parameter `{}` {what}", self.plan.parameters()[parameter].name), remedy)
    }

    /// Marks a gradient as complete.
    fn mark(&mut self, parameter: usize) -> Result<()> {
        let (bucket, _) = self.plan.place(parameter)?;
        self.gradients[parameter] = Gradient::Ready;
        if let Some(observed) = &mut self.observed
            && !observed.contains(&parameter)
        {
            observed.push(parameter);
        }
        self.count(bucket)
    }

    /// Counts one gradient less as missing.
    fn count(&mut self, bucket: usize) -> Result<()> {
        let slot = &mut self.slots[bucket];
        slot.missing -= 1;
        let waits = self.held || self.observed.is_some() || self.open == Some(Mode::Accumulate);
        if slot.missing > 0 || waits { Ok(()) } else { self.send(bucket) }
    }

    fn send(&mut self, bucket: usize) -> Result<()> {
        let Some(gradients) = self.slots[bucket].buffer.take() else { return Ok(()) };
        self.sent += 1;
        let memory = Memory { gradients: Some(gradients), parameters: None };
        self.requests.send(Request::Hook { stage: Stage::Gradients, bucket, memory, present: self.present })
    }

    /// Hands over all buckets at once, after a pass in which they had to wait.
    pub(super) fn send_all(&mut self) -> Result<usize> {
        (0..self.slots.len()).try_for_each(|bucket| self.send(bucket))?;
        Ok(self.sent)
    }

    /// Ends the pass; returns how many buckets are with the communication thread, if they are to be waited for.
    pub(super) fn close(&mut self, unused: Unused) -> Result<Option<usize>> {
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
        self.results = Results::Synchronized;
        Ok(Some(self.sent))
    }

    /// Deals with the parameters that this pass did not reach.
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
        let remedy = "use them in the loss, leave them out, or ask for Unused::Zero";
        Err(Error::usage(format!("{} parameters got no gradient: {}", names.len(), names.join(", ")), remedy))
    }

    pub(super) fn take_back(&mut self, bucket: usize, buffer: Buffer) {
        self.slots[bucket].buffer = Some(buffer);
    }

    pub(super) fn gradient(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        match (self.results, &self.slots[bucket].buffer) {
            (Results::Synchronized, Some(buffer)) => {
                narrow(buffer, range, self.plan.parameters()[parameter].dtype)
            }
            (Results::Overflowed, _) => {
                let remedy = "skip the step where LossScaling::overflowed says so";
                Err(Error::usage("the gradients have overflowed", remedy))
            }
            _ => Err(Error::usage("there are no synchronized gradients", "call finish first")),
        }
    }

    pub(super) fn buckets(&self) -> Vec<(DType, usize)> {
        self.plan.buckets().iter().map(|bucket| (bucket.dtype, bucket.len)).collect()
    }
}

fn slots(plan: &Plan, buffers: Vec<Buffer>) -> Vec<GradientBucket> {
    let slot = |(bucket, buffer): (&super::plan::BucketPlan, Buffer)| GradientBucket {
        buffer: Some(buffer),
        missing: bucket.members.len(),
    };
    plan.buckets().iter().zip(buffers).map(slot).collect()
}

fn on_their_way() -> Error {
    Error::usage("gradients are being communicated", "call finish after every begin")
}

pub(super) fn lock(backward: &Mutex<Backward>) -> MutexGuard<'_, Backward> {
    // A panic inside a pass leaves it open, which the next `begin` refuses.
    backward.lock().unwrap_or_else(PoisonError::into_inner)
}
