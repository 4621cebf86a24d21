//! Key-value stores in Python, such as that of torch, for the rendezvous.

use hexagram::Store;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;
use std::time::Duration;

/// An object with the methods `put(key, value)`, `get(key, seconds)` and `remove(key)`.
pub(crate) struct PythonStore(Py<PyAny>);

impl PythonStore {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        PythonStore(object)
    }
}

/// Called on the thread that joins; no thread waits for it while holding the interpreter lock.
impl Store for PythonStore {
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()> {
        Python::attach(|py| {
            let done = self.0.call_method1(py, "put", (key, PyBytes::new(py, value)));
            done.map(drop).map_err(|error| failed(&error))
        })
    }

    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>> {
        Python::attach(|py| {
            let value = self.0.call_method1(py, "get", (key, limit.as_secs_f64()));
            value.and_then(|value| value.extract(py)).map_err(|error: PyErr| failed(&error))
        })
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        Python::attach(|py| {
            self.0.call_method1(py, "remove", (key,)).map(drop).map_err(|error| failed(&error))
        })
    }
}

fn failed(error: &PyErr) -> io::Error {
    io::Error::other(error.to_string())
}
