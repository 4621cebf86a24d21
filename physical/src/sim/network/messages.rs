//! Messages on their way, all in one piece of memory.

use crate::memory::ReadView;
use crate::sim::schedule::agenda::Nanoseconds;
use crate::sim::sockets::Datagram;
use crate::transport::{Label, Ticket};

/// Content of a message.
pub(crate) enum MessageContent {
    /// Memory of its sender.
    View(ReadView),
    /// A copy.
    Bytes(Box<[u8]>),
    /// No content: the memory has only a size.
    Size,
    /// No content: its sender has cancelled it, or has died.
    Void,
    /// The end of all messages of its sender.
    End,
    /// Part of the data on a socket.
    Datagram(Datagram),
}

/// A message on its way.
pub(crate) struct SimulatedMessage {
    pub(crate) from: usize,
    pub(crate) label: Label,
    /// Size of the payload.
    pub(crate) bytes: usize,
    pub(crate) content: MessageContent,
    /// Ticket of the send; `None` once its sender has been notified.
    pub(crate) ticket: Option<Ticket>,
}

impl SimulatedMessage {
    /// Drops its whole content.
    pub(crate) fn lose(&mut self) {
        self.content = MessageContent::Void;
        self.ticket = None;
    }

    /// Frees the memory of the sender, and continues with a copy; returns the ticket with which the sender must be
    /// notified.
    pub(crate) fn release(&mut self) -> Option<Ticket> {
        if let MessageContent::View(view) = &self.content {
            self.content = match view.host_bytes() {
                Some(bytes) => MessageContent::Bytes(bytes.into()),
                None => MessageContent::Size,
            };
        }
        self.ticket.take()
    }
}

/// Number of a message among those on their way.
pub(crate) type MessageNumber = u32;

/// Messages in the order in which they were added.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageQueue {
    first: Option<MessageNumber>,
    last: Option<MessageNumber>,
}

impl MessageQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

struct KeptMessage {
    /// `None` for a free number.
    message: Option<SimulatedMessage>,
    /// First time at which it may leave.
    departs: Nanoseconds,
    /// Message after it in its queue.
    next: Option<MessageNumber>,
}

/// Messages on their way.
#[derive(Default)]
pub(crate) struct MessageStore {
    places: Vec<KeptMessage>,
    free: Vec<MessageNumber>,
}

impl MessageStore {
    /// Adds a message that may leave from a time on, as the last of a queue.
    pub(crate) fn add(&mut self, queue: &mut MessageQueue, departs: Nanoseconds, message: SimulatedMessage) {
        let place = KeptMessage { message: Some(message), departs, next: None };
        let number = match self.free.pop() {
            Some(number) => {
                self.places[number as usize] = place;
                number
            }
            None => {
                self.places.push(place);
                (self.places.len() - 1) as MessageNumber
            }
        };
        self.append(queue, number);
    }

    fn append(&mut self, queue: &mut MessageQueue, number: MessageNumber) {
        match queue.last.replace(number) {
            Some(last) => self.places[last as usize].next = Some(number),
            None => queue.first = Some(number),
        }
    }

    fn detach(&mut self, queue: &mut MessageQueue) -> Option<MessageNumber> {
        let number = queue.first?;
        queue.first = self.places[number as usize].next.take();
        if queue.first.is_none() {
            queue.last = None;
        }
        Some(number)
    }

    /// Moves the first message of a queue to the end of another, and returns it.
    pub(crate) fn pass(
        &mut self,
        from: &mut MessageQueue,
        to: &mut MessageQueue,
    ) -> Option<&mut SimulatedMessage> {
        let number = self.detach(from)?;
        self.append(to, number);
        self.places[number as usize].message.as_mut()
    }

    /// Takes the first message of a queue away.
    pub(crate) fn take(&mut self, queue: &mut MessageQueue) -> Option<SimulatedMessage> {
        let number = self.detach(queue)?;
        self.free.push(number);
        self.places[number as usize].message.take()
    }

    /// Returns the earliest departure time of the first message of a queue.
    pub(crate) fn departs(&self, queue: &MessageQueue) -> Option<Nanoseconds> {
        queue.first.map(|number| self.places[number as usize].departs)
    }

    /// Returns the size of the payload of the first message of a queue.
    pub(crate) fn bytes(&self, queue: &MessageQueue) -> Option<usize> {
        let message = self.places[queue.first? as usize].message.as_ref();
        message.map(|message| message.bytes)
    }

    /// Calls `visit` with each message of a queue.
    pub(crate) fn for_each(&mut self, queue: &MessageQueue, mut visit: impl FnMut(&mut SimulatedMessage)) {
        let mut next = queue.first;
        while let Some(number) = next {
            let place = &mut self.places[number as usize];
            place.message.as_mut().into_iter().for_each(&mut visit);
            next = place.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::dtype::DType;
    use crate::transport::fingerprint::{Fingerprint, OperationKind};
    use crate::transport::tag::Tag;

    fn message(bytes: usize) -> SimulatedMessage {
        let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, bytes);
        let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
        SimulatedMessage { from: 0, label, bytes, content: MessageContent::Size, ticket: None }
    }

    #[test]
    fn queues_keep_their_order_while_places_are_used_again() {
        let mut messages = MessageStore::default();
        let mut one = MessageQueue::default();
        let mut other = MessageQueue::default();
        for bytes in 0..3 {
            messages.add(&mut one, 10 * bytes as Nanoseconds, message(bytes));
        }
        assert_eq!(messages.take(&mut one).map(|message| message.bytes), Some(0));
        messages.add(&mut other, 7, message(3));
        assert_eq!((messages.places.len(), messages.departs(&one)), (3, Some(10)));
        assert_eq!(messages.pass(&mut one, &mut other).map(|message| message.bytes), Some(1));
        let mut seen = Vec::new();
        messages.for_each(&other, |message| seen.push(message.bytes));
        assert_eq!((seen, messages.bytes(&one)), (vec![3, 1], Some(2)));
        assert_eq!(messages.take(&mut one).map(|message| message.bytes), Some(2));
        assert!(one.is_empty() && messages.take(&mut one).is_none());
        messages.add(&mut one, 0, message(4));
        assert_eq!(messages.take(&mut one).map(|message| message.bytes), Some(4));
    }
}
