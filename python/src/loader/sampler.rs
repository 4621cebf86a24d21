//! Samplers: which sample goes to which rank, index for index as in Rust and as in PyTorch.

use crate::error::usage;
use hexagram::sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler, Draws,
    ElasticOptions, ElasticSampler, LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler,
    SamplerError, Tail,
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A sampler that Python and a loader share.
pub(super) struct Shared<T>(Arc<Mutex<Box<dyn Sampler<Item = T>>>>);

/// One rank's order of samples in every epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct RankSampler(Shared<usize>);

/// One rank's order of batches of samples in every epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct BatchSampler(Shared<Vec<usize>>);

/// Draws of an epoch that are left.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct SampleIterator(Mutex<Draws<usize>>);

/// Batches of an epoch that are left.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct BatchIterator(Mutex<Draws<Vec<usize>>>);

#[pymethods]
impl RankSampler {
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
        Shared::of(py, DistributedSampler::new(options)).map(RankSampler)
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
        let made = Complexities::new(complexities)
            .and_then(|complexities| LoadBalancingDistributedSampler::new(complexities, options));
        Shared::of(py, made).map(RankSampler)
    }

    fn __len__(&self) -> usize {
        self.0.lock().len()
    }

    fn __iter__(&self) -> SampleIterator {
        self.iter_from(0)
    }

    fn iter_from(&self, position: usize) -> SampleIterator {
        SampleIterator(Mutex::new(self.0.lock().iter_from(position)))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.lock().epoch()
    }

    fn set_epoch(&self, epoch: u64) {
        self.0.lock().set_epoch(epoch);
    }

    #[getter]
    fn stride(&self) -> usize {
        self.0.lock().stride()
    }

    #[getter]
    fn fingerprint(&self) -> u64 {
        self.0.lock().fingerprint()
    }
}

#[pymethods]
impl BatchSampler {
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
        Shared::of(py, ElasticSampler::new(options)).map(BatchSampler)
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
        let options = CostBalancedOptions {
            replicas,
            rank,
            global_batch,
            speeds,
            shuffle,
            seed,
            epoch: 0,
            tail: self::tail(py, tail)?,
            mix,
            random_level,
        };
        let made = Complexities::new(costs).and_then(|costs| CostBalancedSampler::new(costs, options));
        Shared::of(py, made).map(BatchSampler)
    }

    fn __len__(&self) -> usize {
        self.0.lock().len()
    }

    fn __iter__(&self) -> BatchIterator {
        self.iter_from(0)
    }

    fn iter_from(&self, position: usize) -> BatchIterator {
        BatchIterator(Mutex::new(self.0.lock().iter_from(position)))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.lock().epoch()
    }

    fn set_epoch(&self, epoch: u64) {
        self.0.lock().set_epoch(epoch);
    }

    #[getter]
    fn stride(&self) -> usize {
        self.0.lock().stride()
    }

    #[getter]
    fn fingerprint(&self) -> u64 {
        self.0.lock().fingerprint()
    }
}

impl RankSampler {
    /// Returns the sampler for a loader.
    pub(super) fn shared(&self) -> Shared<usize> {
        self.0.clone()
    }
}

impl BatchSampler {
    /// Returns the sampler for a loader.
    pub(super) fn shared(&self) -> Shared<Vec<usize>> {
        self.0.clone()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    fn of<S: Sampler<Item = T> + 'static>(py: Python<'_>, made: Result<S, SamplerError>) -> PyResult<Self> {
        match made {
            Ok(sampler) => Ok(Shared(Arc::new(Mutex::new(Box::new(sampler))))),
            Err(error) => Err(usage(py, error.to_string(), "correct the sampler's options")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Sampler<Item = T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sampler for Shared<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn epoch(&self) -> u64 {
        self.lock().epoch()
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.lock().set_epoch(epoch);
    }

    fn stride(&self) -> usize {
        self.lock().stride()
    }

    fn fingerprint(&self) -> u64 {
        self.lock().fingerprint()
    }

    fn iter_from(&self, position: usize) -> Draws<T> {
        self.lock().iter_from(position)
    }
}

#[pymethods]
impl SampleIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn __length_hint__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn __length_hint__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Returns the treatment of what does not fill a step.
fn tail(py: Python<'_>, name: &str) -> PyResult<Tail> {
    match name {
        "drop" => Ok(Tail::Drop),
        "pad" => Ok(Tail::Pad),
        "exact" => Ok(Tail::Exact),
        other => Err(usage(py, format!("there is no tail {other}"), "use drop, pad or exact")),
    }
}
