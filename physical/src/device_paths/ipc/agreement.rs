//! The agreement before an operation: every rank learns where the others' contributions are, and which operation comes
//! next on the device.
//!
//! Rank 0 collects the notices of all, gives the operation its number in the order of all operations, and sends the result to
//! all ranks. These are messages of the host transport under the label of the operation, so the transport detects a message
//! with a different label as a mismatch, and a missing message by the deadline.

use super::contribution::{Contribution, NOTICE, ORDER, read_number};
use super::order::{TurnOrder, TurnTicket};
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::{Label, ReceiveMode, Source, Ticket, Transport};
use crate::waiting::doorbell::Bell;
use crate::waiting::drive::waker;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Step of the messages to rank 0, beyond the steps of any operation.
const TO_ROOT: usize = 0xff10;
/// Step of the messages from rank 0.
const FROM_ROOT: usize = 0xff11;

/// Returns the bytes of the messages that a rank sends in one agreement.
pub(super) fn bytes_sent(rank: usize, size: usize) -> usize {
    match rank {
        0 => (size - 1) * (size * NOTICE + ORDER),
        _ => NOTICE,
    }
}

/// Agreement on one operation, as one rank sees it.
pub(super) struct Agreement {
    label: Label,
    /// Notices of all ranks by rank, and the number in the order.
    table: Buffer,
    /// Messages that are to come, and their ranks.
    coming: Vec<(usize, Ticket)>,
    /// Messages that are under way.
    going: Vec<Ticket>,
    /// Number of messages that have arrived.
    come: u64,
    is_known: bool,
}

/// Outcome of an agreement.
pub(super) struct Agreed {
    /// Position of the operation in the order of all operations.
    pub(super) place: TurnTicket,
    /// Notices, by rank.
    pub(super) notices: Vec<Contribution>,
}

impl Agreement {
    /// Begins an agreement with this rank's notice.
    pub(super) fn begin(transport: &dyn Transport, label: Label, mine: &Contribution) -> Result<Self> {
        let size = transport.size();
        let table = Buffer::zeroed(DType::U8, size * NOTICE + ORDER)?;
        let mut agreement =
            Agreement { label, table, coming: Vec::new(), going: Vec::new(), come: 0, is_known: false };
        let Agreement { table, coming, going, .. } = &mut agreement;
        let row = |rank: usize| rank * NOTICE..(rank + 1) * NOTICE;
        let to_root = Label { tag: label.tag.at_step(TO_ROOT)?, ..label };
        let own = transport.rank();
        table.write(row(own))?.bytes_mut().copy_from_slice(&mine.to_bytes());
        if own == 0 {
            for peer in 1..size {
                let view = table.write(row(peer))?;
                coming
                    .push((peer, transport.post_recv(Source::Rank(peer), to_root, view, ReceiveMode::Copy)));
            }
            return Ok(agreement);
        }
        // The answer also contains this rank's row, and so needs memory of its own while the notice is being sent.
        let notice = Buffer::from_slice(&mine.to_bytes())?;
        going.push(transport.post_send(0, to_root, notice.read_all()?));
        let from_root = Label { tag: label.tag.at_step(FROM_ROOT)?, ..label };
        coming.push((
            0,
            transport.post_recv(Source::Rank(0), from_root, table.write_all()?, ReceiveMode::Copy),
        ));
        Ok(agreement)
    }

    /// Advances the agreement. Returns the outcome once it is known, once; the bell rings when the operation's turn comes.
    ///
    /// # Errors
    /// Those of the messages.
    pub(super) fn advance(
        &mut self,
        transport: &dyn Transport,
        order: &Arc<TurnOrder>,
        bell: &Arc<dyn Bell>,
    ) -> Result<Option<Agreed>> {
        let waker = waker();
        let mut context = Context::from_waker(&waker);
        self.going.retain_mut(|ticket| transport.poll(*ticket, &mut context).is_pending());
        let mut failure = None;
        let waiting = self.coming.len();
        self.coming.retain(|(_, ticket)| match transport.poll(*ticket, &mut context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                failure = failure.take().or(outcome.err());
                false
            }
        });
        self.come += (waiting - self.coming.len()) as u64;
        if let Some(error) = failure {
            return Err(error);
        }
        if self.is_known || !self.coming.is_empty() {
            return Ok(None);
        }
        self.is_known = true;
        if transport.rank() == 0 {
            self.answer(transport, order.give())?;
        }
        let (number, notices) = self.read(transport.size())?;
        Ok(Some(Agreed { place: order.place(number, bell), notices }))
    }

    /// Sends the collected notices to all ranks.
    fn answer(&mut self, transport: &dyn Transport, number: u64) -> Result<()> {
        let end = transport.size() * NOTICE;
        self.table.write(end..end + ORDER)?.bytes_mut().copy_from_slice(&number.to_le_bytes());
        let label = Label { tag: self.label.tag.at_step(FROM_ROOT)?, ..self.label };
        for peer in 1..transport.size() {
            self.going.push(transport.post_send(peer, label, self.table.read_all()?));
        }
        Ok(())
    }

    /// Returns the number in the order, and the notices.
    fn read(&self, size: usize) -> Result<(u64, Vec<Contribution>)> {
        let table = self.table.read_all()?;
        let (rows, order) = table.bytes().split_at(size * NOTICE);
        let notices = rows.as_chunks().0.iter().map(Contribution::from_bytes).collect();
        Ok((read_number(order), notices))
    }

    /// Returns true once all messages of this rank are on their way.
    pub(super) fn is_over(&self) -> bool {
        self.is_known && self.going.is_empty()
    }

    /// Returns the ranks whose messages are missing.
    pub(super) fn missing(&self) -> Vec<usize> {
        self.coming.iter().map(|(rank, _)| *rank).collect()
    }

    /// Returns the number of messages that have arrived.
    pub(super) fn come(&self) -> u64 {
        self.come
    }

    /// Abandons the agreement.
    pub(super) fn cancel(self, transport: &dyn Transport) {
        let coming = self.coming.into_iter().map(|(_, ticket)| ticket);
        coming.chain(self.going).for_each(|ticket| transport.cancel(ticket));
    }
}
