//! Collectives and averages in low precision.

use super::{Argument, Call, Comm, Communicator, Returned, nothing};
use crate::dtype::{graph, reduction};
use crate::encoding::{Encoding, LinearEncoding};
use crate::error::usage;
use crate::memory::Operand;
use hexagram::decentralized::{Difference, GossipOptions};
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Reduces f32 elements over all ranks, in place, by a scatter-gather of encoded chunks. All ranks have equal
    /// encodings, one for every bucket, kept from step to step. Raises `NotFinite` if the codec refuses a value.
    #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
    fn all_reduce_encoded(
        &self,
        elements: Argument,
        encoding: &Encoding,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let op = reduction(py, op)?;
        let mut buffer = Operand::output(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "all_reduce_encoded", async_op, timeout }, async move |comm: &Comm| {
            nothing(
                slot.lend(async |encoding| comm.all_reduce_encoded(&mut buffer, op, encoding).await).await,
            )
        })
    }

    /// Reduces f32 elements over all ranks, in place, by an all-gather of small messages, such as those of top-k.
    #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
    fn all_reduce_sparse(
        &self,
        elements: Argument,
        encoding: &Encoding,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let op = reduction(py, op)?;
        let mut buffer = Operand::output(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "all_reduce_sparse", async_op, timeout }, async move |comm: &Comm| {
            nothing(slot.lend(async |encoding| comm.all_reduce_sparse(&mut buffer, op, encoding).await).await)
        })
    }

    /// Reduces f32 elements over all ranks, in place, by messages that add up, so that they are reduced while they are
    /// encoded: PowerSGD, or random-k. Feedback is none or error.
    #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
    fn all_reduce_linear(
        &self,
        elements: Argument,
        encoding: &LinearEncoding,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let op = reduction(py, op)?;
        let mut buffer = Operand::output(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "all_reduce_linear", async_op, timeout }, async move |comm: &Comm| {
            nothing(slot.lend(async |encoding| comm.all_reduce_linear(&mut buffer, op, encoding).await).await)
        })
    }

    /// Finds the mean of all ranks' f32 values in low precision for ranks that keep their own: `value` becomes what is
    /// known of this rank's, and `mean` the mean, after which `x += step * (mean - value)` with a step above 0 and at most
    /// 1 leaves the mean over ranks as it is. The encoding has difference feedback.
    #[pyo3(signature = (value, mean, encoding, *, async_op = false, timeout = None))]
    fn mean_kept_encoded(
        &self,
        value: Argument,
        mean: Argument,
        encoding: &Encoding,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let mut value_buffer = Operand::output(value)?;
        let mut mean_buffer = Operand::output(mean)?;
        let slot = encoding.slot();
        let call = Call { what: "mean_kept_encoded", async_op, timeout };
        self.run(value.py(), call, async move |comm: &Comm| {
            nothing(
                slot.lend(async |encoding| {
                    comm.mean_kept_encoded(&mut value_buffer, &mut mean_buffer, encoding).await
                })
                .await,
            )
        })
    }

    /// Replaces each f32 element by the sign that most ranks have there.
    #[pyo3(signature = (elements, *, async_op = false, timeout = None))]
    fn majority_vote(&self, elements: Argument, async_op: bool, timeout: Option<f64>) -> Returned {
        let mut buffer = Operand::output(elements)?;
        let call = Call { what: "majority_vote", async_op, timeout };
        self.run(elements.py(), call, async move |comm: &Comm| nothing(comm.majority_vote(&mut buffer).await))
    }

    /// Mixes f32 elements with neighbours by encoded messages, in place: CHOCO with difference feedback, DCD with
    /// `difference="after-mixing"`, DeepSqueeze with error feedback. `consensus` is γ, above 0 and at most 1.
    #[pyo3(signature = (
        elements, encoding, graph, step, *, consensus = 1.0, difference = "before-mixing", async_op = false,
        timeout = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "Python names them")]
    fn gossip_encoded(
        &self,
        elements: Argument,
        encoding: &Encoding,
        graph: &str,
        step: u64,
        consensus: f64,
        difference: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let options = gossip_options(py, consensus, difference)?;
        let mut buffer = Operand::output(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "gossip_encoded", async_op, timeout }, async move |comm: &Comm| {
            nothing(
                slot.lend(async |encoding| {
                    comm.gossip_encoded(&mut buffer, &*schedule, step, encoding, options).await
                })
                .await,
            )
        })
    }

    /// Lets what an encoding knows of the neighbours begin where they are: for values far from 0, before the first
    /// `gossip_encoded`, and when the graph changes. One `gossip` at full precision; the elements stay as they are.
    #[pyo3(signature = (elements, encoding, graph, step, *, async_op = false, timeout = None))]
    fn gossip_synchronize(
        &self,
        elements: Argument,
        encoding: &Encoding,
        graph: &str,
        step: u64,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let buffer = Operand::input(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "gossip_synchronize", async_op, timeout }, async move |comm: &Comm| {
            nothing(
                slot.lend(async |encoding| {
                    comm.gossip_synchronize(&buffer, &*schedule, step, encoding).await
                })
                .await,
            )
        })
    }
}

/// Returns the options of an encoded gossip.
pub(super) fn gossip_options(py: Python<'_>, consensus: f64, difference: &str) -> PyResult<GossipOptions> {
    let difference = match difference {
        "before-mixing" => Difference::BeforeMixing,
        "after-mixing" => Difference::AfterMixing,
        other => {
            let what = format!("there is no difference {other}");
            return Err(usage(py, what, "use before-mixing (CHOCO) or after-mixing (DCD)"));
        }
    };
    Ok(GossipOptions { consensus, difference })
}
