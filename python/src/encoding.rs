//! Encodings: a codec, the feedback of its error, and their state for one bucket.

use crate::error::{exception, usage};
use crate::values::state::{SavedEncoding, dictionary};
use hexagram::codec::{self, Codec, LinearCodec, PowerSgd, RandomK};
use hexagram::encoding::{AnyFeedback, Feedback};
use hexagram::logical::options_text::{Catalogue, Catalogues, OptionsText, Values};
use hexagram::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};

/// Codec, the feedback of its error, and their state for one bucket on this rank.
///
/// `codec` is spelled as in `docs/algorithms.md`: `"top-k(1%)"`. `feedback` is `"none"` (the error is lost), `"error"`
/// or `"error(decay=0.9)"` (it is added to the next message), `"two-level"` or `"difference"`. `seed` is that of random
/// numbers, the same on all ranks. Raises `UsageError` with the nearest names for unknown ones.
///
/// >>> hexagram.Encoding("top-k(1%)", "error")  # doctest: +SKIP
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Encoding {
    slot: EncodingSlot,
    described: String,
}

/// Codec whose messages add up, the feedback of its error, and their state for one bucket on this rank. Create it with
/// `power_sgd` or `random_k`.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct LinearEncoding {
    slot: EncodingSlot<dyn LinearCodec>,
    described: String,
}

/// Owner of an encoding while no operation uses it.
pub(crate) struct EncodingSlot<C: ?Sized = dyn Codec>(Arc<Mutex<Option<hexagram::encoding::Encoding<C>>>>);

#[pymethods]
impl Encoding {
    #[new]
    #[pyo3(signature = (codec, feedback = "none", seed = 0))]
    fn new(py: Python<'_>, codec: &str, feedback: &str, seed: u64) -> PyResult<Self> {
        let made = make(codec, feedback, seed).map_err(|error| exception(py, &error))?;
        let described = format!("Encoding({codec:?}, {feedback:?}, {seed})");
        Ok(Encoding { slot: EncodingSlot::of(made), described })
    }

    fn __repr__(&self) -> &str {
        &self.described
    }

    /// Returns the state of the encoding, such as the error that the next message corrects: a dictionary that can be
    /// pickled. Raises `UsageError` while an operation uses the encoding.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.slot.save(py)
    }

    /// Continues from the `state_dict` of an equal encoding. Raises `UsageError` for another codec, feedback or seed,
    /// and while an operation uses the encoding.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.slot.load(py, state)
    }
}

#[pymethods]
impl LinearEncoding {
    /// Returns the PowerSGD encoding of a bucket of matrices with `shapes` (rows, columns), one after the other: each
    /// is sent as a product of two factors of this `rank`. Matrices for which that saves less than the factor `saving`
    /// are sent in full precision, and so are elements beyond all shapes. For `feedback` and `seed`, see `Encoding`.
    ///
    /// Raises `UsageError` for a rank of 0, a saving below 1, or an unknown feedback.
    #[staticmethod]
    #[pyo3(signature = (shapes, rank = 1, *, saving = 1.0, feedback = "error", seed = 0))]
    fn power_sgd(
        py: Python<'_>,
        shapes: Vec<(usize, usize)>,
        rank: usize,
        saving: f64,
        feedback: &str,
        seed: u64,
    ) -> PyResult<Self> {
        let codec = PowerSgd::new(&shapes, rank).and_then(|codec| codec.with_saving(saving));
        Self::of(py, codec, feedback, seed)
    }

    /// Returns the encoding of elements at random indices, the same on all ranks; `codec` gives their share:
    /// `"random-k(1%)"`. For `feedback` and `seed`, see `Encoding`. Raises `UsageError` for another codec, or an
    /// unknown feedback.
    #[staticmethod]
    #[pyo3(signature = (codec = "random-k(1%)", *, feedback = "error", seed = 0))]
    fn random_k(py: Python<'_>, codec: &str, feedback: &str, seed: u64) -> PyResult<Self> {
        let known = Catalogue::new("linear codec");
        let known = known.with(RandomK::default(), "elements at random places", std::convert::identity);
        Self::of(py, known.named(codec), feedback, seed)
    }

    fn __repr__(&self) -> &str {
        &self.described
    }

