//! Single messages: the notices that sender and receiver exchange before the receiver's stream takes the message.
//!
//! ```text
//! sender                             receiver
//! announcement: size, number     ->                      under the message's own label, and compared there
//!                                <-  reply: number       once the receive is posted
//! copies it to the outbox
//! notice: number, order, position   ->                      its stream waits for the copy, and takes the message
//! ```
//!
//! So a message is copied only after its receive is posted, and receives may be posted long before and in any order. Before the
//! receiver takes the message, it enqueues all operations that the sender may have enqueued before the message (`order`).

pub(super) mod outbox;

use super::contribution::Contribution;
use super::endpoint::{EndpointState, IpcEndpoint};
use crate::device::Queue;
use crate::device_paths::device_path::control_message;
use crate::device_paths::device_path::control_message::PendingNumbers;
use crate::error::{Error, Result};
use crate::memory::{ReadView, WriteView};
use crate::transport::{Label, ReceiveMode, Received, Source, Ticket};
use outbox::{IncomingMessage, MessageOutbox, Position, take};

/// Kinds of control messages, and the number of integers in each.
const REPLIES: usize = 0;
const REPLY: usize = 1;
const NOTICES: usize = 1;
const NOTICE: usize = 3 + Contribution::NUMBERS;

/// A message that is to be sent.
struct Sending {
    ticket: Ticket,
    label: Label,
    to: usize,
    /// Position of this message among all messages announced to its receiver, from 0.
    number: u64,
    /// `None` once its copy is enqueued.
    view: Option<ReadView>,
    /// Its control messages that have not been sent completely.
    mail: Vec<Ticket>,
    bytes: usize,
}

/// Progress of a receive.
enum ReceiveStage {
    /// Its message was not announced.
    Expecting(PendingNumbers),
    /// The sender of this message has been notified.
    Replied { number: u64 },
    /// The message was taken.
    Enqueued,
}

/// A message that is to be received.
struct Receiving {
    ticket: Ticket,
    label: Label,
    queue: Queue,
    /// `None` once it is taken, or given up.
    to: Option<(WriteView, ReceiveMode)>,
    stage: ReceiveStage,
    mail: Vec<Ticket>,
    got: Received,
}

/// A message that lies ready.
struct AnnouncedMessage {
    /// Number of the message among all that its sender has announced.
    number: u64,
    /// The message is taken after all operations with smaller numbers, which must be enqueued first.
    before: u64,
    from: usize,
    position: Position,
}

/// Messages of one endpoint.
pub(super) struct Messages {
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    /// Expected control messages, with their senders.
    replies: Vec<(usize, PendingNumbers)>,
    notices: Vec<(usize, PendingNumbers)>,
    ready: Vec<AnnouncedMessage>,
    /// Number of messages that were announced so far, by receiver.
    announced: Vec<u64>,
    pub(super) outbox: MessageOutbox,
}

impl Messages {
    /// Creates the messages of one rank, in a world of this size.
    pub(super) fn new(ranks: usize) -> Self {
        Messages {
            sending: Vec::new(),
            receiving: Vec::new(),
            replies: Vec::new(),
            notices: Vec::new(),
            ready: Vec::new(),
            announced: vec![0; ranks],
            outbox: MessageOutbox::new(ranks),
        }
    }

    /// Returns true if nothing is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.sending.is_empty() && self.receiving.is_empty()
    }
}

impl IpcEndpoint {
    /// Announces a message to its receiver.
    pub(super) fn announce(
        &self,
        state: &mut EndpointState,
        ticket: Ticket,
        to: usize,
        label: Label,
        view: ReadView,
    ) -> Result<()> {
        self.reach.queue(&view.queue(), &label)?;
        let messages = &mut state.messages;
        let bytes = view.byte_len();
        let number = messages.announced[to];
        messages.announced[to] += 1;
        let mail = vec![self.tell(to, label, &[bytes as u64, number])?];
        let reply = PendingNumbers::expect(
            &*self.transport,
            Source::Rank(to),
            control_message::label(REPLIES, REPLY)?,
            REPLY,
        )?;
        messages.replies.push((to, reply));
        messages.sending.push(Sending { ticket, label, to, number, view: Some(view), mail, bytes });
        Ok(())
    }

