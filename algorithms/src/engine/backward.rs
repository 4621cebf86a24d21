//! One backward pass: which gradients are there, and which buckets are complete.

use super::flight::{Order, Stage};
use super::plan::Plan;
use super::scheduler::{Memory, Port};
use super::{Mode, Unused};
use crate::plugin::Turn;
use hexagram_logical::physical::memory::ReadView;
use hexagram_logical::{Buffer, DType, Device, Element, Error, Host, ReduceOp, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A parameter's gradient in the pass under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gradient {
    /// Nothing from this pass, nothing from passes that only accumulated.
    Missing,
    /// From earlier passes only.
    Accumulated,
    /// From this pass.
    Ready,
}

struct Slot {
    /// `None` while the communication thread has it.
    buffer: Option<Buffer>,
    /// Members whose gradient this pass still owes.
    missing: usize,
}

pub(super) struct Backward {
    plan: Plan,
    unused: Unused,
    port: Port,
    slots: Vec<Slot>,
    gradients: Vec<Gradient>,
    /// The pass under way, if any.
    open: Option<Mode>,
    /// Buckets handed over in this pass.
    sent: usize,
    /// Whether the buffers hold results of a synchronization.
    results: bool,
    /// The step under way, for the hooks.
    turn: Turn,
    /// Parameters in the order in which their gradients came, until the plan is final.
    observed: Option<Vec<usize>>,
}

