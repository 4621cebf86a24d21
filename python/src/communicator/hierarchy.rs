//! Hierarchical collectives: first within each host, then among one leader of each, then within the hosts again.

use super::encoded::gossip_options;
use super::{Argument, Call, Communicator, Returned, nothing};
use crate::dtype::{graph, reduction};
use crate::encoding::{Encoding, LinearEncoding};
use crate::memory::Operand;
use crate::work::{Value, outcome};
use hexagram::Result;
use hexagram::logical::executor::{Order, Ticket};
use pyo3::prelude::*;

/// The ranks of a group, by host. See `Communicator.hierarchy`.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Hierarchy {
    all: Communicator,
    hosts: Vec<Vec<usize>>,
}

/// Hosts and leaders that an operation runs on.
type Hosts = hexagram::Hierarchy;

#[pymethods]
impl Hierarchy {
    /// Returns the ranks of each host in the group, lowest first; hosts in the order of their leaders.
    #[getter]
    fn hosts(&self) -> Vec<Vec<usize>> {
        self.hosts.clone()
    }

    /// Returns true on the lowest rank of each host.
    #[getter]
    fn is_leader(&self) -> bool {
        self.hosts.iter().any(|ranks| ranks.first() == Some(&self.all.rank()))
    }

    fn __repr__(&self) -> String {
        format!("Hierarchy(hosts {:?}, rank {})", self.hosts, self.all.rank())
    }

    /// Returns the same ranks on another lane, whose operations run beside those of this one.
    fn lane(&self, number: usize) -> Self {
        Hierarchy { all: self.all.lane(number), hosts: self.hosts.clone() }
    }

