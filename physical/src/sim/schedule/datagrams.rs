//! Datagrams of ranks over sockets, between their turns and the wires.

use super::agenda::{Nanoseconds, nanoseconds};
use super::{SimulatedWorld, Simulator, ThreadNumber};
use crate::control::is_heartbeat;
use crate::sim::network::wires::Flaw;
use crate::sim::sockets::Datagram;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{io, mem};

impl Simulator {
    /// Ends the run at a time, and gives it a flaw for tests to find.
    pub(crate) fn bound(&self, limit: Duration, flaw: Option<Flaw>) {
        let mut state = self.lock();
        state.limit = nanoseconds(limit);
        state.wires.set_flaw(flaw);
        state.flaw = flaw;
    }

    /// Keeps a log of all events from now on.
    pub(crate) fn keep_log(&self) {
        self.lock().wires.keep_log();
    }

    /// Takes the log; empty if none was kept.
    pub(crate) fn take_log(&self) -> Vec<String> {
        self.lock().wires.take_log()
    }

    /// Calls the listener of that name as the rank that runs. Returns the call, and the rank's socket.
    pub(super) fn call(&self, name: &str) -> io::Result<(usize, UnixStream)> {
        let mut state = self.lock();
        let rank = state.running_rank();
        let mut datagrams = Vec::new();
        let call = state.sockets.call(rank, name, &mut datagrams)?;
        let at = state.local_time();
        state.post(at, datagrams);
        Ok(call)
    }
}

impl SimulatedWorld {
    /// Returns the rank whose thread runs.
    pub(super) fn running_rank(&self) -> usize {
        self.threads.get(self.running).map_or(0, |thread| thread.rank)
    }

    /// Takes the data that a rank has written to its sockets in a turn, and sends it at the end of the turn.
    pub(super) fn collect(&mut self, number: ThreadNumber) {
        let rank = self.threads[number].rank;
        let mut datagrams = self.sockets.collect(rank);
        if let Some(Flaw::SkipHeartbeats { every }) = self.flaw {
            datagrams.retain(|datagram| {
                self.heartbeats += u64::from(is_heartbeat(datagram.piece.bytes()));
                !(is_heartbeat(datagram.piece.bytes()) && self.heartbeats.is_multiple_of(every))
            });
        }
        let at = self.threads[number].ahead.max(self.now);
        self.post(at, datagrams);
    }

    /// Sends datagrams.
    pub(super) fn post(&mut self, at: Nanoseconds, datagrams: Vec<Datagram>) {
        for datagram in datagrams {
            self.wires.post(at, datagram, &mut self.agenda);
        }
    }

    /// Gives ranks the datagrams that have arrived.
    pub(super) fn deliver(&mut self) {
        for datagram in mem::take(&mut self.wires.datagrams) {
            let rank = datagram.to;
            let answer = self.sockets.deliver(datagram.piece);
            self.post(self.now, answer.into_iter().collect());
            if !self.to_look.contains(&rank) {
                self.to_look.push(rank);
            }
        }
    }
}
