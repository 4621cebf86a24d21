//! Samplers: which sample goes to which rank, index for index as in Rust and as in PyTorch.

use crate::error::usage;
use hexagram::sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    ElasticOptions, ElasticSampler, LoadBalancingDistributedSampler, LoadBalancingOptions, SamplerError,
    Tail,
};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One rank's order of samples, or of batches of them, in every epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct Sampler(Mutex<Order>);

/// What is left of an epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct SamplerIterator(Mutex<Box<dyn ExactSizeIterator<Item = Draw> + Send>>);

enum Order {
    Samples(Box<dyn hexagram::sampler::Sampler<Item = usize>>),
    Batches(Box<dyn hexagram::sampler::Sampler<Item = Vec<usize>>>),
}

/// The index of a sample, or those of a batch.
#[derive(IntoPyObject)]
enum Draw {
    Sample(usize),
    Batch(Vec<usize>),
}

/// Evaluates an expression with the sampler of either kind, under its lock.
macro_rules! with {
    ($self:ident, $sampler:ident => $value:expr) => {
        match &mut *$self.lock() {
            Order::Samples($sampler) => $value,
            Order::Batches($sampler) => $value,
        }
    };
}

#[pymethods]
impl Sampler {
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn distributed(
        py: Python<'_>,
        len: usize,
        replicas: usize,
        rank: usize,
        shuffle: bool,
        seed: u64,
        drop_last: bool,
        exact: bool,
    ) -> PyResult<Self> {
        let options = DistributedOptions { len, replicas, rank, shuffle, seed, epoch: 0, drop_last, exact };
        made(py, DistributedSampler::new(options), |sampler| Order::Samples(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn load_balancing(
        py: Python<'_>,
        complexities: Vec<f64>,
        replicas: usize,
        rank: usize,
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
        let sampler = Complexities::new(complexities)
            .and_then(|complexities| LoadBalancingDistributedSampler::new(complexities, options));
        made(py, sampler, |sampler| Order::Samples(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn elastic(
        py: Python<'_>,
        len: usize,
        replicas: usize,
        rank: usize,
        global_batch: usize,
        shuffle: bool,
        seed: u64,
        tail: &str,
    ) -> PyResult<Self> {
        let tail = self::tail(py, tail)?;
        let options = ElasticOptions { len, replicas, rank, global_batch, shuffle, seed, epoch: 0, tail };
        made(py, ElasticSampler::new(options), |sampler| Order::Batches(Box::new(sampler)))
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn cost_balanced(
        py: Python<'_>,
        costs: Vec<f64>,
        replicas: usize,
        rank: usize,
        global_batch: usize,
        speeds: Vec<f64>,
        shuffle: bool,
        seed: u64,
        tail: &str,
        mix: usize,
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
        made(py, sampler, |sampler| Order::Batches(Box::new(sampler)))
    }

    fn __len__(&self) -> usize {
        with!(self, sampler => sampler.len())
    }

    fn __iter__(&self) -> SamplerIterator {
        self.iter_from(0)
    }

    fn iter_from(&self, position: usize) -> SamplerIterator {
        SamplerIterator(Mutex::new(match &*self.lock() {
            Order::Samples(sampler) => Box::new(sampler.iter_from(position).map(Draw::Sample)),
            Order::Batches(sampler) => Box::new(sampler.iter_from(position).map(Draw::Batch)),
        }))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        with!(self, sampler => sampler.epoch())
    }

    fn set_epoch(&self, epoch: u64) {
        with!(self, sampler => sampler.set_epoch(epoch));
    }

    #[getter]
    fn stride(&self) -> usize {
        with!(self, sampler => sampler.stride())
    }

    #[getter]
    fn fingerprint(&self) -> u64 {
        with!(self, sampler => sampler.fingerprint())
    }
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, Order> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl SamplerIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<Draw> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn __length_hint__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Returns a sampler of Rust as one of Python, or the error as an exception.
fn made<S>(
    py: Python<'_>,
    made: Result<S, SamplerError>,
    order: impl FnOnce(S) -> Order,
) -> PyResult<Sampler> {
    match made {
        Ok(sampler) => Ok(Sampler(Mutex::new(order(sampler)))),
        Err(error) => Err(usage(py, error.to_string(), "correct the sampler's options")),
    }
}

/// Returns the treatment of what does not fill a step.
fn tail(py: Python<'_>, name: &str) -> PyResult<Tail> {
    match name {
        "drop" => Ok(Tail::Drop),
        "pad" => Ok(Tail::Pad),
        "exact" => Ok(Tail::Exact),
        other => Err(usage(py, format!("unknown tail `{other}`"), "use drop, pad or exact")),
    }
}