    /// Reduces elements over all ranks, in place. Every rank passes as many elements of one type.
    #[pyo3(signature = (elements, op = "sum", *, async_op = false, timeout = None))]
    fn all_reduce(&self, elements: Argument, op: &str, async_op: bool, timeout: Option<f64>) -> Returned {
        let py = elements.py();
        let op = reduction(py, op)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "all_reduce", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(hosts.all_reduce(&mut buffer, op).await)
        })
    }

    /// Reduces elements over all ranks to rank `root`, in place; the others' are not changed.
    #[pyo3(signature = (elements, op = "sum", *, root, async_op = false, timeout = None))]
    fn reduce(
        &self,
        elements: Argument,
        op: &str,
        root: usize,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let op = reduction(py, op)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "reduce", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(hosts.reduce(&mut buffer, op, root).await)
        })
    }

    /// Copies the elements of rank `root` to every rank, in place. On the root they may be read-only.
    #[pyo3(signature = (elements, root, *, async_op = false, timeout = None))]
    fn broadcast(&self, elements: Argument, root: usize, async_op: bool, timeout: Option<f64>) -> Returned {
        let is_root = self.all.rank() == root;
        let mut buffer = if is_root { Operand::input(elements)? } else { Operand::output(elements)? };
        let call = Call { what: "broadcast", async_op, timeout };
        self.run(elements.py(), call, async move |hosts: &Hosts| {
            nothing(hosts.broadcast(&mut buffer, root).await)
        })
    }

    /// Gathers `mine` of rank r as block r of `all`, on every rank: `all` has `size` times as many elements.
    #[pyo3(signature = (mine, all, *, async_op = false, timeout = None))]
    fn all_gather(&self, mine: Argument, all: Argument, async_op: bool, timeout: Option<f64>) -> Returned {
        let from = Operand::input(mine)?;
        let mut to = Operand::output(all)?;
        let call = Call { what: "all_gather", async_op, timeout };
        self.run(mine.py(), call, async move |hosts: &Hosts| nothing(hosts.all_gather(&from, &mut to).await))
    }

    /// Reduces block r of `all` over all ranks to `mine` of rank r: `all` has `size` times as many elements.
    #[pyo3(signature = (all, mine, op = "sum", *, async_op = false, timeout = None))]
    fn reduce_scatter(
        &self,
        all: Argument,
        mine: Argument,
        op: &str,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = mine.py();
        let op = reduction(py, op)?;
        let from = Operand::input(all)?;
        let mut to = Operand::output(mine)?;
        self.run(py, Call { what: "reduce_scatter", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(hosts.reduce_scatter(&from, &mut to, op).await)
        })
    }

    /// Reduces f32 elements over all ranks, in place: only what goes between hosts is encoded.
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
        self.run(py, Call { what: "all_reduce_encoded", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(
                slot.lend(async |encoding| hosts.all_reduce_encoded(&mut buffer, op, encoding).await).await,
            )
        })
    }

    /// Reduces f32 elements over all ranks, in place, the leaders by an all-gather of small messages.
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
        self.run(py, Call { what: "all_reduce_sparse", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(
                slot.lend(async |encoding| hosts.all_reduce_sparse(&mut buffer, op, encoding).await).await,
            )
        })
    }

    /// Reduces f32 elements over all ranks, in place, the leaders by messages that add up.
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
        self.run(py, Call { what: "all_reduce_linear", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(
                slot.lend(async |encoding| hosts.all_reduce_linear(&mut buffer, op, encoding).await).await,
            )
        })
    }

    /// Mixes the hosts' means with those of neighbouring hosts, in place.
    #[pyo3(signature = (elements, graph, step, *, async_op = false, timeout = None))]
    fn gossip(
        &self,
        elements: Argument,
        graph: &str,
        step: u64,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "gossip", async_op, timeout }, async move |hosts: &Hosts| {
            nothing(hosts.gossip(&mut buffer, &*schedule, step).await)
        })
    }

    /// Mixes the hosts' sums, and `weight` with them, over a directed graph of hosts; returns the new weight.
    #[pyo3(signature = (elements, weight, graph, step, *, async_op = false, timeout = None))]
    fn push_sum(
        &self,
        elements: Argument,
        weight: f64,
        graph: &str,
        step: u64,
        async_op: bool,
        timeout: Option<f64>,
    ) -> Returned {
        let py = elements.py();
        let schedule = self::graph(py, graph)?;
        let mut buffer = Operand::output(elements)?;
        self.run(py, Call { what: "push_sum", async_op, timeout }, async move |hosts: &Hosts| {
            let mut weight = weight;
            hosts.push_sum(&mut buffer, &mut weight, &*schedule, step).await?;
            Ok(Value::Number(weight))
        })
    }

    /// Mixes the hosts' means by encoded messages, in place, as `Communicator.gossip_encoded` mixes ranks.
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
        self.run(py, Call { what: "gossip_encoded", async_op, timeout }, async move |hosts: &Hosts| {
            let mix = async |encoding: &mut _| {
                hosts.gossip_encoded(&mut buffer, &*schedule, step, encoding, options).await
            };
            nothing(slot.lend(mix).await)
        })
    }

    /// Lets what an encoding knows of the other hosts begin where they are, as `Communicator.gossip_synchronize`.
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
        self.run(py, Call { what: "gossip_synchronize", async_op, timeout }, async move |hosts: &Hosts| {
            let begin =
                async |encoding: &mut _| hosts.gossip_synchronize(&buffer, &*schedule, step, encoding).await;
            nothing(slot.lend(begin).await)
        })
    }
}

impl Hierarchy {
    /// Takes a group that the executor has split into hosts.
    pub(super) fn new(py: Python<'_>, all: Communicator) -> PyResult<Self> {
        let call = Call { what: "hierarchy", async_op: false, timeout: None };
        let ticket = Self::submit(&all, py, call, async |hosts: &Hosts| Ok(hosts.hosts().to_vec()))?;
        let hosts = outcome(py, &ticket)?;
        Ok(Hierarchy { all, hosts })
    }

    /// Runs a collective, after those before it on this lane.
    fn run(
        &self,
        py: Python<'_>,
        call: Call,
        operation: impl AsyncFnOnce(&Hosts) -> Result<Value> + Send + 'static,
    ) -> Returned {
        let member = &self.all.group.member;
        call.prepare(py, member)?;
        let ticket = Self::submit(&self.all, py, call, operation)?;
        call.begun(py, member, ticket)
    }

    fn submit<T: Send + 'static>(
        all: &Communicator,
        py: Python<'_>,
        call: Call,
        operation: impl AsyncFnOnce(&Hosts) -> Result<T> + Send + 'static,
    ) -> PyResult<Ticket<T>> {
        let joined = all.group.member.get(py)?;
        let options = call.options(py, Order::Lane(all.lane))?;
        // SAFETY: operations own their buffers and settings, all of which may move between threads, and keep nothing of
        // the hierarchy.
        Ok(unsafe { joined.executor.submit_in_hierarchy(&all.group.handle, options, operation) })
    }
}
