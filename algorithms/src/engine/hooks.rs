//! The calls that a framework makes from inside its backward pass.

use super::backward::{Backward, lock};
use crate::bytes::on_host;
use hexagram_logical::{Buffer, Element, Error, Result, WriteView};
use std::sync::{Arc, Mutex};

/// Calls that a framework makes from inside its backward pass. Free to clone and to move between threads.
///
/// A call that was refused ends the pass: [`finish`](super::DataParallel::finish) returns its error, on this rank, and
/// ends the others with it.
///
/// ```
/// # use hexagram_algorithms::logical::{DType, TransportKind, testing::spawn};
/// # use hexagram_algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Sgd};
/// # use std::sync::Arc;
/// # spawn(TransportKind::Thread, 2, |comm| {
/// # let x = Parameter { name: "x".into(), dtype: DType::F32, shape: vec![2] };
/// # let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..Default::default() };
/// # let mut engine = DataParallel::new(&comm, vec![x], Arc::new(GradientAllReduce), options)?;
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
        lock(&self.0).hook(|backward| backward.ready(parameter, gradient))
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
        lock(&self.0).hook(|backward| backward.ready_rows(parameter, rows, values))
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
        let mut copy = on_host(&lock(&self.0).hook(|backward| backward.written(parameter))?)?;
        let outcome = work(&mut copy.host_mut::<T>()?);
        self.in_place::<T>(parameter)?.copy_from(&copy.read_all()?)?;
        Ok(outcome)
    }

    fn in_place<T: Element>(&self, parameter: usize) -> Result<WriteView> {
        lock(&self.0).hook(|backward| {
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
        lock(&self.0).hook(|backward| backward.ready_in_place(parameter))
    }
}
