//! Element types, reductions and graphs by name, as in hexagram and NumPy.

use crate::error::{exception, usage};
use hexagram::decentralized::{Schedule, catalogue};
use hexagram::{DType, Error, ReduceOp};
use pyo3::prelude::*;
use std::sync::{Arc, LazyLock};

/// Names of the types in NumPy and torch.
const ALIASES: [(&str, &str); 9] = [
    ("uint8", "u8"),
    ("int8", "i8"),
    ("int16", "i16"),
    ("int32", "i32"),
    ("int64", "i64"),
    ("float16", "f16"),
    ("bfloat16", "bf16"),
    ("float32", "f32"),
    ("float64", "f64"),
];

/// Element types by name, cached: formatting the names for each look-up is a large part of the cost of a call on a few
/// elements.
static DTYPES: LazyLock<Vec<(String, DType)>> =
    LazyLock::new(|| DType::ALL.iter().map(|dtype| (dtype.to_string(), *dtype)).collect());

/// Reductions by name, cached like the element types.
static REDUCTIONS: LazyLock<Vec<(String, ReduceOp)>> =
    LazyLock::new(|| ReduceOp::ALL.iter().map(|op| (op.to_string(), *op)).collect());

/// Returns the element type with a name: `f32` and `float32` are the same.
pub(crate) fn dtype(py: Python<'_>, name: &str) -> PyResult<DType> {
    named(name).map_err(|error| exception(py, &error))
}

/// Returns the element type with a name, like [`dtype`].
pub(crate) fn named(name: &str) -> Result<DType, Error> {
    let short = ALIASES.iter().find(|(long, _)| *long == name).map_or(name, |(_, short)| short);
    DTYPES.iter().find(|(name, _)| name == short).map(|(_, dtype)| *dtype).ok_or_else(|| {
        let remedy = format!("use one of {}", all_dtypes());
        Error::usage(format!("unknown element type {name}"), remedy)
    })
}

/// Returns the names of all element types, for messages.
pub(crate) fn all_dtypes() -> String {
    let all: Vec<String> = DType::ALL.iter().map(DType::to_string).collect();
    all.join(", ")
}

/// Returns the reduction with a name.
pub(crate) fn reduction(py: Python<'_>, name: &str) -> PyResult<ReduceOp> {
    REDUCTIONS.iter().find(|(known, _)| known == name).map(|(_, op)| *op).ok_or_else(|| {
        let all: Vec<String> = ReduceOp::ALL.iter().map(ReduceOp::to_string).collect();
        usage(py, format!("unknown reduction {name}"), format!("use one of {}", all.join(", ")))
    })
}

/// Returns the graph with a spelling.
pub(crate) fn graph(py: Python<'_>, text: &str) -> PyResult<Arc<dyn Schedule>> {
    catalogue().named(text).map_err(|error| exception(py, &error))
}
