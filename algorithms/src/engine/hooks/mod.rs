//! The calls that a framework makes from inside its backward pass.

mod pass;

pub use pass::Mode;
pub(super) use pass::Results;

use super::plan::Plan;
use super::runner::{Memory, Request, Requests};
use super::stage::Stage;
use super::widths::widen;
use crate::bytes::on_host;
use crate::plugin::StepInfo;
use hexagram_logical::{Buffer, Element, Error, ReadView, Result, WriteView};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls that a framework makes from inside its backward pass. Free to clone and to move between threads.
///
/// A call that was refused ends the pass: [`finish`](super::DataParallel::finish) returns its error, on this rank, and
/// ends the others with it.
///
/// ```
/// # use hexagram::logical::{DType, TransportKind, testing::spawn};
/// # use hexagram::algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Sgd};
/// # use std::sync::Arc;
/// # spawn(TransportKind::Thread, 2, |comm| {
/// # let x = Parameter { name: "x".into(), dtype: DType::F32, shape: vec![2] };
/// # let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..Default::default() };
/// # let mut engine = DataParallel::new(&comm, vec![x], GradientAllReduce, options)?;
/// # engine.set_learning_rate(1.0);
/// let hooks = engine.hooks();
/// engine.begin(Mode::Synchronize)?;
/// // From inside the backward pass, on whatever thread that runs:
/// hooks.ready_slice(0, &[comm.rank() as f32, 2.0])?;
/// engine.finish()?;
/// engine.step()?;
/// assert_eq!(engine.values::<f32>(0)?, [-0.5, -2.0]);
/// # Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Hooks(Arc<Mutex<Backward>>);

impl Hooks {
    pub(super) fn new(backward: Arc<Mutex<Backward>>) -> Self {
        Hooks(backward)
    }

    /// Takes the whole gradient of a parameter. It is copied; if it was the last of its bucket, communication begins.
    ///
    /// # Errors
    /// [`Error::Usage`] outside a backward pass, for a second gradient of the same parameter, or another type or length
    /// than announced; what ended the communication thread, if it has failed.
    pub fn ready(&self, parameter: usize, gradient: &Buffer) -> Result<()> {
        self.call(|backward| {
            let announced = backward.plan.parameter(parameter)?;
            let dtype = announced.dtype;
            let len = announced.len();
            if (gradient.dtype(), gradient.len()) != (dtype, len) {
                let what = format!("has a gradient of {} × {}", gradient.len(), gradient.dtype());
                return Err(backward.refused(parameter, &what, &format!("{len} × {dtype} were announced")));
            }
            let mut to = backward.expected(parameter)?;
            let is_added = backward.gradients[parameter] == Gradient::Partial;
            widen(&gradient.read_all()?, &mut to, is_added)?;
            drop(to);
            backward.mark(parameter)
        })
    }

    /// Takes a gradient in host memory: [`Hooks::ready`] for a slice.
    ///
    /// # Errors
    /// As [`Hooks::ready`].
    pub fn ready_slice<T: Element>(&self, parameter: usize, gradient: &[T]) -> Result<()> {
        Buffer::lend(gradient, |gradient| self.ready(parameter, gradient))
    }

    /// Takes a sparse gradient, such as that of an embedding: zero but for `rows` of the parameter (of its first
    /// dimension), whose values follow each other in `values`. A row that comes twice is added up. It is communicated
    /// with its zeros, as a dense gradient; algorithms that send only some elements find them by themselves.
    ///
    /// # Errors
    /// As [`Hooks::ready`], and for rows that the parameter does not have.
    pub fn ready_rows(&self, parameter: usize, rows: &[usize], values: &Buffer) -> Result<()> {
        self.call(|backward| {
            let width = backward.check_rows(parameter, rows, values)?;
            drop(backward.in_place(parameter)?);
            let (bucket, place) = backward.plan.place(parameter)?;
            let buffer = backward.slots[bucket].buffer.as_ref().ok_or_else(on_their_way)?;
            for (at, row) in rows.iter().enumerate() {
                let start = place.start + row * width;
                let from = values.read(at * width..(at + 1) * width)?;
                widen(&from, &mut buffer.write(start..start + width)?, true)?;
            }
            backward.mark(parameter)
        })
    }

    /// Lends a gradient's own memory in its bucket, for a framework that lets gradients live there:
    /// [`Hooks::ready_in_place`] then copies nothing. It holds what earlier passes have accumulated, and what was
    /// written in this one: zeros at first. Gradients of 16-bit parameters are f32 here. Memory of another device than
    /// the host's is copied down and back.
    ///
    /// The memory may be another in the next pass.
    ///
    /// # Errors
    /// As [`Hooks::ready`]; [`Error::Busy`] while another thread has the same gradient.
    pub fn with_gradient<T: Element, R>(
        &self,
        parameter: usize,
        work: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        let mut view = self.in_place::<T>(parameter)?;
        // Not under the lock: other threads may have gradients of their own meanwhile.
        if let Some(bytes) = view.host_bytes_mut() {
            return Ok(work(bytemuck::cast_slice_mut(bytes)));
        }
        drop(view);
        let mut copy = on_host(&self.call(|backward| backward.written(parameter))?)?;
        let outcome = work(&mut copy.host_mut::<T>()?);
        self.in_place::<T>(parameter)?.copy_from(&copy.read_all()?)?;
        Ok(outcome)
    }