    /// Expects the announcement of a message.
    pub(super) fn await_announcement(
        &self,
        state: &mut EndpointState,
        ticket: Ticket,
        from: Source,
        label: Label,
        (view, land): (WriteView, ReceiveMode),
    ) -> Result<()> {
        let queue = view.queue();
        self.reach.queue(&queue, &label)?;
        let stage = ReceiveStage::Expecting(PendingNumbers::expect(&*self.transport, from, label, 2)?);
        let got = Received { peer: self.reach.rank, bytes: 0 };
        let to = Some((view, land));
        state.messages.receiving.push(Receiving { ticket, label, queue, to, stage, mail: Vec::new(), got });
        Ok(())
    }

    fn tell(&self, to: usize, label: Label, numbers: &[u64]) -> Result<Ticket> {
        control_message::post(&*self.transport, &self.tally, to, label, numbers)
    }

    /// Advances all messages; returns true if any made progress.
    pub(super) fn advance_messages(&self, state: &mut EndpointState) -> bool {
        if state.messages.are_idle() {
            return false;
        }
        let has_answered = self.answer_announcements(state);
        let has_sent = self.read_replies(state);
        let has_heard = self.read_notices(state);
        let has_taken = self.take_ready(state);
        self.finish_messages(state) || has_answered || has_sent || has_heard || has_taken
    }

    /// Replies to announcements that have arrived.
    fn answer_announcements(&self, state: &mut EndpointState) -> bool {
        let EndpointState { tickets, messages, .. } = state;
        let Messages { receiving, notices, .. } = messages;
        let mut has_moved = false;
        receiving.retain_mut(|receiving| match self.answer(notices, receiving) {
            Ok(has_come) => {
                has_moved |= has_come;
                tickets.advance(receiving.ticket, usize::from(has_come));
                true
            }
            Err(error) => {
                has_moved = true;
                tickets.finish(receiving.ticket, Err(error));
                false
            }
        });
        has_moved
    }

    /// Replies to the announcement of a message, once it has arrived.
    fn answer(&self, notices: &mut Vec<(usize, PendingNumbers)>, receiving: &mut Receiving) -> Result<bool> {
        let ReceiveStage::Expecting(announcement) = &receiving.stage else { return Ok(false) };
        let Some((from, [bytes, number])) = announcement.take(&*self.transport)? else { return Ok(false) };
        let Some((view, land)) = &receiving.to else { return Ok(false) };
        let room = view.byte_len();
        let fits = if *land == ReceiveMode::AtMost { bytes <= room as u64 } else { bytes == room as u64 };
        if !fits {
            let peer = self.reach.health.peers()[from].clone();
            return Err(receiving.label.wrong_size(bytes, room, peer));
        }
        receiving.got = Received { peer: from, bytes: bytes as usize };
        receiving.mail.push(self.tell(from, control_message::label(REPLIES, REPLY)?, &[number])?);
        let label = control_message::label(NOTICES, NOTICE)?;
        notices.push((from, PendingNumbers::expect(&*self.transport, Source::Rank(from), label, NOTICE)?));
        receiving.stage = ReceiveStage::Replied { number };
        Ok(true)
    }

    /// Sends the messages whose receivers have replied.
    fn read_replies(&self, state: &mut EndpointState) -> bool {
        let replies = self.read::<REPLY>(state, |messages| &mut messages.replies);
        for (to, [number]) in &replies {
            let is_it = |sending: &Sending| sending.to == *to && sending.number == *number;
            // It may have been given up.
            let Some(at) = state.messages.sending.iter().position(is_it) else { continue };
            if let Err(error) = self.send(state, at) {
                self.fail_messages(state, &error);
            }
        }
        !replies.is_empty()
    }

