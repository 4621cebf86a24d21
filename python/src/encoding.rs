//! Encodings: a codec, what becomes of its error, and what both remember of one bucket.

use crate::error::exception;
use hexagram::codec;
use hexagram::encoding::{AnyFeedback, Feedback};
use hexagram::logical::spelling::{Catalogues, Spelling, Values};
use hexagram::{Error, Result};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Codec with a feedback and the memory of both, for one bucket on one rank.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Encoding {
    slot: Slot,
    described: String,
}

/// Place of an encoding while no operation has it.
#[derive(Clone)]
pub(crate) struct Slot(Arc<Mutex<Option<hexagram::encoding::Encoding>>>);

#[pymethods]
impl Encoding {
    #[new]
    #[pyo3(signature = (codec, feedback = "none", seed = 0))]
    fn new(py: Python<'_>, codec: &str, feedback: &str, seed: u64) -> PyResult<Self> {
        let made = make(codec, feedback, seed).map_err(|error| exception(py, &error))?;
        let described = format!("Encoding({codec:?}, {feedback:?}, {seed})");
        Ok(Encoding { slot: Slot(Arc::new(Mutex::new(Some(made)))), described })
    }

    fn __repr__(&self) -> &str {
        &self.described
    }
}

impl Encoding {
    /// Returns where an operation takes it.
    pub(crate) fn slot(&self) -> Slot {
        self.slot.clone()
    }
}

impl Slot {
    /// Takes the encoding. Fails while another operation has it, and after one that was given up.
    pub(crate) fn take(&self) -> Result<hexagram::encoding::Encoding> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| {
            let what = "this encoding is in use by another operation";
            Error::usage(what, "wait for that one first, and give every bucket an encoding of its own")
        })
    }

    /// Puts the encoding back.
    pub(crate) fn put(&self, encoding: hexagram::encoding::Encoding) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(encoding);
    }
}

fn make(codec: &str, feedback: &str, seed: u64) -> Result<hexagram::encoding::Encoding> {
    let codec = codec::named(codec)?;
    let text: Spelling = feedback.parse()?;
    let none = Feedback::None;
    let read = AnyFeedback.read(&text, Some(&none), &Catalogues::default())?;
    let feedback = read.ok_or_else(|| {
        let remedy = format!("use {}", AnyFeedback.describe(&Catalogues::default()));
        Error::usage(format!("there is no feedback {feedback}"), remedy)
    })?;
    Ok(hexagram::encoding::Encoding::new(codec).with_feedback(feedback).with_seed(seed))
}
