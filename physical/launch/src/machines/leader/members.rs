//! Machines of an elastic job, which come and go while its ranks run.

use super::Leader;
use crate::machines::messages::MachineEvent;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

impl Leader {
    /// Returns the events of the other machines from the start on, which is now.
    pub(crate) fn follow_members(&mut self) -> UnboundedReceiver<MachineEvent> {
        let (sender, events) = unbounded_channel();
        self.keeper = Some(sender);
        let here: Vec<_> = self.others.iter().map(|(node, other)| (*node, other.writer.sender())).collect();
        here.into_iter().for_each(|(node, writer)| self.tell_keeper(MachineEvent::Arrived(node, writer)));
        events
    }

    /// Starts the ranks of a machine that comes while the others run. Between starts, it waits for the next one.
    pub(super) fn start_arrival(&mut self, node: usize) {
        if !self.keeper_is_open() {
            return;
        }
        let line = format!("start 0 {node} {} node {node} joins", self.meeting);
        let Some(other) = self.others.get_mut(&node) else { return };
        other.start(&line);
        let writer = other.writer.sender();
        self.tell_keeper(MachineEvent::Arrived(node, writer));
    }

    /// Records that the launcher of a connection got a signal, or has ended otherwise before the job: its machine leaves.
    pub(super) fn left(&mut self, connection: u64) {
        let Some(node) = self.node_of(connection) else { return };
        if let Some(other) = self.others.remove(&node) {
            other.writer.send("stop this machine has left the job");
        }
        self.tell_keeper(MachineEvent::Gone(node));
    }

    /// Passes a message about a process on.
    pub(super) fn member_message(&mut self, connection: u64, line: String) {
        if let Some(node) = self.node_of(connection) {
            self.tell_keeper(MachineEvent::Message(node, line));
        }
    }

    /// Returns true while ranks of an elastic job run on any machine.
    pub(super) fn keeper_is_open(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| !keeper.is_closed())
    }

    /// Passes an event to the keeper of the membership, which ends with the ranks.
    pub(super) fn tell_keeper(&self, event: MachineEvent) {
        drop(self.keeper.as_ref().map(|keeper| keeper.send(event)));
    }
}