    /// Makes a message ready, and notifies its receiver.
    fn send(&self, state: &mut EndpointState, at: usize) -> Result<()> {
        let Some(view) = state.messages.sending[at].view.take() else { return Ok(()) };
        let Sending { ticket, label, to, number, bytes, .. } = state.messages.sending[at];
        let queue = view.queue();
        self.follow(state, &queue);
        let position = state.messages.outbox.put(&self.reach, &label, &view, to)?;
        self.note_last(state, &queue);
        self.tally.notified(bytes, bytes);
        state.tickets.advance(ticket, 1);
        // After the copy is enqueued, so that nothing before it is left out.
        let numbers = [number, position.number.into(), self.order.begun()];
        let numbers: Vec<u64> = numbers.into_iter().chain(position.notice.to_numbers()).collect();
        let notice = self.tell(to, control_message::label(NOTICES, NOTICE)?, &numbers)?;
        state.messages.sending[at].mail.push(notice);
        Ok(())
    }

    /// Reads notices of messages that lie ready.
    fn read_notices(&self, state: &mut EndpointState) -> bool {
        let notices = self.read::<NOTICE>(state, |messages| &mut messages.notices);
        for (from, numbers) in &notices {
            let &[number, position, before, ref notice @ ..] = numbers;
            let position = Position { number: position as u32, notice: Contribution::from_numbers(notice) };
            if !self.order.has_come(before) {
                self.order.ring(before, &self.bell);
            }
            state.messages.ready.push(AnnouncedMessage { number, before, from: *from, position });
        }
        !notices.is_empty()
    }

    /// Takes the control messages that have arrived. Messages that wait for a failed rank fail.
    fn read<const N: usize>(
        &self,
        state: &mut EndpointState,
        list: impl Fn(&mut Messages) -> &mut Vec<(usize, PendingNumbers)>,
    ) -> Vec<(usize, [u64; N])> {
        let mut come = Vec::new();
        let mut failed = Vec::new();
        list(&mut state.messages).retain(|(peer, mail)| match mail.take(&*self.transport) {
            Ok(None) => true,
            Ok(Some(mail)) => {
                come.push(mail);
                false
            }
            Err(error) => {
                failed.push((*peer, error));
                false
            }
        });
        failed.into_iter().for_each(|(peer, error)| fail_peer(state, peer, &error));
        come
    }

    /// Takes messages that lie ready, once all is enqueued that their senders may have enqueued before.
    fn take_ready(&self, state: &mut EndpointState) -> bool {
        let mut has_moved = false;
        // Messages of one sender are taken in order: all operations to enqueue before the first message also precede the later
        // ones.
        let is_next = |ready: &AnnouncedMessage| self.order.has_come(ready.before);
        while let Some(at) = state.messages.ready.iter().position(is_next) {
            has_moved = true;
            let ready = state.messages.ready.remove(at);
            let is_it = |receiving: &Receiving| {
                let ReceiveStage::Replied { number } = receiving.stage else { return false };
                receiving.got.peer == ready.from && number == ready.number
            };
            let Some(at) = state.messages.receiving.iter().position(is_it) else { continue };
            if let Err(error) = self.receive(state, at, ready.position) {
                self.fail_messages(state, &error);
            }
        }
        has_moved
    }

    /// Takes a message.
    fn receive(&self, state: &mut EndpointState, at: usize, position: Position) -> Result<()> {
        let Receiving { label, queue, to, stage, got, .. } = &mut state.messages.receiving[at];
        *stage = ReceiveStage::Enqueued;
        let label = *label;
        let to = to.take();
        let queue = queue.clone();
        let message = IncomingMessage { from: got.peer, bytes: got.bytes, position };
        self.follow(state, &queue);
        take(&self.reach, label, &queue, &message, to)?;
        self.note_last(state, &queue);
        Ok(())
    }

