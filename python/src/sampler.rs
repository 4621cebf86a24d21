//! Samplers: the assignment of samples to ranks, with the same indices as in Rust and in PyTorch.

use crate::error::usage;
use crate::values::whole::{count, ranks};
use hexagram::sampler::loader::LoaderState;
use hexagram::sampler::{
    Batching, Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    ElasticOptions, ElasticSampler, EpochPart, LoadBalancingBatchSampler, LoadBalancingDistributedSampler,
    LoadBalancingOptions, SamplerError, ShardedOptions, ShardedSampler, Tail, WeightedOptions,
    WeightedRandomSampler,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The order of samples, or of batches, on one rank in every epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct Sampler {
    order: Arc<Mutex<PythonOrder>>,
}

/// Draws of an epoch from a position on.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct SamplerIterator {
    order: Arc<Mutex<PythonOrder>>,
    draws: Mutex<Remaining>,
}

/// The rest of an epoch, its position, and the earlier parts of the epoch.
struct Remaining {
    draws: Box<dyn ExactSizeIterator<Item = Draw> + Send>,
    epoch: u64,
    position: usize,
    parts: Vec<EpochPart>,
    stride: usize,
}

/// The state for resumption: epoch, position, the fingerprint of the order, and for orders that depend on the number of
/// ranks, the grouping and the earlier parts as in [`LoaderState`]. States of earlier versions lack the last two.
#[derive(FromPyObject, IntoPyObject)]
struct ResumePosition {
    #[pyo3(item, from_py_with = count)]
    epoch: u64,
    #[pyo3(item, from_py_with = count)]
    position: usize,
    #[pyo3(item)]
    fingerprint: u64,
    #[pyo3(item, default = 1, from_py_with = count)]
    grouping: usize,
    #[pyo3(item, default)]
    parts: Vec<(usize, usize)>,
}

struct PythonOrder {
    draws: EpochDraws,
    /// Earlier parts of the current epoch.
    parts: Vec<EpochPart>,
    /// First error of a Python function that makes batches.
    failure: FirstPythonError,
}

type FirstPythonError = Arc<Mutex<Option<PyErr>>>;

enum EpochDraws {
    Samples(Box<dyn hexagram::sampler::Sampler<Item = usize>>),
    Batches(Box<dyn hexagram::sampler::Sampler<Item = Vec<usize>>>),
}

/// The index of a sample, or those of a batch.
#[derive(IntoPyObject)]
enum Draw {
    Sample(usize),
    Batch(Vec<usize>),
}

/// Evaluates an expression with the sampler of either kind.
macro_rules! with {
    ($order:expr, $sampler:ident => $value:expr) => {
        match &mut $order.draws {
            EpochDraws::Samples($sampler) => $value,
            EpochDraws::Batches($sampler) => $value,
        }
    };
}

