//! Messages between two ranks, in order or under tags.

use super::{CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing};
use crate::memory::Operand;
use crate::values::whole::{ranks, tag};
use crate::work::WorkValue;
use pyo3::prelude::*;

#[pymethods]
impl Communicator {
    /// Sends to rank `to`: in order, or under `tag` if given.
    #[pyo3(signature = (elements, to, *, tag = None, async_op = false, timeout = None))]
    fn send(
        &self,
        elements: ElementsArgument,
        #[pyo3(from_py_with = ranks)] to: usize,
        #[pyo3(from_py_with = tag)] tag: Option<u32>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let buffer = Operand::input(elements)?;
        let call = CallOptions { what: "send", async_op, timeout };
        self.run_at_once(elements.py(), call, async move |comm: &InnerCommunicator| {
            nothing(match tag {
                None => comm.send(&buffer, to).await,
                Some(tag) => comm.send_tagged(&buffer, to, tag).await,
            })
        })
    }

    /// Receives from rank `source`, in order or under `tag`; without a source from any rank, under `tag` or 0.
    #[pyo3(signature = (elements, source = None, *, tag = None, async_op = false, timeout = None))]
    fn recv(
        &self,
        elements: ElementsArgument,
        #[pyo3(from_py_with = ranks)] source: Option<usize>,
        #[pyo3(from_py_with = tag)] tag: Option<u32>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> CallResult {
        let mut buffer = Operand::output(elements)?;
        let call = CallOptions { what: "recv", async_op, timeout };
        self.run_at_once(elements.py(), call, async move |comm: &InnerCommunicator| {
            let from = match (source, tag) {
                (Some(source), None) => comm.recv(&mut buffer, source).await.map(|()| source),
                (Some(source), Some(tag)) => {
                    comm.recv_tagged(&mut buffer, source, tag).await.map(|()| source)
                }
                (None, tag) => comm.recv_any(&mut buffer, tag.unwrap_or_default()).await,
            };
            from.map(WorkValue::Rank)
        })
    }
}