    fn in_place<T: Element>(&self, parameter: usize) -> Result<WriteView> {
        self.call(|backward| {
            let view = backward.in_place(parameter)?;
            let asked = T::DTYPE;
            let there = view.dtype();
            if asked == there {
                return Ok(view);
            }
            let what = format!("the gradient of parameter {parameter} was asked for as {asked}");
            Err(Error::usage(what, format!("it is {there} in its bucket")))
        })
    }

    /// Takes a gradient that [`Hooks::with_gradient`] has written.
    ///
    /// # Errors
    /// As [`Hooks::with_gradient`], and if nothing was written.
    pub fn ready_in_place(&self, parameter: usize) -> Result<()> {
        self.call(|backward| {
            drop(backward.expected(parameter)?);
            if backward.gradients[parameter] == Gradient::Missing {
                let what = "was marked ready, but nothing of its gradient was written";
                let remedy = "write it where it lies in its bucket, or hand a tensor over";
                return Err(backward.refused(parameter, what, remedy));
            }
            backward.mark(parameter)
        })
    }

    /// Takes a gradient that the framework has written where it lies in its bucket: the view of it that
    /// [`DataParallel::bucket_memory`](super::DataParallel::bucket_memory) tells of. What is there is the whole gradient,
    /// with all that earlier passes have left: the framework adds to it, or clears it, by its own rules.
    ///
    /// # Errors
    /// As [`Hooks::ready`]; [`Error::Usage`] for a parameter of 16 bits, whose gradient lies there in f32.
    pub fn ready_as_it_lies(&self, parameter: usize) -> Result<()> {
        self.call(|backward| {
            let announced = backward.plan.parameter(parameter)?.dtype;
            if announced.is_half() {
                let what = format!("of {announced} has no gradient of its own type in its bucket");
                return Err(backward.refused(parameter, &what, "hand over a tensor, which is converted"));
            }
            drop(backward.expected(parameter)?);
            backward.mark(parameter)
        })
    }

    /// Does the work of a call. What is refused is remembered: a pass with a mistake in it must not end well.
    fn call<R>(&self, work: impl FnOnce(&mut Backward) -> Result<R>) -> Result<R> {
        let mut backward = lock(&self.0);
        let outcome = work(&mut backward);
        if let (Err(error), true, None) = (&outcome, backward.is_open(), &backward.mistake) {
            backward.mistake = Some(error.clone());
        }
        outcome
    }
}

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

/// Gradients of one bucket.
struct GradientBucket {
    /// Gradients; `None` while the communication thread has them.
    buffer: Option<Buffer>,
    /// Address of the gradients when they were last here.
    place: usize,
    /// Number of members whose gradient this pass still owes.
    missing: usize,
}

/// Gradients of the pass under way, and what is left of them between two.
pub(super) struct Backward {
    plan: Plan,
    /// Number of times that buckets were made anew, or moved to another buffer.
    generation: u64,
    requests: Requests,
    /// True if buckets wait for the end of the pass.
    held: bool,
    slots: Vec<GradientBucket>,
    gradients: Vec<Gradient>,
    /// For each parameter, true if the step after the last pass leaves it as it is.
    idle: Vec<bool>,
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
        let waits = self.held || self.open == Some(Mode::Accumulate);
        if slot.missing > 0 || waits { Ok(()) } else { self.send(bucket) }
    }

    fn send(&mut self, bucket: usize) -> Result<()> {
        let Some(gradients) = self.slots[bucket].buffer.take() else { return Ok(()) };
        self.sent += 1;
        let memory = Memory { gradients: Some(gradients), ..Memory::default() };
        self.requests.send(Request::Hook { stage: Stage::Gradients, bucket, memory, present: self.present })
    }

    /// Returns a gradient's memory, with what is there of it: zeros at first.
    fn in_place(&mut self, parameter: usize) -> Result<WriteView> {
        let mut to = self.expected(parameter)?;
        if self.gradients[parameter] == Gradient::Missing {
            to.clear();
            self.gradients[parameter] = Gradient::Partial;
        }
        Ok(to)
    }

    /// Returns what is there of a gradient.
    fn written(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        self.slots[bucket].buffer.as_ref().ok_or_else(on_their_way)?.read(range)
    }

    /// Fails unless `values` are of rows that the parameter has; returns the number of elements of a row.
    fn check_rows(&self, parameter: usize, rows: &[usize], values: &Buffer) -> Result<usize> {
        let announced = self.plan.parameter(parameter)?;
        let dtype = announced.dtype;
        let count = announced.shape.first().copied().unwrap_or(1);
        let width = announced.len().checked_div(count).unwrap_or(0);
        if (values.dtype(), values.len()) != (dtype, rows.len() * width) {
            let what = format!("has {} rows of {} × {} together", rows.len(), values.len(), values.dtype());
            return Err(self.refused(parameter, &what, &format!("give each row {width} × {dtype}")));
        }
        match rows.iter().find(|row| **row >= count) {
            Some(row) => {
                let what = format!("has no row {row}");
                Err(self.refused(parameter, &what, &format!("it has {count} rows")))
            }
            None => Ok(width),
        }
    }

    fn refused(&self, parameter: usize, what: &str, remedy: &str) -> Error {
        Error::usage(format!("parameter `{}` {what}", self.plan.parameters()[parameter].name), remedy)
    }
}

fn on_their_way() -> Error {
    Error::usage("gradients are being communicated", "call finish after every begin")
}

pub(super) fn lock(backward: &Mutex<Backward>) -> MutexGuard<'_, Backward> {
    // A panic inside a pass leaves it open, which the next `begin` refuses.
    backward.lock().unwrap_or_else(PoisonError::into_inner)
}
