//! States of encodings, windows and servers as plain Python values: a dictionary of numbers and bytes that can be pickled,
//! and read without this library.

use crate::error::{exception, usage};
use crate::memory::copied;
use crate::values::dtype::dtype;
use hexagram::Buffer;
use hexagram::encoding::State;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;

/// Elements as their type and bytes.
type StateEntry = (String, Vec<u8>);

/// State of one encoding.
#[derive(FromPyObject)]
pub(crate) struct SavedEncoding {
    #[pyo3(item)]
    operations: u64,
    #[pyo3(item)]
    entries: BTreeMap<String, StateEntry>,
}

impl SavedEncoding {
    /// Returns it as a state.
    pub(crate) fn state(self, py: Python<'_>) -> PyResult<State> {
        let read = |(name, (kind, bytes)): (String, StateEntry)| {
            let dtype = dtype(py, &kind)?;
            if bytes.len() % dtype.size() != 0 {
                let what = format!("{name} has {} bytes, not a whole number of {dtype}", bytes.len());
                return Err(usage(py, what, "pass the unchanged result of `state_dict`"));
            }
            Ok((name, copied(dtype, &bytes).map_err(|error| exception(py, &error))?))
        };
        let entries: Vec<(String, Buffer)> = self.entries.into_iter().map(read).collect::<PyResult<_>>()?;
        let mut state = State::default();
        state.restore(self.operations, entries);
        Ok(state)
    }
}

/// Returns a state as a dictionary: the number of operations, and by name the type and the bytes of each entry.
pub(crate) fn dictionary<'py>(py: Python<'py>, state: &State) -> PyResult<Bound<'py, PyDict>> {
    let entries = PyDict::new(py);
    for (name, buffer) in state.entries() {
        let view = buffer.read_all().map_err(|error| exception(py, &error))?;
        let bytes = view.bytes_on_host().map_err(|error| exception(py, &error))?;
        entries.set_item(name, (buffer.dtype().to_string(), PyBytes::new(py, &bytes)))?;
    }
    let saved = PyDict::new(py);
    saved.set_item("operations", state.operations())?;
    saved.set_item("entries", entries)?;
    Ok(saved)
}
