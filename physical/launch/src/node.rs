//! Part of this machine in a job on several machines.
//!
//! Each machine runs a launcher for its own ranks. The launchers have distinct numbers, and the same address. The control
//! connections of the ranks report a failed rank to all others, whose failures then end the jobs of the other launchers.
//! Launchers communicate only if the job may restart or is elastic (`machines`).

use crate::{Job, MAX_RANKS, Output};
use hexagram_physical::launcher::{MAX_SIZE, host_and_port, listen};
use hexagram_physical::{Error, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time to resolve the name of the first machine.
pub(super) const RESOLVE_PATIENCE: Duration = Duration::from_secs(60);

/// One of several machines, each of which starts the same number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Number of this machine, below `nodes`. Its ranks follow those of lower numbers.
    pub number: usize,
    /// Number of machines, at most.
    pub nodes: usize,
    /// Smallest number of machines with which the job starts; [`Node::nodes`] for a fixed number.
    pub least: usize,
    /// Rendezvous as `host:port`: an address of machine 0, the same on all machines.
    pub address: String,
    /// File with the secret of the job, the same on all machines.
    pub secret: PathBuf,
}

impl Node {
    /// Listens at the address, if this machine has it. The other machines have `remote_ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Setup`] if the address is malformed, [`Error::System`] if it is taken or belongs to a different
    /// machine.
    pub(super) fn listen(&self, remote_ranks: usize) -> Result<Vec<OwnedFd>> {
        let (host, port) = host_and_port("--addr", &self.address)?;
        if self.number > 0 {
            return Ok(Vec::new());
        }
        listen(
            host,
            port,
            remote_ranks,
            "choose a different port in --addr, on all machines",
            RESOLVE_PATIENCE,
        )
    }
}

impl Job {
    /// Returns the number of ranks on all machines.
    pub(super) fn size(&self) -> usize {
        self.ranks.saturating_mul(self.node.as_ref().map_or(1, |node| node.nodes))
    }

    /// Returns the ranks of this machine.
    pub(super) fn numbers(&self) -> Range<usize> {
        let first = self.node.as_ref().map_or(0, |node| node.number * self.ranks);
        first..first + self.ranks
    }

    /// Returns true if the launchers of several machines agree on starts and ends.
    pub(super) fn agrees(&self) -> bool {
        let may_change = |node: &Node| node.least < node.nodes || self.elastic.is_some();
        self.node.as_ref().is_some_and(|node| self.max_restarts > 0 || self.grow || may_change(node))
    }

    /// Refuses an elastic job that cannot run.
    fn check_elastic(&self, least: usize) -> Result<()> {
        let size = self.size();
        if !(1..=size).contains(&least) {
            let what = format!("an elastic job of {size} ranks cannot continue with {least} at least");
            return Err(Error::usage(what, "use a minimum from 1 to the number of ranks"));
        }
        Ok(())
    }

    /// Refuses a job that cannot run, before any process starts.
    pub(super) fn check(&self) -> Result<()> {
        let size = self.size();
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            let what = format!("a job of {} ranks cannot be started", self.ranks);
            return Err(Error::usage(what, format!("use 1 to {MAX_RANKS} ranks")));
        }
        if let Some(Node { number, nodes, .. }) = self.node
            && number >= nodes
        {
            let what = format!("node {number} does not exist among {nodes}");
            return Err(Error::usage(what, "nodes count from 0 to one less than their number"));
        }
        if let Some(Node { least, nodes, .. }) = self.node
            && !(1..=nodes).contains(&least)
        {
            let what = format!("a job of {least} to {nodes} machines cannot be started");
            return Err(Error::usage(what, "the smaller number comes first, and is 1 or more"));
        }
        if let Some(least) = self.elastic {
            self.check_elastic(least)?;
        }
        if size > MAX_SIZE {
            let what = format!("{size} ranks exceed the maximum");
            return Err(Error::usage(what, format!("use at most {MAX_SIZE} on all nodes together")));
        }
        if let Some(show) = self.show.as_ref().filter(|show| show.highest() >= size) {
            let what = format!("rank {} does not exist among {size}, and cannot be shown", show.highest());
            return Err(Error::usage(what, "ranks count from 0 to one less than their number"));
        }
        if self.output == Output::Inherit && (self.show.is_some() || self.logs.is_some()) {
            let what = "output that the ranks write themselves can be neither filtered nor kept in files";
            return Err(Error::usage(what, "use the prefixed output"));
        }
        Ok(())
    }
}
