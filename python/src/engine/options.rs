//! Engine descriptions from Python: the parameters of the model, the algorithm and the options, as dictionaries and
//! spellings.

use super::outside::Outside;
use crate::error::usage;
use hexagram::algorithms::optimizer::{Members, Optimizer, ParameterGroup};
use hexagram::algorithms::{Overlap, optimizer, registry};
use hexagram::{AnyAlgorithm, Autotune, Buffers, EngineOptions, LossScale, Order, Parameter, Result, Unused};
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Options of an engine, with the names in Rust; `None` for the default.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct EngineKeywords {
    optimizer: Option<String>,
    learning_rate: Option<f64>,
    /// Names of the parameters in each group, and the largest weight decay of the groups.
    groups: Option<OptimizerGroups>,
    bucket_bytes: Option<usize>,
    first_bucket_bytes: Option<usize>,
    order: Option<String>,
    unused: Option<String>,
    buffers: Option<String>,
    hierarchical: Option<bool>,
    streams: Option<usize>,
    clip_norm: Option<f64>,
    loss_scale: Option<f64>,
    skip_overflows: Option<bool>,
    uneven: Option<bool>,
    seed: Option<u64>,
    autotune: Option<bool>,
    overlap: Option<String>,
}

/// Algorithm named by Python: by its spelling, or with hooks in Python.
#[derive(FromPyObject)]
pub(super) enum AlgorithmArgument {
    #[pyo3(transparent)]
    Spelled(String),
    Outside(Outside),
}

impl AlgorithmArgument {
    pub(super) fn algorithm(self) -> Result<AnyAlgorithm> {
        match self {
            AlgorithmArgument::Spelled(spelling) => registry::named(&spelling),
            AlgorithmArgument::Outside(outside) => Ok(outside.into()),
        }
    }
}

impl EngineKeywords {
    /// Returns the engine options, and the weight decay in the spelling of the optimizer, if there is one.
    pub(super) fn read(self, py: Python<'_>) -> PyResult<(EngineOptions, Option<f64>)> {
        let usual = EngineOptions::default();
        let (optimizer, groups, spelled) = stepping(py, self.optimizer.as_deref(), self.groups)?;
        let options = EngineOptions {
            optimizer,
            groups,
            learning_rate: self.learning_rate.map(Into::into),
            bucket_bytes: self.bucket_bytes.unwrap_or(usual.bucket_bytes),
            first_bucket_bytes: self.first_bucket_bytes.unwrap_or(usual.first_bucket_bytes),
            order: one_of(
                py,
                "order",
                self.order,
                &[("observed", Order::Observed), ("listed", Order::Listed)],
            )?,
            unused: one_of(py, "unused", self.unused, &[("error", Unused::Error), ("zero", Unused::Zero)])?,
            buffers: one_of(
                py,
                "buffers",
                self.buffers,
                &[("broadcast", Buffers::Broadcast), ("average", Buffers::Average), ("off", Buffers::Off)],
            )?,
            hierarchical: self.hierarchical.unwrap_or(usual.hierarchical),
            streams: self.streams.unwrap_or(usual.streams),
            clip_norm: self.clip_norm,
            loss_scale: self.loss_scale.map(|initial| LossScale { initial, ..LossScale::default() }),
            skip_overflows: self.skip_overflows.unwrap_or(usual.skip_overflows),
            uneven: self.uneven.unwrap_or(usual.uneven),
            seed: self.seed.unwrap_or(usual.seed),
            autotune: self.autotune.unwrap_or(false).then(Autotune::default),
            overlap: one_of(
                py,
                "overlap",
                self.overlap,
                &[("backward", Overlap::Backward), ("forward", Overlap::Forward)],
            )?,
            ..usual
        };
        Ok((options, spelled))
    }
}

/// Groups of an optimizer: the names in each, and the largest weight decay of the groups.
type OptimizerGroups = (Vec<BTreeSet<String>>, f64);

/// An optimizer, its groups, and the weight decay in its spelling.
type OptimizerParts = (Option<Arc<dyn Optimizer>>, Vec<ParameterGroup>, Option<f64>);

/// Returns the optimizer of a spelling, its groups, and the weight decay in its spelling.
fn stepping(
    py: Python<'_>,
    spelling: Option<&str>,
    groups: Option<OptimizerGroups>,
) -> PyResult<OptimizerParts> {
    let optimizer = spelling.map(optimizer::named).transpose();
    let optimizer = optimizer.map_err(|error| crate::error::exception(py, &error))?;
    let spelled = optimizer.as_ref().and_then(|optimizer| optimizer.weight_decay());
    let (groups, most) = groups.unwrap_or_default();
    let groups = groups.into_iter().map(|names| ParameterGroup::of(Members::Listed(names))).collect();
    Ok((optimizer.map(|optimizer| decaying(optimizer, most)), groups, spelled))
}

/// Returns an optimizer with a weight decay of `most` if its own is 0, so that the factors of groups can apply to it.
fn decaying(optimizer: Arc<dyn Optimizer>, most: f64) -> Arc<dyn Optimizer> {
    if most == 0.0 || optimizer.weight_decay() != Some(0.0) {
        return optimizer;
    }
    optimizer.with_weight_decay(most).unwrap_or(optimizer)
}

/// Returns the name of every algorithm of the registry, with its trigram and its source.
#[pyfunction]
pub(crate) fn algorithms() -> Vec<(&'static str, String, &'static str)> {
    let told = |algorithm: &AnyAlgorithm| {
        let trigram = algorithm.trigram();
        (algorithm.name(), format!("{} {trigram}", trigram.symbol()), algorithm.source())
    };
    registry::all().iter().map(told).collect()
}

/// Returns true if the hooks of an algorithm use the learning rate.
#[pyfunction]
pub(crate) fn needs_learning_rate(py: Python<'_>, algorithm: &str) -> PyResult<bool> {
    let named = registry::named(algorithm).map_err(|error| crate::error::exception(py, &error))?;
    Ok(named.needs_learning_rate())
}

/// Returns the value for a word; the default without one.
fn one_of<T: Copy + Default>(
    py: Python<'_>,
    name: &str,
    word: Option<String>,
    known: &[(&str, T)],
) -> PyResult<T> {
    let Some(word) = word else { return Ok(T::default()) };
    let found = known.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        usage(py, format!("{name} cannot be `{word}`"), format!("use one of {}", words.join(", ")))
    })
}

/// Returns the parameters of a model from names, element types and shapes.
pub(super) fn parameters(
    py: Python<'_>,
    listed: Vec<(String, String, Vec<usize>)>,
) -> PyResult<Vec<Parameter>> {
    let read = |(name, dtype, shape): (String, String, Vec<usize>)| {
        Ok(Parameter { name, dtype: crate::values::dtype::dtype(py, &dtype)?, shape })
    };
    listed.into_iter().map(read).collect()
}
