//! Faults as they happen to the threads of a simulated world.
//!
//! The threads of a rank that has died continue in isolation: nothing that they send arrives, nothing reaches them,
//! and all their connections are closed. So they end like those of an isolated rank, and leave nothing behind.

use super::agenda::{Nanoseconds, nanoseconds};
use super::{ScheduledEvent, SimulatedWorld, Simulator, ThreadNumber};
use crate::sim::cluster::fault::{Fault, FaultKind};

/// Condition of the process of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Well,
    Stopped,
    Dead,
}

impl Simulator {
    /// Allows ranks to fail: by these faults, or by themselves.
    pub(crate) fn expect(&self, faults: &[Fault]) {
        let mut state = self.lock();
        state.conditions = vec![Condition::Well; state.of_rank.len()];
        state.faults_left = faults.len();
        for (number, fault) in faults.iter().enumerate() {
            state.agenda.add(nanoseconds(fault.at), ScheduledEvent::Fault(number));
        }
        state.faults = faults.to_vec();
    }

    /// Returns true if nothing more can arrive from `peer` at `rank`, because its process has ended or all have for
    /// this one.
    pub(crate) fn is_closed(&self, peer: usize, rank: usize) -> bool {
        let state = self.lock();
        state.is_dead(rank) || state.wires.is_closed(peer, rank)
    }

    /// Closes the connections of a rank that leaves, in a world whose ranks are processes.
    pub(crate) fn close(&self, rank: usize) {
        let mut state = self.lock();
        if !state.conditions.is_empty() {
            let at = state.local_time();
            state.close(at, rank);
        }
    }
}

impl SimulatedWorld {
    pub(super) fn is_stopped(&self, number: ThreadNumber) -> bool {
        self.conditions.get(self.threads[number].rank) == Some(&Condition::Stopped)
    }

    pub(super) fn is_dead(&self, rank: usize) -> bool {
        self.conditions.get(rank) == Some(&Condition::Dead)
    }

    /// Applies a fault.
    pub(super) fn strike(&mut self, kind: FaultKind) {
        let now = self.now;
        self.wires.note(now, || format!("{kind}"));
        match kind {
            FaultKind::RankDies(rank) => self.die(rank),
            FaultKind::HostDies(host) => {
                for rank in self.wires.ranks_of(host) {
                    self.wires.vanish(rank);
                    self.die(rank);
                }
            }
            FaultKind::RankStops(rank) if self.conditions[rank] == Condition::Well => {
                self.conditions[rank] = Condition::Stopped;
            }
            FaultKind::RankResumes(rank) if self.conditions[rank] == Condition::Stopped => {
                self.conditions[rank] = Condition::Well;
                self.release(rank);
            }
            FaultKind::RankStops(_) | FaultKind::RankResumes(_) => {}
            FaultKind::Cut(cut) => self.wires.cut(now, cut),
            FaultKind::Heal => {
                let mut told = Vec::new();
                self.wires.heal(now, &mut self.agenda, |rank| told.push(rank));
                told.into_iter().for_each(|rank| self.wake_parked(rank));
            }
            FaultKind::Slow { host, share } => self.wires.slow(now, host, share),
        }
    }

    /// Ends the process of a rank for all others.
    fn die(&mut self, rank: usize) {
        if self.is_dead(rank) {
            return;
        }
        let now = self.now;
        self.close(now, rank);
        let datagrams = self.sockets.kill(rank);
        self.post(now, datagrams);
        self.wires.bury(rank);
        self.conditions[rank] = Condition::Dead;
        self.release(rank);
        self.ring(rank);
        self.to_look.push(rank);
    }

    /// Notifies all other ranks that nothing more comes from one.
    fn close(&mut self, at: Nanoseconds, rank: usize) {
        for peer in (0..self.of_rank.len()).filter(|peer| *peer != rank) {
            self.wires.close(at, rank, peer, &mut self.agenda);
        }
    }

    /// Resumes the threads of a rank that would have run while it was stopped.
    fn release(&mut self, rank: usize) {
        let of_rank = |number: &ThreadNumber| self.threads[*number].rank == rank;
        let released: Vec<_> = self.held.iter().copied().filter(of_rank).collect();
        self.held.retain(|number| !released.contains(number));
        self.ready.extend(released);
    }

    /// Ends stopped ranks once no other rank runs and no fault resumes them, as their launcher would.
    pub(super) fn end_stopped(&mut self) {
        if self.faults_left > 0 || !self.conditions.contains(&Condition::Stopped) {
            return;
        }
        let stopped = |rank: &usize| self.conditions[*rank] == Condition::Stopped;
        let runs = |rank: usize| !self.of_rank[rank].is_empty();
        if (0..self.of_rank.len()).all(|rank| stopped(&rank) || !runs(rank)) {
            let ranks: Vec<usize> = (0..self.of_rank.len()).filter(stopped).collect();
            ranks.into_iter().for_each(|rank| self.die(rank));
        }
    }
}
