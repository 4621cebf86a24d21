//! The engine for a framework in Python: the base of `hexagram.torch.DataParallel`.

mod communication_hook;
mod on_gpu;
mod options;
mod outside;
mod snapshots;
mod state;
mod thread;
mod view;

pub(crate) use communication_hook::CommunicationHook;
pub(crate) use options::{algorithms, needs_learning_rate};
pub(crate) use snapshots::Snapshots;
pub(crate) use thread::{answer, end_all};
pub(crate) use view::BucketView;

use crate::communicator::Communicator;
use crate::error::exception;
use crate::memory::{lent_to_read, lent_to_write};
use hexagram::algorithms::StepForm;
use hexagram::{Buffer, DataParallel, Hooks, Mode};
use on_gpu::{GpuArgument, ModelOnGpu};
use options::{AlgorithmArgument, EngineKeywords};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::{Mutex, OnceLock};
use thread::EngineThread;

/// Data-parallel training of one model, on one rank.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Engine {
    thread: Arc<EngineThread>,
    hooks: Hooks,
    /// The GPU of the model; `None` for a model in host memory.
    on_gpu: Option<ModelOnGpu>,
    /// Weight decay in the spelling of the optimizer: the default of groups.
    spelled_decay: Option<f64>,
    /// End of the current evaluation of the mean.
    evaluating: Mutex<Option<state::Evaluating>>,
}

/// One bucket: gradients, parameters if the engine has them, and the indices of the parameters with their places.
type BucketViews = (BucketView, Option<BucketView>, Vec<(usize, usize, usize)>);

#[pymethods]
impl Engine {
    /// `gpu` is the number of the GPU of the model, and a function that returns the handle of the current stream.
    #[new]
    #[pyo3(signature = (group, parameters, algorithm, options, gpu = None))]
    fn new(
        py: Python<'_>,
        group: &Communicator,
        parameters: Vec<(String, String, Vec<usize>)>,
        algorithm: AlgorithmArgument,
        options: EngineKeywords,
        gpu: Option<GpuArgument>,
    ) -> PyResult<Self> {
        let parameters = options::parameters(py, parameters)?;
        let algorithm = algorithm.algorithm().map_err(|error| exception(py, &error))?;
        let (mut options, spelled_decay) = options.read(py)?;
        let on_gpu = match gpu {
            Some(gpu) => {
                let (on_gpu, queue) = ModelOnGpu::open(py, gpu)?;
                options.queue = queue;
                Some(on_gpu)
            }
            None => None,
        };
        let made: Arc<OnceLock<Hooks>> = Arc::default();
        let hooks = Arc::clone(&made);
        let thread = EngineThread::start(py, group, move |comm| {
            let engine = DataParallel::new(comm, parameters, algorithm, options)?;
            // Set once, here.
            let _ = hooks.set(engine.hooks());
            Ok(engine)
        })?;
        let hooks = match made.get() {
            Some(hooks) => hooks.clone(),
            None => thread.call(py, |engine| Ok(engine.hooks()))?,
        };
        Ok(Engine { thread, hooks, on_gpu, spelled_decay, evaluating: Mutex::default() })
    }

    fn forward(&self, py: Python<'_>, learning_rate: Option<f64>) -> PyResult<()> {
        self.call_in_order(py, move |engine| {
            follow(engine, learning_rate);
            engine.forward()
        })
    }

    /// Begins a pass of a step with this learning rate, and optionally with a different one to compare with the other ranks.
    fn begin(
        &self,
        py: Python<'_>,
        accumulate: bool,
        learning_rate: Option<f64>,
        compared: Option<f64>,
    ) -> PyResult<()> {
        let mode = if accumulate { Mode::Accumulate } else { Mode::Synchronize };
        self.call_in_order(py, move |engine| {
            follow(engine, learning_rate);
            engine.compare_rate(compared);
            engine.begin(mode)
        })
    }

