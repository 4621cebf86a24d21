//! Samplers: which sample goes to which rank, index for index as in Rust and as in PyTorch.

use crate::error::usage;
use hexagram::sampler::{
    Complexities, DistributedOptions, DistributedSampler, Draws, LoadBalancingDistributedSampler,
    LoadBalancingOptions, Sampler, SamplerError,
};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One rank's order of samples in every epoch.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct RankSampler(Mutex<Box<dyn Sampler<Item = usize>>>);

/// Draws of an epoch that are left.
#[pyclass(frozen, module = "hexagram._native")]
pub(crate) struct SampleIterator(Mutex<Draws<usize>>);

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
        Self::of(py, DistributedSampler::new(options))
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
        Self::of(py, made)
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    fn __iter__(&self) -> SampleIterator {
        self.iter_from(0)
    }

    fn iter_from(&self, position: usize) -> SampleIterator {
        SampleIterator(Mutex::new(self.lock().iter_from(position)))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.lock().epoch()
    }

    fn set_epoch(&self, epoch: u64) {
        self.lock().set_epoch(epoch);
    }

    #[getter]
    fn stride(&self) -> usize {
        self.lock().stride()
    }

    #[getter]
    fn fingerprint(&self) -> u64 {
        self.lock().fingerprint()
    }
}

impl RankSampler {
    fn of<S: Sampler<Item = usize> + 'static>(
        py: Python<'_>,
        made: Result<S, SamplerError>,
    ) -> PyResult<Self> {
        match made {
            Ok(sampler) => Ok(RankSampler(Mutex::new(Box::new(sampler)))),
            Err(error) => Err(usage(py, error.to_string(), "correct the sampler's options")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Sampler<Item = usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