impl Backward {
    /// `buffers` are those of the plan's buckets. The plan is not final before [`Backward::install`].
    pub(super) fn new(plan: Plan, unused: Unused, port: Port, buffers: Vec<Buffer>) -> Self {
        let slots = slots(&plan, buffers);
        let gradients = vec![Gradient::Missing; plan.parameters().len()];
        Backward {
            plan,
            unused,
            port,
            slots,
            gradients,
            open: None,
            sent: 0,
            results: false,
            turn: Turn::default(),
            observed: Some(Vec::new()),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The gradients' buffers, by bucket.
    pub(super) fn buffers(&self) -> Result<Vec<&Buffer>> {
        self.slots.iter().map(|slot| slot.buffer.as_ref().ok_or_else(on_their_way)).collect()
    }

    /// Goes on with another plan, and moves gradients that are there into its buffers.
    pub(super) fn install(&mut self, plan: Plan, buffers: Vec<Buffer>) -> Result<()> {
        self.plan.relocate(&self.buffers()?, &plan, &buffers.iter().collect::<Vec<_>>())?;
        (self.slots, self.plan, self.observed) = (slots(&plan, buffers), plan, None);
        Ok(())
    }

    /// In what order gradients came in the first pass; parameters without any come last. `None` once the plan is final.
    pub(super) fn observed(&self) -> Option<Vec<usize>> {
        let mut order = self.observed.clone()?;
        let mut seen = vec![false; self.gradients.len()];
        order.iter().for_each(|index| seen[*index] = true);
        order.extend((0..seen.len()).rev().filter(|index| !seen[*index]));
        Some(order)
    }

    /// The gradients of one bucket, while no pass is under way.
    pub(super) fn take(&mut self, bucket: usize) -> Result<Buffer> {
        self.slots[bucket].buffer.take().ok_or_else(on_their_way)
    }

    pub(super) fn set_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }

    /// Whether there are results that no step has used.
    pub(super) fn has_results(&self) -> bool {
        self.results
    }

    /// The results have been used.
    pub(super) fn used(&mut self) {
        self.results = false;
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
        self.results = false;
        self.sent = 0;
        for (slot, bucket) in self.slots.iter_mut().zip(self.plan.buckets()) {
            slot.missing = bucket.members.len();
        }
        Ok(())
    }

    /// Takes a gradient; hands its bucket over if it was the last of it.
    fn ready(&mut self, parameter: usize, gradient: &Buffer) -> Result<()> {
        let (bucket, range) = self.plan.place(parameter)?;
        let named = |what: &str| format!("parameter `{}` {what}", self.plan.parameters()[parameter].name);
        let Some(mode) = self.open else {
            return Err(Error::usage(named("got a gradient outside a backward pass"), "call begin first"));
        };
        if self.gradients[parameter] == Gradient::Ready {
            let remedy = "mark each parameter once per backward pass, when its whole gradient is there";
            return Err(Error::usage(named("was marked ready twice in one backward pass"), remedy));
        }
        let (dtype, len) = (self.plan.buckets()[bucket].dtype, range.len());
        if (gradient.dtype(), gradient.len()) != (dtype, len) {
            let what = named(&format!("has a gradient of {} × {}", gradient.len(), gradient.dtype()));
            return Err(Error::usage(what, format!("{len} × {dtype} were announced")));
        }
        let Some(buffer) = &self.slots[bucket].buffer else {
            let what = named("got a gradient while its bucket was being communicated");
            return Err(Error::usage(what, "do not call begin before finish"));
        };
        let (from, mut to) = (gradient.read(0..len)?, buffer.write(range)?);
        match self.gradients[parameter] {
            Gradient::Accumulated => Host.reduce(ReduceOp::Sum, &from, &mut to)?,
            _ => Host.copy(&from, &mut to)?,
        }
        drop(to);
        self.gradients[parameter] = Gradient::Ready;
        if let Some(observed) = &mut self.observed
            && !observed.contains(&parameter)
        {
            observed.push(parameter);
        }
        self.count(bucket, mode)
    }

    /// One gradient less is missing.
    fn count(&mut self, bucket: usize, mode: Mode) -> Result<()> {
        let slot = &mut self.slots[bucket];
        slot.missing -= 1;
        if slot.missing > 0 || mode == Mode::Accumulate || self.observed.is_some() {
            return Ok(());
        }
        self.send(bucket)
    }

    fn send(&mut self, bucket: usize) -> Result<()> {
        let Some(gradients) = self.slots[bucket].buffer.take() else { return Ok(()) };
        self.sent += 1;
        let memory = Memory { gradients: Some(gradients), parameters: None };
        self.port.send(Order::Hook { stage: Stage::Gradients, bucket, memory, turn: self.turn })
    }

    /// Hands over all buckets at once, after the first pass.
    pub(super) fn send_all(&mut self) -> Result<usize> {
        (0..self.slots.len()).try_for_each(|bucket| self.send(bucket))?;
        Ok(self.sent)
    }

    /// Ends the pass; returns how many buckets are with the communication thread, if they are to be waited for.
    pub(super) fn close(&mut self) -> Result<Option<usize>> {
        let Some(mode) = self.open.take() else {
            return Err(Error::usage("finish without a backward pass", "call begin first"));
        };
        if mode == Mode::Synchronize {
            self.complete()?;
            self.results = true;
        }
        for gradient in &mut self.gradients {
            *gradient = match (mode, *gradient) {
                (Mode::Accumulate, Gradient::Ready) => Gradient::Accumulated,
                (Mode::Accumulate, other) => other,
                (Mode::Synchronize, _) => Gradient::Missing,
            };
        }
        Ok((mode == Mode::Synchronize).then_some(self.sent))
    }

    /// Deals with the parameters that this pass did not reach.
    fn complete(&mut self) -> Result<()> {
        let missing = |gradient: &Gradient| *gradient == Gradient::Missing;
        if self.unused == Unused::Error && self.gradients.iter().any(missing) {
            let named = self.plan.parameters().iter().zip(&self.gradients);
            let names: Vec<String> = named
                .filter(|(_, g)| missing(g))
                .map(|(parameter, _)| format!("`{}`", parameter.name))
                .collect();
            return Err(Error::usage(
                format!("{} parameters got no gradient: {}", names.len(), names.join(", ")),
                "use them in the loss, leave them out, or ask for Unused::Zero",
            ));
        }
        for parameter in 0..self.gradients.len() {
            let before = self.gradients[parameter];
            if before == Gradient::Ready {
                continue;
            }
            let (bucket, range) = self.plan.place(parameter)?;
            if let (Gradient::Missing, Some(buffer)) = (before, &self.slots[bucket].buffer) {
                buffer.write(range)?.bytes_mut().fill(0);
            }
            self.count(bucket, Mode::Synchronize)?;
        }
        Ok(())
    }

    pub(super) fn take_back(&mut self, bucket: usize, buffer: Buffer) {
        self.slots[bucket].buffer = Some(buffer);
    }

    pub(super) fn gradient(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        match &self.slots[bucket].buffer {
            Some(buffer) if self.results => buffer.read(range),
            _ => Err(Error::usage("there are no synchronized gradients", "call finish first")),
        }
    }

    pub(super) fn buckets(&self) -> Vec<(DType, usize)> {
        self.plan.buckets().iter().map(|bucket| (bucket.dtype, bucket.len)).collect()
    }
}

fn slots(plan: &Plan, buffers: Vec<Buffer>) -> Vec<Slot> {
    let slot = |(bucket, buffer): (&super::plan::BucketPlan, Buffer)| Slot {
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

/// What a framework calls from inside its backward pass. Free to clone and to move between threads.
#[derive(Clone)]
pub struct Hooks(Arc<Mutex<Backward>>);

impl Hooks {
    pub(super) fn new(backward: Arc<Mutex<Backward>>) -> Self {
        Hooks(backward)
    }

    /// The whole gradient of a parameter is there. It is copied; if it was the last of its bucket, communication begins.
    ///
    /// # Errors
    /// [`Error::Usage`] outside a backward pass, for a second gradient of the same parameter, or another type or length
    /// than announced; what ended the communication thread, if it has failed.
    pub fn ready(&self, parameter: usize, gradient: &Buffer) -> Result<()> {
        lock(&self.0).ready(parameter, gradient)
    }

    /// [`Hooks::ready`] for a gradient in host memory.
    ///
    /// # Errors
    /// As there.
    pub fn ready_slice<T: Element>(&self, parameter: usize, gradient: &[T]) -> Result<()> {
        Buffer::lend(gradient, |gradient| self.ready(parameter, gradient))
    }
}
