//! The calls that a framework makes during its backward pass.

mod pass;

pub use pass::Mode;
pub(super) use pass::PassContents;

use super::plan::ModelPlan;
use super::precision::widen;
use super::runner::{BucketTransfer, HookStage, Requests, RunnerRequest};
use crate::host_copy::on_host;
use crate::plugin::StepInfo;
use hexagram_logical::{Buffer, Element, Error, ReadView, Result, WriteView};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls that a framework makes during its backward pass. Can be cloned and moved between threads.
///
/// A refused call ends the pass: [`finish`](super::DataParallel::finish) returns its error on this rank, and ends the
/// other ranks with it.
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
/// // During the backward pass, on any thread:
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

    /// Takes the complete gradient of a parameter. It is copied; if it was the last of its bucket, communication
    /// begins.
    ///
    /// # Errors
    /// [`Error::Usage`] outside a backward pass, for a second gradient of the same parameter, or a type or length other
    /// than announced; the error that ended the communication thread, if it has failed.
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

    /// Takes a gradient in host memory, like [`Hooks::ready`], from a slice.
    ///
    /// # Errors
    /// As [`Hooks::ready`].
    pub fn ready_slice<T: Element>(&self, parameter: usize, gradient: &[T]) -> Result<()> {
        Buffer::lend(gradient, |gradient| self.ready(parameter, gradient))
    }

    /// Takes a sparse gradient, such as that of an embedding: zero except for `rows` of the parameter (in its first
    /// dimension), whose values follow each other in `values`. Repeated rows are summed. It is communicated with its
    /// zeros, like a dense gradient; sparse algorithms select their elements themselves.
    ///
    /// # Errors
    /// As [`Hooks::ready`], and for rows out of range.
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

    /// Gives access to the memory of a gradient in its bucket, for a framework that keeps gradients there:
    /// [`Hooks::ready_in_place`] then copies nothing. It contains the gradients accumulated by earlier passes and the
    /// values written in this one: zeros at first. Gradients of 16-bit parameters are f32 here. Memory of a device
    /// other than the host is copied down and back.
    ///
    /// The memory may differ in the next pass.
    ///
    /// # Errors
    /// As [`Hooks::ready`]; [`Error::Busy`] while another thread uses the same gradient.
    pub fn with_gradient<T: Element, R>(
        &self,
        parameter: usize,
        work: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        let mut view = self.in_place::<T>(parameter)?;
        // Not under the lock: other threads may work on other gradients meanwhile.
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
            let what = format!("the gradient of parameter {parameter} was requested as {asked}");
            Err(Error::usage(what, format!("it is {there} in its bucket")))
        })
    }

    /// Takes a gradient that [`Hooks::with_gradient`] has written.
    ///
    /// # Errors
    /// As [`Hooks::with_gradient`], and if no gradient was written.
    pub fn ready_in_place(&self, parameter: usize) -> Result<()> {
        self.call(|backward| {
            drop(backward.expected(parameter)?);
            if backward.gradients[parameter] == Gradient::Missing {
                let what = "was marked ready, but its gradient was not written";
                let remedy = "write it in its bucket, or pass a tensor";
                return Err(backward.refused(parameter, what, remedy));
            }
            backward.mark(parameter)
        })
    }

    /// Takes a gradient that the framework has written directly into its bucket, through the view that
    /// [`DataParallel::bucket_memory`](super::DataParallel::bucket_memory) describes. The memory holds the complete
    /// gradient, including that of earlier passes: the framework adds to it, or clears it, by its own rules.
    ///
    /// # Errors
    /// As [`Hooks::ready`]; [`Error::Usage`] for a parameter of 16 bits, whose gradient is stored in f32.
    pub fn ready_in_bucket(&self, parameter: usize) -> Result<()> {
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

    /// Runs a call, and keeps its error: a pass with a refused call must not succeed.
    fn call<R>(&self, work: impl FnOnce(&mut Backward) -> Result<R>) -> Result<R> {
        let mut backward = lock(&self.0);
        let outcome = work(&mut backward);
        if let (Err(error), true, None) = (&outcome, backward.is_open(), &backward.mistake) {
            backward.mistake = Some(error.clone());
        }
        outcome
    }
}

/// State of the gradient of a parameter in the current pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gradient {
    /// The bucket contains nothing of it.
    Missing,
    /// The bucket contains a part of it, accumulated by earlier passes, or written in place.
    Partial,
    /// The gradient is complete.
    Ready,
}

/// Gradients of one bucket.
struct GradientBucket {
    /// Gradients; `None` while the communication thread owns them.
    buffer: Option<Buffer>,
    /// Address of the gradients when this thread last owned them.
    place: usize,
    /// Number of members whose gradient is still missing in this pass.
    missing: usize,
}

/// Gradients of the current pass, and those that remain between two passes.
pub(super) struct Backward {
    plan: ModelPlan,
    /// Number of times that buckets were recreated, or moved to another buffer.
    generation: u64,
    requests: Requests,
    /// True if buckets wait for the end of the pass.
    held: bool,
    slots: Vec<GradientBucket>,
    gradients: Vec<Gradient>,
    /// For each parameter, true if the step after the last pass leaves it unchanged.
    idle: Vec<bool>,
    /// Mode of the current pass, if there is one.
    open: Option<Mode>,
    /// Number of buckets handed over in this pass.
    sent: usize,
    results: PassContents,
    /// Error of the first refused call in the current pass.
    mistake: Option<Error>,
    /// Current step, for the hooks.
    present: StepInfo,
    /// Parameters in the order in which their gradients arrived, until the plan is final.
    observed: Option<Vec<usize>>,
}

impl Backward {
    /// Returns the memory of a gradient, if it is still missing in this pass.
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
            let remedy = "mark each parameter once per backward pass, when its gradient is complete";
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

    /// Counts down the missing gradients of a bucket.
    fn count(&mut self, bucket: usize) -> Result<()> {
        let slot = &mut self.slots[bucket];
        slot.missing -= 1;
        let waits = self.held || self.open == Some(Mode::Accumulate);
        if slot.missing > 0 || waits { Ok(()) } else { self.send(bucket) }
    }

    fn send(&mut self, bucket: usize) -> Result<()> {
        let Some(gradients) = self.slots[bucket].buffer.take() else { return Ok(()) };
        self.sent += 1;
        let memory = BucketTransfer { gradients: Some(gradients), ..BucketTransfer::default() };
        self.requests.send(RunnerRequest::Hook {
            stage: HookStage::Gradients,
            bucket,
            memory,
            present: self.present,
        })
    }

    /// Returns the memory of a gradient with its present values: zeros at first.
    fn in_place(&mut self, parameter: usize) -> Result<WriteView> {
        let mut to = self.expected(parameter)?;
        if self.gradients[parameter] == Gradient::Missing {
            to.clear();
            self.gradients[parameter] = Gradient::Partial;
        }
        Ok(to)
    }

    /// Returns the present values of a gradient.
    fn written(&self, parameter: usize) -> Result<ReadView> {
        let (bucket, range) = self.plan.place(parameter)?;
        self.slots[bucket].buffer.as_ref().ok_or_else(on_their_way)?.read(range)
    }

    /// Fails unless `values` matches `rows`, and all rows are in range; returns the number of elements of a row.
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
    // A panic during a pass leaves it open, and the next `begin` refuses that.
    backward.lock().unwrap_or_else(PoisonError::into_inner)
}
