//! Snapshots of an engine in memory, for the next generation of an elastic job.

use super::Engine;
use crate::error::exception;
use crate::memory::copied;
use hexagram::algorithms::Snapshots as Kept;
use hexagram::{DType, Record};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the part of the program in a record.
const PROGRAM: &str = "program";

/// The state of the last steps of an engine, on this rank. The base of `hexagram.torch.Snapshots`.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Snapshots(Arc<Mutex<Kept>>);

#[pymethods]
impl Snapshots {
    #[new]
    fn new() -> Self {
        Snapshots(Arc::default())
    }
}

#[pymethods]
impl Engine {
    /// Returns true if `keep_snapshot` after this step keeps a state.
    fn keeps_snapshot(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |engine| Ok(Kept::is_due(engine)))
    }

    /// Keeps the state after a step, with that of the program.
    fn keep_snapshot(
        &self,
        py: Python<'_>,
        snapshots: &Snapshots,
        program: &Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        let bytes = program.as_bytes();
        let mut own = Record::default();
        copied(DType::U8, bytes)
            .and_then(|program| own.put_tensor(PROGRAM, &[bytes.len()], program))
            .map_err(|error| exception(py, &error))?;
        let kept = Arc::clone(&snapshots.0);
        self.call_in_order(py, move |engine| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).keep(engine, || own)
        })
    }

    /// Loads the newest state that the ranks have in common. Returns the generation of the buckets, and the state of the
    /// program; `None` if no rank has kept any.
    fn load_snapshot<'py>(
        &self,
        py: Python<'py>,
        snapshots: &Snapshots,
    ) -> PyResult<Option<(u64, Bound<'py, PyBytes>)>> {
        let kept = Arc::clone(&snapshots.0);
        let loaded = self.call_in_order(py, move |engine| {
            let own = kept.lock().unwrap_or_else(PoisonError::into_inner).load(engine)?;
            let program = own.map(|own| own.get::<u8>(PROGRAM)).transpose()?;
            Ok(program.map(|program| (engine.generation(), program)))
        })?;
        Ok(loaded.map(|(generation, program)| (generation, PyBytes::new(py, &program))))
    }
}
