//! Calls from Python to an engine between steps: checkpoints, the mean of the replicas, another algorithm, traces and
//! figures.

use super::Engine;
use super::thread::{answer, outcome};
use crate::error::{exception, usage};
use crate::memory::copied;
use crate::values::dtype::named;
use hexagram::algorithms::engine::OptimizerState;
use hexagram::algorithms::registry;
use hexagram::{DType, DataParallel, Error, Record, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A function that reads a part of the mean.
type Reading = Box<dyn FnOnce(&DataParallel) + Send>;

/// Evaluation of the mean in progress.
pub(super) struct Evaluating {
    /// Sender of the reads; the evaluation ends when it is dropped.
    readings: Sender<Reading>,
    distance: Receiver<Result<f64>>,
}

/// A tensor of a checkpoint: element type, shape and bytes.
type SavedTensor<'py> = (String, Vec<usize>, Bound<'py, PyBytes>);

/// Optimizer state of a parameter: slot, parameter index, element type and bytes.
type SavedSlot<'py> = (String, usize, String, Bound<'py, PyBytes>);

/// A checkpoint: facts by name, tensors by name, and the checksum of both.
pub(super) type SavedRecord<'py> = (BTreeMap<String, String>, BTreeMap<String, SavedTensor<'py>>, u64);

