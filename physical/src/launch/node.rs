//! This machine's part in a job of several machines. Open this file to start one without a cluster's own launcher.
//!
//! Each machine runs a launcher of its own for its own ranks; they are told apart by number and agree on one address.
//! Launchers do not speak to each other: a rank that fails is told to the others by the ranks' own control connections,
//! and what fails because of that ends the other launchers' jobs.

use super::{Job, MAX_RANKS, Output};
use crate::bootstrap::{ListenContext, Listener, MAX_SIZE, Rendezvous, host_and_port};
use crate::error::{Error, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Which of several machines this is, and where all their ranks meet. Every machine starts equally many ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// This machine's number, below `nodes`. Its ranks come after those of lower numbers.
    pub number: usize,
    /// How many machines there are.
    pub nodes: usize,
    /// `host:port` at which rank 0 listens: an address of machine 0, the same on all machines.
    pub address: String,
    /// A file with the job's secret, the same on all machines.
    pub secret: PathBuf,
}

impl Node {
    /// Binds the address, on the machine to which it belongs; `remote_ranks` ranks are on the others.
    ///
    /// # Errors
    /// [`Error::Setup`] if it is no address, [`Error::System`] if it is taken or of another machine.
    pub(super) fn listen(&self, remote_ranks: usize) -> Result<Vec<OwnedFd>> {
        let (host, port) = host_and_port("--addr", &self.address)?;
        if self.number > 0 {
            return Ok(Vec::new());
        }
        let context =
            ListenContext { remote_ranks, alternative: "choose another port in --addr, on all machines" };
        match (Rendezvous::Tcp { host, port, agent: false }).listen(None, context)? {
            Listener::Tcp(listeners, _) => Ok(listeners.into_files()),
            Listener::Local(listener) => Ok(vec![listener.into()]),
        }
    }
}

impl Job {
    /// Ranks on all machines.
    pub(super) fn size(&self) -> usize {
        self.ranks.saturating_mul(self.node.as_ref().map_or(1, |node| node.nodes))
    }

    /// The ranks of this machine.
    pub(super) fn numbers(&self) -> Range<usize> {
        let first = self.node.as_ref().map_or(0, |node| node.number * self.ranks);
        first..first + self.ranks
    }

    /// Refuses what makes no sense, before anything is started.
    pub(super) fn check(&self) -> Result<()> {
        let size = self.size();
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            let what = format!("a job of {} ranks cannot be started", self.ranks);
            return Err(Error::usage(what, format!("ask for 1 to {MAX_RANKS} ranks")));
        }
        if let Some(Node { number, nodes, .. }) = self.node
            && number >= nodes
        {
            let what = format!("there is no node {number} among {nodes}");
            return Err(Error::usage(what, "nodes count from 0 to one less than their number"));
        }
        if size > MAX_SIZE {
            let what = format!("{size} ranks are beyond any cluster");
            return Err(Error::usage(what, format!("use at most {MAX_SIZE} on all nodes together")));
        }
        if let Some(show) = self.show.as_ref().filter(|show| show.highest() >= size) {
            let what = format!("there is no rank {} among {size} to show", show.highest());
            return Err(Error::usage(what, "ranks count from 0 to one less than their number"));
        }
        if self.output == Output::Inherit && (self.show.is_some() || self.logs.is_some()) {
            let what = "output that the ranks write themselves can be neither filtered nor kept in files";
            return Err(Error::usage(what, "let it be prefixed"));
        }
        Ok(())
    }
}