    /// Takes a gradient that is stored in its bucket. Any thread may call it.
    fn ready(&self, py: Python<'_>, parameter: usize) -> PyResult<()> {
        self.on_gpu.as_ref().map_or(Ok(()), |on_gpu| on_gpu.ready(py, parameter))?;
        self.hooks.ready_in_bucket(parameter).map_err(|error| exception(py, &error))
    }

    /// Takes a gradient that is stored elsewhere, and copies it. Any thread may call it.
    fn ready_elsewhere(&self, parameter: usize, gradient: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = lent_to_read(gradient)?;
        self.hooks.ready(parameter, &buffer).map_err(|error| exception(gradient.py(), &error))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let finished = self.call(py, |engine| engine.finish().map(|()| engine.generation()));
        self.after(py, finished)
    }

    fn step(&self, py: Python<'_>, learning_rate: Option<f64>) -> PyResult<u64> {
        self.call_in_order(py, move |engine| {
            follow(engine, learning_rate);
            engine.step().map(|()| engine.generation())
        })
    }

    fn stepped(&self, py: Python<'_>) -> PyResult<u64> {
        self.call_in_order(py, |engine| engine.stepped().map(|()| engine.generation()))
    }

    /// Returns the indices of the parameters that the next step leaves unchanged, since no rank has used them.
    fn idle(&self, py: Python<'_>, parameters: usize) -> PyResult<Vec<usize>> {
        self.call(py, move |engine| Ok((0..parameters).filter(|index| engine.is_idle(*index)).collect()))
    }

    fn leave_idle(&self, py: Python<'_>, parameters: Vec<usize>) -> PyResult<()> {
        self.call(py, move |engine| engine.leave_idle(&parameters))
    }

    fn set_gradient(&self, py: Python<'_>, parameter: usize, gradient: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = lent_to_read(gradient)?;
        self.call_in_order(py, move |engine| engine.set_gradient(parameter, &buffer))
    }

    fn set_group_factors(&self, py: Python<'_>, factors: Vec<(f64, f64)>) -> PyResult<()> {
        self.call(py, move |engine| engine.set_group_factors(&factors))
    }

    fn left_out(&self, py: Python<'_>) -> PyResult<u64> {
        self.call_in_order(py, |engine| engine.left_out().map(|()| engine.generation()))
    }

    /// Waits for the work of the last step on these parameters; returns the generation.
    fn wait_for(&self, py: Python<'_>, parameters: Vec<usize>) -> PyResult<u64> {
        let waited = self.call(py, move |engine| engine.wait_for(&parameters).map(|()| engine.generation()));
        self.after(py, waited)
    }

    fn wait_for_all(&self, py: Python<'_>) -> PyResult<u64> {
        self.call_in_order(py, |engine| engine.wait_for_all().map(|()| engine.generation()))
    }

    fn shadow(&self, py: Python<'_>) -> PyResult<bool> {
        self.call_in_order(py, |engine| engine.uneven().shadow())
    }