    /// Returns the state of the encoding, such as the error that the next message corrects: a dictionary that can be
    /// pickled. Raises `UsageError` while an operation uses the encoding.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.slot.save(py)
    }

    /// Continues from the `state_dict` of an equal encoding. Raises `UsageError` for another codec, feedback or seed,
    /// and while an operation uses the encoding.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.slot.load(py, state)
    }
}

impl Encoding {
    /// Returns the slot from which an operation takes it.
    pub(crate) fn slot(&self) -> EncodingSlot {
        self.slot.clone()
    }
}

impl LinearEncoding {
    /// Returns the slot from which an operation takes it.
    pub(crate) fn slot(&self) -> EncodingSlot<dyn LinearCodec> {
        self.slot.clone()
    }

    fn of<C: LinearCodec + 'static>(
        py: Python<'_>,
        codec: Result<C>,
        feedback: &str,
        seed: u64,
    ) -> PyResult<Self> {
        let made = codec.and_then(|codec| Ok((named_feedback(feedback)?, codec)));
        let (feedback, codec) = made.map_err(|error| exception(py, &error))?;
        let described = format!("LinearEncoding({}, {feedback}, seed {seed})", codec.name());
        let made = hexagram::encoding::Encoding::linear(Arc::new(codec));
        Ok(LinearEncoding { slot: EncodingSlot::of(made.with_feedback(feedback).with_seed(seed)), described })
    }
}

impl<C: ?Sized> Clone for EncodingSlot<C> {
    fn clone(&self) -> Self {
        EncodingSlot(Arc::clone(&self.0))
    }
}

impl<C: ?Sized> EncodingSlot<C> {
    fn of(encoding: hexagram::encoding::Encoding<C>) -> Self {
        EncodingSlot(Arc::new(Mutex::new(Some(encoding))))
    }

    /// Lends the encoding to an operation, and takes it back. Fails as [`EncodingSlot::take`].
    pub(crate) async fn lend<T>(
        &self,
        operation: impl AsyncFnOnce(&mut hexagram::encoding::Encoding<C>) -> Result<T>,
    ) -> Result<T> {
        let mut encoding = self.take()?;
        let outcome = operation(&mut encoding).await;
        self.put(encoding);
        outcome
    }

    /// Takes the encoding. Fails while another operation uses it, and after a cancelled one.
    fn take(&self) -> Result<hexagram::encoding::Encoding<C>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| {
            let what = "this encoding is in use by another operation";
            Error::usage(what, "wait for that one first, and use a separate encoding for every bucket")
        })
    }

    /// Puts the encoding back.
    fn put(&self, encoding: hexagram::encoding::Encoding<C>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(encoding);
    }

    /// Returns the state of the encoding, with its name.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let encoding = self.take().map_err(|error| exception(py, &error))?;
        let saved = dictionary(py, encoding.state());
        let name = encoding.digest().to_string();
        self.put(encoding);
        let saved = saved?;
        saved.set_item("encoding", name)?;
        Ok(saved)
    }

    /// Restores the state of an equal encoding.
    fn load(&self, py: Python<'_>, saved: &Bound<'_, PyDict>) -> PyResult<()> {
        let theirs: String = saved.as_any().get_item("encoding")?.extract()?;
        let state = saved.extract::<SavedEncoding>()?.state(py)?;
        let mut encoding = self.take().map_err(|error| exception(py, &error))?;
        let ours = encoding.digest().to_string();
        if ours == theirs {
            *encoding.state_mut() = state;
        }
        self.put(encoding);
        if ours == theirs {
            return Ok(());
        }
        let what = format!("this is the state of a different encoding: {theirs} instead of {ours}");
        Err(usage(py, what, "restore with the same codec, feedback and seed"))
    }
}

/// Creates the encoding of a codec and a feedback by name.
pub(crate) fn make(codec: &str, feedback: &str, seed: u64) -> Result<hexagram::encoding::Encoding> {
    let codec = codec::named(codec)?;
    let feedback = named_feedback(feedback)?;
    Ok(hexagram::encoding::Encoding::new(codec).with_feedback(feedback).with_seed(seed))
}

fn named_feedback(feedback: &str) -> Result<Feedback> {
    let text: OptionsText = feedback.parse()?;
    let none = Feedback::None;
    let read = AnyFeedback.read(&text, Some(&none), &Catalogues::default())?;
    read.ok_or_else(|| {
        let remedy = format!("use {}", AnyFeedback.describe(&Catalogues::default()));
        Error::usage(format!("unknown feedback {feedback}"), remedy)
    })
}
