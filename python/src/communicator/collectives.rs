//! The collectives that a group of ranks and its host hierarchy share. Those of the hierarchy run within each host
//! first, then among one leader of each host, and encode only messages between hosts.

use super::encoded::gossip_options;
use super::hierarchy::{Hierarchy, InnerHierarchy};
use super::{CallOptions, CallResult, Communicator, ElementsArgument, InnerCommunicator, nothing};
use crate::encoding::{Encoding, LinearEncoding};
use crate::memory::Operand;
use crate::values::dtype::{graph, reduction};
use crate::values::whole::{count, ranks};
use crate::work::WorkValue;
use pyo3::prelude::*;

/// Adds the collectives to a class, with the type on which its operations run.
macro_rules! collectives {
    ($Class:ident, $On:ty) => {
        #[pymethods]
        impl $Class {
            /// Reduces elements over all ranks, in place: sum, mean (floats), min, max, product, band, bor or bxor
            /// (integers and booleans). Every rank passes the same number of elements of the same type.
            ///
            /// >>> comm.all_reduce(gradient, "mean")  # doctest: +SKIP
            ///
            /// Raises `Mismatch` on all ranks if they differ in count, type or reduction; `PeerFailed` if a rank dies.
            #[pyo3(signature = (elements, op = "sum", *, async_op = false, timeout = None))]
            fn all_reduce(&self, elements: ElementsArgument, op: &str, async_op: bool, timeout: Option<f64>) -> CallResult {
                let py = elements.py();
                let op = reduction(py, op)?;
                let mut buffer = Operand::output(elements)?;
                self.run(py, CallOptions { what: "all_reduce", async_op, timeout }, async move |on: &$On| {
                    nothing(on.all_reduce(&mut buffer, op).await)
                })
            }

            /// Reduces elements over all ranks to rank `root`, in place; those of other ranks do not change. Raises as
            /// `all_reduce`.
            #[pyo3(signature = (elements, op = "sum", *, root, async_op = false, timeout = None))]
            fn reduce(
                &self,
                elements: ElementsArgument,
                op: &str,
                #[pyo3(from_py_with = ranks)] root: usize,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let op = reduction(py, op)?;
                let mut buffer = Operand::output(elements)?;
                self.run(py, CallOptions { what: "reduce", async_op, timeout }, async move |on: &$On| {
                    nothing(on.reduce(&mut buffer, op, root).await)
                })
            }

            /// Copies the elements of rank `root` to every rank, in place. On the root they may be read-only.
            #[pyo3(signature = (elements, root, *, async_op = false, timeout = None))]
            fn broadcast(&self, elements: ElementsArgument, #[pyo3(from_py_with = ranks)] root: usize, async_op: bool, timeout: Option<f64>) -> CallResult {
                let is_root = self.rank() == root;
                let mut buffer = if is_root { Operand::input(elements)? } else { Operand::output(elements)? };
                let call = CallOptions { what: "broadcast", async_op, timeout };
                self.run(elements.py(), call, async move |on: &$On| {
                    nothing(on.broadcast(&mut buffer, root).await)
                })
            }

            /// Gathers `mine` of rank r as block r of `all`, on every rank: `all` has `size` times as many elements.
            #[pyo3(signature = (mine, all, *, async_op = false, timeout = None))]
            fn all_gather(&self, mine: ElementsArgument, all: ElementsArgument, async_op: bool, timeout: Option<f64>) -> CallResult {
                let mut to = Operand::output(all)?;
                let from = Operand::input(mine)?.apart_from(all.py(), &to)?;
                let call = CallOptions { what: "all_gather", async_op, timeout };
                self.run(mine.py(), call, async move |on: &$On| nothing(on.all_gather(&from, &mut to).await))
            }

            /// Reduces block r of `all` over all ranks to `mine` of rank r: `all` has `size` times as many elements.
            #[pyo3(signature = (all, mine, op = "sum", *, async_op = false, timeout = None))]
            fn reduce_scatter(
                &self,
                all: ElementsArgument,
                mine: ElementsArgument,
                op: &str,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = mine.py();
                let op = reduction(py, op)?;
                let mut to = Operand::output(mine)?;
                let from = Operand::input(all)?.apart_from(mine.py(), &to)?;
                self.run(py, CallOptions { what: "reduce_scatter", async_op, timeout }, async move |on: &$On| {
                    nothing(on.reduce_scatter(&from, &mut to, op).await)
                })
            }

            /// Reduces f32 elements over all ranks, in place, by a scatter-gather of encoded chunks. All ranks need
            /// equal encodings, one per bucket, kept from step to step. Raises `NotFinite` if the codec refuses a
            /// value.
            #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
            fn all_reduce_encoded(
                &self,
                elements: ElementsArgument,
                encoding: &Encoding,
                op: &str,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let op = reduction(py, op)?;
                let mut buffer = Operand::output(elements)?;
                let slot = encoding.slot();
                self.run(py, CallOptions { what: "all_reduce_encoded", async_op, timeout }, async move |on: &$On| {
                    nothing(
                        slot.lend(async |encoding| on.all_reduce_encoded(&mut buffer, op, encoding).await).await,
                    )
                })
            }

            /// Reduces f32 elements over all ranks, in place, by an all-gather of small messages, such as those of
            /// top-k.
            #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
            fn all_reduce_sparse(
                &self,
                elements: ElementsArgument,
                encoding: &Encoding,
                op: &str,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let op = reduction(py, op)?;
                let mut buffer = Operand::output(elements)?;
                let slot = encoding.slot();
                self.run(py, CallOptions { what: "all_reduce_sparse", async_op, timeout }, async move |on: &$On| {
                    nothing(
                        slot.lend(async |encoding| on.all_reduce_sparse(&mut buffer, op, encoding).await).await,
                    )
                })
            }

            /// Reduces f32 elements over all ranks, in place, by messages that are reduced in encoded form: PowerSGD,
            /// or random-k. Feedback is none or error.
            #[pyo3(signature = (elements, encoding, op = "mean", *, async_op = false, timeout = None))]
            fn all_reduce_linear(
                &self,
                elements: ElementsArgument,
                encoding: &LinearEncoding,
                op: &str,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let op = reduction(py, op)?;
                let mut buffer = Operand::output(elements)?;
                let slot = encoding.slot();
                self.run(py, CallOptions { what: "all_reduce_linear", async_op, timeout }, async move |on: &$On| {
                    nothing(
                        slot.lend(async |encoding| on.all_reduce_linear(&mut buffer, op, encoding).await).await,
                    )
                })
            }

            /// Mixes with neighbours, in place, with the weights of a graph at a step: `"ring"`,
            /// `"one-peer-exponential"`, `"torus"` and others. Raises `UsageError` with the nearest names for an
            /// unknown graph.
            #[pyo3(signature = (elements, graph, step, *, async_op = false, timeout = None))]
            fn gossip(
                &self,
                elements: ElementsArgument,
                graph: &str,
                #[pyo3(from_py_with = count)] step: u64,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let schedule = self::graph(py, graph)?;
                let mut buffer = Operand::output(elements)?;
                self.run(py, CallOptions { what: "gossip", async_op, timeout }, async move |on: &$On| {
                    nothing(on.gossip(&mut buffer, &*schedule, step).await)
                })
            }

            /// Mixes elements and `weight` over a directed graph, and returns the new weight: start with 1. The
            /// estimate is `elements / weight`.
            #[pyo3(signature = (elements, weight, graph, step, *, async_op = false, timeout = None))]
            fn push_sum(
                &self,
                elements: ElementsArgument,
                weight: f64,
                graph: &str,
                #[pyo3(from_py_with = count)] step: u64,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let schedule = self::graph(py, graph)?;
                let mut buffer = Operand::output(elements)?;
                self.run(py, CallOptions { what: "push_sum", async_op, timeout }, async move |on: &$On| {
                    let mut weight = weight;
                    on.push_sum(&mut buffer, &mut weight, &*schedule, step).await?;
                    Ok(WorkValue::Number(weight))
                })
            }

            /// Mixes f32 elements with neighbours by encoded messages, in place: CHOCO with difference feedback, DCD
            /// with `difference="after-mixing"`, DeepSqueeze with error feedback. `consensus` is γ, above 0 and at most
            /// 1.
            #[pyo3(signature = (
                elements, encoding, graph, step, *, consensus = 1.0, difference = "before-mixing", async_op = false,
                timeout = None
            ))]
            #[allow(clippy::too_many_arguments, reason = "Python names them")]
            fn gossip_encoded(
                &self,
                elements: ElementsArgument,
                encoding: &Encoding,
                graph: &str,
                #[pyo3(from_py_with = count)] step: u64,
                consensus: f64,
                difference: &str,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let schedule = self::graph(py, graph)?;
                let options = gossip_options(py, consensus, difference)?;
                let mut buffer = Operand::output(elements)?;
                let slot = encoding.slot();
                self.run(py, CallOptions { what: "gossip_encoded", async_op, timeout }, async move |on: &$On| {
                    let mix = async |encoding: &mut _| {
                        on.gossip_encoded(&mut buffer, &*schedule, step, encoding, options).await
                    };
                    nothing(slot.lend(mix).await)
                })
            }

            /// Resets the estimates of the neighbours in an encoding to their present values: for values far from 0,
            /// before the first `gossip_encoded`, and when the graph changes. One `gossip` in full precision; the
            /// elements do not change.
            #[pyo3(signature = (elements, encoding, graph, step, *, async_op = false, timeout = None))]
            fn gossip_synchronize(
                &self,
                elements: ElementsArgument,
                encoding: &Encoding,
                graph: &str,
                #[pyo3(from_py_with = count)] step: u64,
                async_op: bool,
                timeout: Option<f64>,
            ) -> CallResult {
                let py = elements.py();
                let schedule = self::graph(py, graph)?;
                let buffer = Operand::input(elements)?;
                let slot = encoding.slot();
                self.run(py, CallOptions { what: "gossip_synchronize", async_op, timeout }, async move |on: &$On| {
                    let begin =
                        async |encoding: &mut _| on.gossip_synchronize(&buffer, &*schedule, step, encoding).await;
                    nothing(slot.lend(begin).await)
                })
            }
        }
    };
}
collectives!(Communicator, InnerCommunicator);
collectives!(Hierarchy, InnerHierarchy);