    /// Returns the learning rate of the ranks that train, in a step that `shadow` has begun.
    fn announced_rate(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.call(py, |engine| Ok(engine.uneven().learning_rate()))
    }

    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        self.call_in_order(py, |engine| engine.initial().prepare())
    }

    fn set_loss(&self, py: Python<'_>, loss: f64) -> PyResult<()> {
        self.call(py, move |engine| {
            engine.set_loss(loss);
            Ok(())
        })
    }

    fn check_optimizer(&self, py: Python<'_>, form: &str, name: String) -> PyResult<()> {
        let form = match form {
            "plain" => StepForm::Plain,
            "decaying" => StepForm::Decaying,
            _ => StepForm::Other,
        };
        self.call(py, move |engine| engine.check_framework_optimizer(form, &name))
    }

    fn broadcast_state(&self, py: Python<'_>, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut tensors = buffers(&tensors)?;
        self.call_in_order(py, move |engine| engine.initial().broadcast_state(&mut tensors))
    }

    fn synchronize_buffers(&self, py: Python<'_>, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut tensors = buffers(&tensors)?;
        self.call_in_order(py, move |engine| engine.synchronize_buffers(&mut tensors))
    }

    fn average_buffers(&self, py: Python<'_>, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut tensors = buffers(&tensors)?;
        self.call_in_order(py, move |engine| engine.average_buffers(&mut tensors))
    }

    /// Compares these tensors, and the parameters of the engine, between ranks.
    fn check_replicas(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        tensors: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let tensors = tensors.iter().map(lent_to_read).collect::<PyResult<Vec<_>>>()?;
        self.call_in_order(py, move |engine| {
            let named: Vec<_> = names.into_iter().zip(&tensors).collect();
            engine.check_replicas(&named)
        })
    }

    fn bucket_memory(&self, py: Python<'_>) -> PyResult<(u64, Vec<BucketViews>)> {
        self.enter(py)?;
        let (generation, buckets) =
            self.call(py, |engine| Ok((engine.generation(), engine.bucket_memory()?)))?;
        if let Some(on_gpu) = &self.on_gpu {
            on_gpu.note(&buckets);
        }
        self.leave(py)?;
        let gpu = self.on_gpu.as_ref().map(ModelOnGpu::gpu);
        let view = |span| BucketView::new(span, gpu);
        let told = buckets.into_iter().map(|bucket| {
            let places = bucket.members.into_iter().map(|(index, range)| (index, range.start, range.end));
            (view(bucket.gradients), bucket.parameters.map(view), places.collect())
        });
        Ok((generation, told.collect()))
    }

    /// Copies a gradient whose type differs in its bucket, as the algorithm left it.
    fn gradient(&self, py: Python<'_>, parameter: usize, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = lent_to_write(into)?;
        self.call_in_order(py, move |engine| buffer.write_all()?.copy_from(&engine.gradient(parameter)?))
    }

    /// Copies the values of a parameter whose type differs in its bucket.
    fn parameter(&self, py: Python<'_>, parameter: usize, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = lent_to_write(into)?;
        self.read(py, move |engine| buffer.write_all()?.copy_from(&engine.parameter(parameter)?))
    }

    fn set_parameter(&self, py: Python<'_>, parameter: usize, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = lent_to_read(values)?;
        self.call_in_order(py, move |engine| engine.set_parameter(parameter, &buffer))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.thread.end(py)
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.thread.is_closed()
    }
}

impl Engine {
    /// Runs a job on the engine thread, and waits for it. Fails while a mean is being evaluated, as the thread waits
    /// for the end of the evaluation.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut DataParallel) -> hexagram::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        self.check_no_mean(py)?;
        self.thread.call(py, work)
    }

    /// Does the same for work on gradients, parameters or tensors, in the order of the streams of a GPU.
    fn call_in_order<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut DataParallel) -> hexagram::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        self.enter(py)?;
        let result = self.call(py, work);
        self.after(py, result)
    }

    /// Returns the result of a call, after which the current stream waits for the engine, even if the call has failed.
    fn after<T>(&self, py: Python<'_>, result: PyResult<T>) -> PyResult<T> {
        let left = self.leave(py);
        result.and_then(|value| left.map(|()| value))
    }

    /// Makes work of the engine wait for the current stream, if the model is on a GPU.
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        self.on_gpu.as_ref().map_or(Ok(()), |on_gpu| on_gpu.enter(py))
    }

    /// Makes the current stream wait for the work of the engine, if the model is on a GPU.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.on_gpu.as_ref().map_or(Ok(()), |on_gpu| on_gpu.leave(py))
    }
}

/// Updates the learning rate of an engine for the next step, if it is given.
fn follow(engine: &mut DataParallel, learning_rate: Option<f64>) {
    if let Some(rate) = learning_rate {
        engine.set_learning_rate(rate);
    }
}

/// Returns tensors as mutable buffers over them.
fn buffers(tensors: &[Bound<'_, PyAny>]) -> PyResult<Vec<Buffer>> {
    tensors.iter().map(lent_to_write).collect()
}