    /// Ends messages that are enqueued and whose notices to the other rank are sent.
    fn finish_messages(&self, state: &mut EndpointState) -> bool {
        let EndpointState { tickets, messages, .. } = state;
        let mut has_moved = false;
        let mut is_over = |ticket: Ticket, mail: &mut Vec<Ticket>, is_enqueued: bool, got: Received| {
            let outcome = match self.are_out(mail) {
                Ok(are_out) if !are_out || !is_enqueued => return false,
                outcome => outcome.map(|_| got),
            };
            has_moved = true;
            tickets.finish(ticket, outcome);
            true
        };
        messages.sending.retain_mut(|Sending { ticket, mail, view, to, bytes, .. }| {
            !is_over(*ticket, mail, view.is_none(), Received { peer: *to, bytes: *bytes })
        });
        messages.receiving.retain_mut(|Receiving { ticket, mail, stage, got, .. }| {
            !is_over(*ticket, mail, matches!(stage, ReceiveStage::Enqueued), *got)
        });
        has_moved
    }

    /// Returns true once this control message is sent.
    fn are_out(&self, mail: &mut Vec<Ticket>) -> Result<bool> {
        while let Some(last) = mail.last() {
            if !control_message::is_sent(&*self.transport, *last)? {
                return Ok(false);
            }
            mail.pop();
        }
        Ok(true)
    }

    /// Ends all messages after the failure of one: this rank may wait first for a message whose sender waits for the failed
    /// one.
    fn fail_messages(&self, state: &mut EndpointState, error: &Error) {
        let Messages { sending, receiving, .. } = &state.messages;
        let sent = sending.iter().map(|sending| sending.ticket);
        let tickets: Vec<Ticket> = sent.chain(receiving.iter().map(|receiving| receiving.ticket)).collect();
        for ticket in tickets {
            state.tickets.finish(ticket, Err(error.clone()));
            self.cancel_message(state, ticket);
        }
        // Messages that still arrive no longer have a ticket.
        let void = state.tickets.open();
        state.tickets.close(void);
        state.messages.receiving.iter_mut().for_each(|receiving| receiving.ticket = void);
    }

    /// Abandons a message, if the ticket belongs to one.
    pub(super) fn cancel_message(&self, state: &mut EndpointState, ticket: Ticket) {
        let Messages { sending, receiving, .. } = &mut state.messages;
        if let Some(at) = sending.iter().position(|sending| sending.ticket == ticket) {
            let sending = sending.remove(at);
            sending.mail.iter().for_each(|mail| self.transport.cancel(*mail));
        }
        let Some(at) = receiving.iter().position(|receiving| receiving.ticket == ticket) else { return };
        match &receiving[at].stage {
            // The message still arrives, and its sender needs the memory back.
            ReceiveStage::Replied { .. } => receiving[at].to = None,
            ReceiveStage::Expecting(mail) => {
                mail.cancel(&*self.transport);
                receiving.remove(at);
            }
            ReceiveStage::Enqueued => {
                let receiving = receiving.remove(at);
                receiving.mail.iter().for_each(|mail| self.transport.cancel(*mail));
            }
        }
    }
}

/// Ends all waits for control messages of a failed rank.
fn fail_peer(state: &mut EndpointState, peer: usize, error: &Error) {
    let EndpointState { tickets, messages, .. } = state;
    messages.sending.retain(|sending| {
        let goes_on = sending.to != peer || sending.view.is_none();
        if !goes_on {
            tickets.finish(sending.ticket, Err(error.clone()));
        }
        goes_on
    });
    messages.receiving.retain(|receiving| {
        let waits = matches!(receiving.stage, ReceiveStage::Replied { .. }) && receiving.got.peer == peer;
        if waits {
            tickets.finish(receiving.ticket, Err(error.clone()));
        }
        !waits
    });
}
