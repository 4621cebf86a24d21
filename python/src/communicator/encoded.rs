//! Collectives and averages in low precision.

use super::{Argument, Call, Comm, Communicator, Returned, nothing};
use crate::dtype::{graph, reduction};
use crate::encoding::Encoding;
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
            let mut encoding = slot.take()?;
            let outcome = comm.all_reduce_encoded(&mut buffer, op, &mut encoding).await;
            slot.put(encoding);
            nothing(outcome)
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
            let mut encoding = slot.take()?;
            let outcome = comm.all_reduce_sparse(&mut buffer, op, &mut encoding).await;
            slot.put(encoding);
            nothing(outcome)
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
        let difference = match difference {
            "before-mixing" => Difference::BeforeMixing,
            "after-mixing" => Difference::AfterMixing,
            other => {
                let what = format!("there is no difference {other}");
                return Err(usage(py, what, "use before-mixing (CHOCO) or after-mixing (DCD)"));
            }
        };
        let options = GossipOptions { consensus, difference };
        let mut buffer = Operand::output(elements)?;
        let slot = encoding.slot();
        self.run(py, Call { what: "gossip_encoded", async_op, timeout }, async move |comm: &Comm| {
            let mut encoding = slot.take()?;
            let outcome = comm.gossip_encoded(&mut buffer, &*schedule, step, &mut encoding, options).await;
            slot.put(encoding);
            nothing(outcome)
        })
    }
}