#[pymethods]
impl Engine {
    #[getter]
    fn algorithm(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |engine| Ok(engine.algorithm().to_string()))
    }

    /// Returns the fixed properties of the algorithm.
    fn traits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (name, trigram, identical, needs, named, works, decay) = self.call(py, |engine| {
            let algorithm = engine.algorithm();
            let optimizer = engine.options().optimizer.as_ref();
            let named = algorithm.optimizers().by_default().map(str::to_owned);
            Ok((
                algorithm.name(),
                algorithm.trigram(),
                algorithm.keeps_replicas_identical(),
                (algorithm.needs().parameters, algorithm.needs_learning_rate()),
                named,
                engine.works_on_parameters(),
                optimizer.map(|optimizer| (optimizer.spelled(), optimizer.weight_decay())),
            ))
        })?;
        let told = PyDict::new(py);
        told.set_item("name", name)?;
        told.set_item("synchronous", trigram.synchronous)?;
        told.set_item("identical", identical)?;
        told.set_item("needs_parameters", needs.0)?;
        told.set_item("needs_learning_rate", needs.1)?;
        told.set_item("names_optimizer", named)?;
        told.set_item("has_parameters", works)?;
        let (spelled, decay) = decay.unzip();
        told.set_item("optimizer", spelled)?;
        let decay = decay.flatten();
        told.set_item("weight_decay", decay)?;
        told.set_item("spelled_decay", self.spelled_decay.or(decay))?;
        Ok(told)
    }

    fn switch(&self, py: Python<'_>, algorithm: &str) -> PyResult<u64> {
        let algorithm = registry::named(algorithm).map_err(|error| exception(py, &error))?;
        self.call_in_order(py, move |engine| engine.switch(algorithm).map(|()| engine.generation()))
    }

    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.call_in_order(py, DataParallel::settle)
    }

    fn average(&self, py: Python<'_>) -> PyResult<()> {
        self.call_in_order(py, DataParallel::average)
    }

    /// Replaces each replica by the mean, until [`Engine::end_mean`], and these buffers by their means. It is one job,
    /// so that an interrupted rank still completes it with the others.
    fn begin_mean(&self, py: Python<'_>, buffers: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        self.check_no_mean(py)?;
        self.enter(py)?;
        let mut buffers = super::buffers(&buffers)?;
        let (tell, there) = channel();
        let (readings, asked) = channel::<Reading>();
        let distance = self.thread.begin(py, move |engine| {
            engine.average_buffers(&mut buffers)?;
            let evaluate = |engine: &DataParallel| {
                // The caller has been interrupted, or reads until it drops its end.
                let _ = tell.send(Ok(()));
                asked.into_iter().for_each(|read| read(engine));
            };
            if engine.works_on_parameters() {
                return engine.with_mean(evaluate).map(|evaluated| evaluated.consensus_distance);
            }
            evaluate(engine);
            Ok(0.0)
        })?;
        let mut evaluating = self.evaluating.lock().unwrap_or_else(PoisonError::into_inner);
        *evaluating = Some(Evaluating { readings, distance });
        drop(evaluating);
        match outcome(py, there) {
            Ok(Some(there)) => self.after(py, there.map_err(|error| exception(py, &error))),
            // It has failed, and only the outcome is sent.
            Ok(None) => self.end_mean(py).map(drop),
            Err(interrupted) => {
                // There is no reader: the replica is restored as soon as the mean is complete.
                drop(self.evaluating.lock().unwrap_or_else(PoisonError::into_inner).take());
                Err(interrupted)
            }
        }
    }

    /// Restores every replica; returns the consensus distance.
    fn end_mean(&self, py: Python<'_>) -> PyResult<f64> {
        let evaluating = self.evaluating.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Evaluating { readings, distance }) = evaluating else {
            return Err(usage(py, "no mean is being evaluated", "call begin_mean first"));
        };
        self.enter(py)?;
        drop(readings);
        let distance = answer(py, distance);
        self.after(py, distance)
    }

    /// Returns the number of optimizer steps, and the optimizer state: slots, parameter indices, types and bytes.
    fn optimizer_state<'py>(&self, py: Python<'py>) -> PyResult<(u64, Vec<SavedSlot<'py>>)> {
        let (steps, slots) = self.call_in_order(py, |engine| {
            let state = engine.optimizer_state()?;
            let mut slots = Vec::new();
            for (slot, index, values) in state.slots {
                slots.push((slot, index, values.dtype(), values.read_all()?.bytes_on_host()?.into_owned()));
            }
            Ok((state.steps, slots))
        })?;
        let told = slots
            .into_iter()
            .map(|(slot, index, dtype, bytes)| (slot, index, dtype.to_string(), PyBytes::new(py, &bytes)));
        Ok((steps, told.collect()))
    }

    /// Restores the result of [`Engine::optimizer_state`].
    fn set_optimizer_state(&self, py: Python<'_>, steps: u64, slots: Vec<SavedSlot<'_>>) -> PyResult<()> {
        let slot = |(slot, index, kind, bytes): SavedSlot<'_>| {
            Ok((slot, index, copied(named(&kind)?, bytes.as_bytes())?))
        };
        let slots = slots.into_iter().map(slot).collect::<Result<Vec<_>>>();
        let slots = slots.map_err(|error| exception(py, &error))?;
        self.call_in_order(py, move |engine| engine.set_optimizer_state(&OptimizerState { steps, slots }))
    }

    /// Returns the state of the engine.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<SavedRecord<'py>> {
        let saved = self.call_in_order(py, |engine| RecordBytes::of(&engine.checkpoint().save()?))?;
        Ok(saved.told(py))
    }

    /// Continues from a state of [`Engine::save`], or refuses it on all ranks. A rank that cannot read its state passes
    /// an error as a `text` instead.
    fn load(&self, py: Python<'_>, saved: Given<'_>) -> PyResult<u64> {
        let record = saved.record();
        self.call_in_order(py, move |engine| {
            engine.checkpoint().load_if_read(record).map(|()| engine.generation())
        })
    }

    #[getter]
    fn loss_scale(&self, py: Python<'_>) -> PyResult<f64> {
        self.call(py, |engine| Ok(engine.loss_scaling().scale()))
    }

    #[getter]
    fn overflowed(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |engine| Ok(engine.loss_scaling().overflowed()))
    }

    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |engine| Ok(engine.steps()))
    }

    #[getter]
    fn metrics(&self, py: Python<'_>) -> PyResult<BTreeMap<String, f64>> {
        self.call(py, |engine| Ok(engine.metrics().clone()))
    }

    /// Returns the time for which the engine has waited for communication, in seconds.
    #[getter]
    fn blocked(&self, py: Python<'_>) -> PyResult<f64> {
        self.call(py, |engine| Ok(engine.telemetry().blocked().as_secs_f64()))
    }

    fn begin_trace(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |engine| engine.trace().begin())
    }

    /// Ends the recording; returns its report on rank 0, and writes it to a file if one is given.
    fn collect_trace(&self, py: Python<'_>, file: Option<std::path::PathBuf>) -> PyResult<Option<String>> {
        self.call(py, move |engine| {
            let Some(trace) = engine.trace().collect()? else { return Ok(None) };
            file.map_or(Ok(()), |file| trace.save(&file))?;
            Ok(Some(trace.report().to_string()))
        })
    }
}