#[pymethods]
impl Sampler {
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn distributed(
        py: Python<'_>,
        #[pyo3(from_py_with = count)] len: usize,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        shuffle: bool,
        seed: u64,
        drop_last: bool,
        exact: bool,
    ) -> PyResult<Self> {
        let options = DistributedOptions { len, replicas, rank, shuffle, seed, epoch: 0, drop_last, exact };
        made(py, DistributedSampler::new(options), |sampler| EpochDraws::Samples(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn load_balancing(
        py: Python<'_>,
        complexities: Vec<f64>,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        shuffle: bool,
        seed: u64,
        drop_last: bool,
        random_level: f64,
    ) -> PyResult<Self> {
        let options = LoadBalancingOptions {
            replicas,
            rank,
            shuffle,
            seed,
            drop_last,
            random_level,
            ..LoadBalancingOptions::default()
        };
        made(py, balanced(complexities, options), |sampler| EpochDraws::Samples(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn elastic(
        py: Python<'_>,
        #[pyo3(from_py_with = count)] len: usize,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        #[pyo3(from_py_with = count)] global_batch: usize,
        shuffle: bool,
        seed: u64,
        tail: &str,
    ) -> PyResult<Self> {
        let tail = self::tail(py, tail)?;
        let options = ElasticOptions { len, replicas, rank, global_batch, shuffle, seed, epoch: 0, tail };
        made(py, ElasticSampler::new(options), |sampler| EpochDraws::Batches(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn cost_balanced(
        py: Python<'_>,
        costs: Vec<f64>,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        #[pyo3(from_py_with = count)] global_batch: usize,
        speeds: Vec<f64>,
        shuffle: bool,
        seed: u64,
        tail: &str,
        #[pyo3(from_py_with = count)] mix: usize,
        random_level: f64,
    ) -> PyResult<Self> {
        let tail = self::tail(py, tail)?;
        let options = CostBalancedOptions {
            replicas,
            rank,
            global_batch,
            speeds,
            shuffle,
            seed,
            epoch: 0,
            tail,
            mix,
            random_level,
        };
        let sampler = Complexities::new(costs).and_then(|costs| CostBalancedSampler::new(costs, options));
        made(py, sampler, |sampler| EpochDraws::Batches(Box::new(sampler)))
    }

    /// Batches of a load-balanced order, as `batch_fn` makes them from the samples of a rank.
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn load_balancing_batches(
        py: Python<'_>,
        complexities: Vec<f64>,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        shuffle: bool,
        seed: u64,
        drop_last: bool,
        random_level: f64,
        batch_fn: Py<PyAny>,
        drop_last_batches: bool,
        #[pyo3(from_py_with = count)] epoch: u64,
    ) -> PyResult<Self> {
        let options = LoadBalancingOptions { replicas, rank, shuffle, seed, epoch, drop_last, random_level };
        let failure = FirstPythonError::default();
        let batching = batching(batch_fn, &failure);
        // The Python function runs on this thread, for every rank.
        let sampler = balanced(complexities, options)
            .and_then(|sampler| LoadBalancingBatchSampler::new(sampler, batching, drop_last_batches));
        let sampler = made(py, sampler, |sampler| EpochDraws::Batches(Box::new(sampler)))?;
        raise(py, &failure)?;
        lock(py, &sampler.order).failure = failure;
        Ok(sampler)
    }

    /// Samples drawn by weight; each rank gets its share.
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn weighted(
        py: Python<'_>,
        weights: Vec<f64>,
        #[pyo3(from_py_with = count)] num_samples: usize,
        #[pyo3(from_py_with = count)] replicas: usize,
        #[pyo3(from_py_with = ranks)] rank: usize,
        replacement: bool,
        seed: u64,
        tail: &str,
    ) -> PyResult<Self> {
        let options = ShardedOptions { replicas, rank, tail: self::tail(py, tail)? };
        let weights = WeightedOptions { weights, num_samples, replacement, seed, epoch: 0 };
        let sampler =
            WeightedRandomSampler::new(weights).and_then(|sampler| ShardedSampler::new(sampler, options));
        made(py, sampler, |sampler| EpochDraws::Samples(Box::new(sampler)))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        with!(lock(py, &self.order), sampler => sampler.len())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<SamplerIterator> {
        self.iter_from(py, 0)
    }

    fn iter_from(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] position: usize,
    ) -> PyResult<SamplerIterator> {
        let draws = Mutex::new(lock(py, &self.order).from(py, position)?);
        Ok(SamplerIterator { order: Arc::clone(&self.order), draws })
    }

    /// Returns the state for resuming the current epoch at a position.
    fn state_at(&self, py: Python<'_>, #[pyo3(from_py_with = count)] position: usize) -> ResumePosition {
        let mut order = lock(py, &self.order);
        let epoch = with!(order, sampler => sampler.epoch());
        let parts = order.parts.clone();
        order.state((epoch, position), &parts)
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> u64 {
        with!(lock(py, &self.order), sampler => sampler.epoch())
    }

    fn set_epoch(&self, py: Python<'_>, #[pyo3(from_py_with = count)] epoch: u64) -> PyResult<()> {
        lock(py, &self.order).set_epoch(py, epoch)
    }

    /// Moves to the epoch of a state. Raises `ValueError` if the state belongs to another order or is damaged.
    fn load_state_dict(&self, py: Python<'_>, state: ResumePosition) -> PyResult<()> {
        lock(py, &self.order).go_to(py, &state)
    }

    #[getter]
    fn stride(&self, py: Python<'_>) -> usize {
        with!(lock(py, &self.order), sampler => sampler.stride())
    }

    #[getter]
    fn fingerprint(&self, py: Python<'_>) -> u64 {
        with!(lock(py, &self.order), sampler => sampler.fingerprint())
    }
}

impl PythonOrder {
    fn set_epoch(&mut self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        if with!(self, sampler => sampler.epoch()) != epoch {
            self.parts.clear();
        }
        with!(self, sampler => sampler.set_epoch(epoch));
        raise(py, &self.failure)
    }

    fn set_parts(&mut self, py: Python<'_>, parts: Vec<EpochPart>) -> PyResult<()> {
        with!(self, sampler => sampler.set_parts(&parts));
        self.parts = parts;
        raise(py, &self.failure)
    }

    fn state(&mut self, (epoch, position): (u64, usize), parts: &[EpochPart]) -> ResumePosition {
        let (fingerprint, grouping) = with!(self, sampler => (sampler.fingerprint(), sampler.grouping()));
        let parts = parts.iter().map(|part| (part.grouping, part.end)).collect();
        ResumePosition { epoch, position, fingerprint, grouping, parts }
    }

    fn go_to(&mut self, py: Python<'_>, place: &ResumePosition) -> PyResult<()> {
        if with!(self, sampler => sampler.fingerprint()) != place.fingerprint {
            let what =
                "this state belongs to a sampler with a different order; use the same data, seed and options";
            return Err(PyValueError::new_err(what));
        }
        let ResumePosition { epoch, position, fingerprint: order, grouping, ref parts } = *place;
        let parts = parts.iter().map(|&(grouping, end)| EpochPart { grouping, end }).collect();
        let state = LoaderState { seed: 0, epoch, position, order, grouping, parts };
        let grouping = with!(self, sampler => sampler.grouping());
        let parts = state.parts_before(grouping).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.set_epoch(py, epoch)?;
        self.set_parts(py, parts)
    }

    /// Returns the draws of the epoch from a position on. At 0 it begins anew, without earlier parts.
    fn from(&mut self, py: Python<'_>, position: usize) -> PyResult<Remaining> {
        if position == 0 {
            self.set_parts(py, Vec::new())?;
        }
        let (draws, epoch, stride): (Box<dyn ExactSizeIterator<Item = Draw> + Send>, _, _) = match &self.draws
        {
            EpochDraws::Samples(sampler) => {
                (Box::new(sampler.iter_from(position).map(Draw::Sample)), sampler.epoch(), sampler.stride())
            }
            EpochDraws::Batches(sampler) => {
                (Box::new(sampler.iter_from(position).map(Draw::Batch)), sampler.epoch(), sampler.stride())
            }
        };
        let parts = self.parts.clone();
        Ok(Remaining { draws, epoch, position, parts, stride })
    }
}

#[pymethods]
impl SamplerIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Option<Draw> {
        let mut remaining = lock(py, &self.draws);
        let draw = remaining.draws.next()?;
        remaining.position += remaining.stride;
        Some(draw)
    }

    fn __length_hint__(&self, py: Python<'_>) -> usize {
        lock(py, &self.draws).draws.len()
    }

    /// Returns the state for resuming the epoch after the last draw.
    fn state_dict(&self, py: Python<'_>) -> ResumePosition {
        let mut order = lock(py, &self.order);
        let remaining = lock(py, &self.draws);
        order.state((remaining.epoch, remaining.position), &remaining.parts)
    }

    /// Moves to the position of a state. Raises `ValueError` if it belongs to another order or is damaged.
    fn load_state_dict(&self, py: Python<'_>, state: ResumePosition) -> PyResult<()> {
        let mut order = lock(py, &self.order);
        order.go_to(py, &state)?;
        *lock(py, &self.draws) = order.from(py, state.position)?;
        Ok(())
    }
}

/// Locks a mutex, waiting without the interpreter lock: a Python function may be called while it is held.
fn lock<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
}

/// Raises the stored error of a Python function.
fn raise(py: Python<'_>, failure: &FirstPythonError) -> PyResult<()> {
    lock(py, failure).take().map_or(Ok(()), Err)
}

fn balanced(
    complexities: Vec<f64>,
    options: LoadBalancingOptions,
) -> Result<LoadBalancingDistributedSampler, SamplerError> {
    LoadBalancingDistributedSampler::new(Complexities::new(complexities)?, options)
}

/// Returns batches from a Python function, which may be a generator. Its first error is stored in `failure`.
fn batching(function: Py<PyAny>, failure: &FirstPythonError) -> Batching {
    let failure = Arc::clone(failure);
    Batching::Custom(Arc::new(move |samples: &[usize]| {
        Python::attach(|py| {
            let batches = function.bind(py).call1((samples.to_vec(),)).and_then(|batches| {
                batches.try_iter()?.map(|batch| batch?.extract()).collect::<PyResult<Vec<Vec<usize>>>>()
            });
            batches.unwrap_or_else(|error| {
                lock(py, &failure).get_or_insert(error);
                Vec::new()
            })
        })
    }))
}

/// Returns a Rust sampler as a Python one, or the error as an exception.
fn made<S>(
    py: Python<'_>,
    made: Result<S, SamplerError>,
    draws: impl FnOnce(S) -> EpochDraws,
) -> PyResult<Sampler> {
    match made {
        Ok(sampler) => {
            let order = PythonOrder {
                draws: draws(sampler),
                parts: Vec::new(),
                failure: FirstPythonError::default(),
            };
            Ok(Sampler { order: Arc::new(Mutex::new(order)) })
        }
        Err(error) => Err(usage(py, error.to_string(), "correct the sampler's options")),
    }
}

/// Returns the treatment of samples that do not fill a step.
fn tail(py: Python<'_>, name: &str) -> PyResult<Tail> {
    match name {
        "drop" => Ok(Tail::Drop),
        "pad" => Ok(Tail::Pad),
        "exact" => Ok(Tail::Exact),
        other => Err(usage(py, format!("unknown tail `{other}`"), "use drop, pad or exact")),
    }
}
