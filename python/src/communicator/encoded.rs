//! Collectives and averages in low precision.

use super::{CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing};
use crate::encoding::Encoding;
use crate::error::usage;
use crate::memory::Operand;
use hexagram::decentralized::{Difference, GossipOptions};
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Computes the mean of the f32 values of all ranks in low precision, for ranks that keep their own. `value`
    /// becomes the estimate of the value of this rank, and `mean` the mean; then `x += step * (mean - value)`, with a
    /// step above 0 and at most 1, preserves the mean over ranks. The encoding has difference feedback.
    #[pyo3(signature = (value, mean, encoding, *, async_op = false, timeout = None))]
    fn mean_kept_encoded(
        &self,
        value: ElementsArgument,
        mean: ElementsArgument,
        encoding: &Encoding,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut value_buffer = Operand::output(value)?;
        let mut mean_buffer = Operand::output(mean)?;
        let slot = encoding.slot();
        let call = CallOptions { what: "mean_kept_encoded", async_op, timeout };
        self.run(value.py(), call, async move |comm: &InnerCommunicator| {
            nothing(
                slot.lend(async |encoding| {
                    comm.mean_kept_encoded(&mut value_buffer, &mut mean_buffer, encoding).await
                })
                .await,
            )
        })
    }

    /// Replaces each f32 element by its majority sign over the ranks.
    #[pyo3(signature = (elements, *, async_op = false, timeout = None))]
    fn majority_vote(&self, elements: ElementsArgument, async_op: bool, timeout: Option<f64>) -> CallResult {
        let mut buffer = Operand::output(elements)?;
        let call = CallOptions { what: "majority_vote", async_op, timeout };
        self.run(elements.py(), call, async move |comm: &InnerCommunicator| {
            nothing(comm.majority_vote(&mut buffer).await)
        })
    }
}

/// Returns the options of an encoded gossip.
pub(super) fn gossip_options(py: Python<'_>, consensus: f64, difference: &str) -> PyResult<GossipOptions> {
    let difference = match difference {
        "before-mixing" => Difference::BeforeMixing,
        "after-mixing" => Difference::AfterMixing,
        other => {
            let what = format!("unknown difference {other}");
            return Err(usage(py, what, "use before-mixing (CHOCO) or after-mixing (DCD)"));
        }
    };
    Ok(GossipOptions { consensus, difference })
}