/// Facts, tensors and checksum of a record, as bytes.
pub(super) struct RecordBytes {
    facts: BTreeMap<String, String>,
    tensors: Vec<(String, DType, Vec<usize>, Vec<u8>)>,
    checksum: u64,
}

impl RecordBytes {
    pub(super) fn of(record: &Record) -> Result<Self> {
        let facts = record.facts().map(|(name, fact)| (name.to_owned(), fact.to_owned())).collect();
        let mut tensors = Vec::new();
        for (name, saved) in record.tensors() {
            let bytes = saved.values.read_all()?.bytes_on_host()?.into_owned();
            tensors.push((name.to_owned(), saved.values.dtype(), saved.shape.clone(), bytes));
        }
        Ok(RecordBytes { facts, tensors, checksum: record.checksum()? })
    }

    pub(super) fn told(self, py: Python<'_>) -> SavedRecord<'_> {
        let tensors = self
            .tensors
            .into_iter()
            .map(|(name, dtype, shape, bytes)| (name, (dtype.to_string(), shape, PyBytes::new(py, &bytes))));
        (self.facts, tensors.collect(), self.checksum)
    }
}

/// Saved state from Python, or an error.
#[derive(FromPyObject)]
pub(super) enum Given<'py> {
    #[pyo3(transparent)]
    Wrong(String),
    Saved(BTreeMap<String, String>, BTreeMap<String, SavedTensor<'py>>, u64),
}

impl Given<'_> {
    /// Returns the state as a record, if it is one that was saved.
    pub(super) fn record(self) -> Result<Record> {
        let unchanged = "load the complete and unchanged checkpoint of this rank";
        let (facts, tensors, checksum) = match self {
            Given::Wrong(what) => return Err(Error::usage(what, unchanged)),
            Given::Saved(facts, tensors, checksum) => (facts, tensors, checksum),
        };
        let mut record = Record::default();
        for (name, fact) in facts {
            record.note(&name, fact);
        }
        for (name, (kind, shape, bytes)) in tensors {
            record.put_tensor(&name, &shape, copied(named(&kind)?, bytes.as_bytes())?)?;
        }
        if record.checksum()? != checksum {
            return Err(Error::usage("the checkpoint is corrupt: its checksum differs", unchanged));
        }
        Ok(record)
    }
}

impl Engine {
    /// Fails while a mean is being evaluated.
    pub(super) fn check_no_mean(&self, py: Python<'_>) -> PyResult<()> {
        if self.evaluating.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Ok(());
        }
        let remedy = "evaluate under torch.no_grad(), and do this before or afterwards";
        Err(usage(py, "the engine is evaluating the mean of the replicas", remedy))
    }

    /// Reads a value from the engine: from the mean, while it replaces the replica.
    pub(super) fn read(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&DataParallel) -> Result<()> + Send + 'static,
    ) -> PyResult<()> {
        let evaluating = self.evaluating.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Evaluating { readings, .. }) = &*evaluating else {
            drop(evaluating);
            return self.call_in_order(py, |engine| work(engine));
        };
        let (tell, told) = channel();
        // An engine that has ended drops the read, and with it the sender of its result.
        drop(readings.send(Box::new(move |engine| drop(tell.send(work(engine))))));
        drop(evaluating);
        let read = answer(py, told);
        self.after(py, read)
    }
}
