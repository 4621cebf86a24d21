//! Mailboxes: arrived messages and completed sends for the endpoints of a simulated cluster.

use super::network::messages::SimulatedMessage;
use crate::transport::{Received, Ticket};
use std::collections::BTreeMap;
use std::mem;

/// Number of a mailbox: each rank has one on each channel.
pub(super) type BoxNumber = usize;

/// Messages and ends of sends for the endpoint of a rank.
#[derive(Default)]
pub(super) struct DeliveredMail {
    pub(super) arrived: Vec<SimulatedMessage>,
    pub(super) sent: Vec<(Ticket, Received)>,
}

impl DeliveredMail {
    fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.sent.is_empty()
    }
}

/// Mail of a rank on a channel.
pub(super) struct RankMailbox {
    pub(super) channel: u16,
    pub(super) rank: usize,
    mail: DeliveredMail,
    /// Running sends whose end is awaited.
    awaited: Vec<Ticket>,
}

impl RankMailbox {
    /// Adds a message that has arrived.
    pub(super) fn arrive(&mut self, message: SimulatedMessage) {
        self.mail.arrived.push(message);
    }

    /// Adds the end of a send; returns true if a future waits for it. Otherwise the rank finds it at its next check.
    pub(super) fn has_sent(&mut self, ticket: Ticket, got: Received) -> bool {
        self.mail.sent.push((ticket, got));
        let at = self.awaited.iter().position(|awaited| *awaited == ticket);
        at.map(|at| self.awaited.swap_remove(at)).is_some()
    }

    /// Records that a future waits for the end of a send, unless the send has ended.
    pub(super) fn await_sent(&mut self, ticket: Ticket) {
        if self.mail.sent.iter().all(|(sent, _)| *sent != ticket) {
            self.awaited.push(ticket);
        }
    }

    /// Forgets that a future waits for the end of a send.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.awaited.retain(|awaited| *awaited != ticket);
    }

    /// Exchanges the content for empty mail, whose memory is reused; returns false if there is no content.
    pub(super) fn take(&mut self, empty: &mut DeliveredMail) -> bool {
        let is_empty = self.mail.is_empty();
        if !is_empty {
            mem::swap(&mut self.mail, empty);
        }
        !is_empty
    }
}

/// Mailboxes of all ranks on all channels.
pub(super) struct Mailboxes {
    boxes: Vec<RankMailbox>,
    /// Mailbox of rank 0 on each channel; those of the other ranks follow it.
    first: BTreeMap<u16, BoxNumber>,
    ranks: usize,
}

impl Mailboxes {
    pub(super) fn new(ranks: usize) -> Self {
        Mailboxes { boxes: Vec::new(), first: BTreeMap::new(), ranks }
    }

    /// Returns the mailbox of a rank on a channel, which is made with those of all ranks.
    pub(super) fn number(&mut self, channel: u16, rank: usize) -> BoxNumber {
        let Mailboxes { boxes, first, ranks } = self;
        let first = *first.entry(channel).or_insert_with(|| {
            let mailbox =
                |rank| RankMailbox { channel, rank, mail: DeliveredMail::default(), awaited: Vec::new() };
            boxes.extend((0..*ranks).map(mailbox));
            boxes.len() - *ranks
        });
        first + rank
    }

    /// Returns the rank of a mailbox.
    pub(super) fn rank(&self, mailbox: BoxNumber) -> usize {
        self.boxes[mailbox].rank
    }

    /// Returns the mailbox of another rank on the channel of this one.
    pub(super) fn of_peer(&self, mailbox: BoxNumber, peer: usize) -> BoxNumber {
        mailbox - self.boxes[mailbox].rank + peer
    }

    pub(super) fn get(&mut self, number: BoxNumber) -> &mut RankMailbox {
        &mut self.boxes[number]
    }

    /// Returns the number of mailboxes.
    pub(super) fn len(&self) -> usize {
        self.boxes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_that_somebody_waits_for_wake() {
        let mut boxes = Mailboxes::new(3);
        assert_eq!([boxes.number(5, 2), boxes.number(7, 0), boxes.number(5, 0)], [2, 3, 0]);
        assert_eq!(boxes.of_peer(4, 2), 5);
        let mailbox = boxes.get(2);
        let got = Received { peer: 0, bytes: 1 };
        let tickets = [0, 1, 2].map(|index| Ticket { index, generation: 0 });
        mailbox.await_sent(tickets[0]);
        assert!(mailbox.has_sent(tickets[0], got));
        assert!(!mailbox.has_sent(tickets[1], got));
        mailbox.await_sent(tickets[1]);
        mailbox.await_sent(tickets[2]);
        mailbox.cancel(tickets[2]);
        assert!(mailbox.awaited.is_empty());
        let mut mail = DeliveredMail::default();
        assert!(mailbox.take(&mut mail));
        assert_eq!(mail.sent, [(tickets[0], got), (tickets[1], got)]);
        assert!(!mailbox.take(&mut DeliveredMail::default()));
    }
}
