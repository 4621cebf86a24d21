//! Control messages: short messages of the host transport, in which ranks agree on the work of their devices. Each path defines
//! the meaning of its control messages.

use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source, Tally, Ticket, Transport};
use std::task::{Context, Poll, Waker};

/// Communicator number of control messages that belong to no operation; no group has this number.
const COMMUNICATOR: u32 = u32::MAX - 1;

/// Returns the label of one kind of control message of `count` integers that belongs to no operation. Such messages between two
/// ranks arrive in the order in which they were sent.
///
/// # Errors
/// [`Error::Usage`] for a kind above 65,535.
pub(crate) fn label(kind: usize, count: usize) -> Result<Label> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::I64, count);
    Ok(Label { tag: Tag::new(COMMUNICATOR, kind, 0, 0)?, fingerprint })
}

/// Sends numbers to a rank, which are no payload in the path's `tally`.
///
/// # Errors
/// [`Error::System`] if memory runs out.
pub(crate) fn post(
    host: &dyn Transport,
    tally: &Tally,
    to: usize,
    label: Label,
    numbers: &[u64],
) -> Result<Ticket> {
    let words: Vec<i64> = numbers.iter().map(|number| *number as i64).collect();
    let ticket = host.post_send(to, label, Buffer::from_slice(&words)?.read_all()?);
    tally.carried_nothing(size_of_val(numbers));
    Ok(ticket)
}

/// Takes the outcome of a posted message, once it is known.
///
/// # Errors
/// Its own.
pub(crate) fn is_sent(host: &dyn Transport, ticket: Ticket) -> Result<bool> {
    match host.poll(ticket, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome.map(|_| true),
        Poll::Pending => Ok(false),
    }
}

/// Numbers that are to come.
pub(crate) struct PendingNumbers {
    ticket: Ticket,
    buffer: Buffer,
}

impl PendingNumbers {
    /// Expects this many numbers from a rank.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub(crate) fn expect(host: &dyn Transport, from: Source, label: Label, count: usize) -> Result<Self> {
        let buffer = Buffer::zeroed(DType::I64, count)?;
        let ticket = host.post_recv(from, label, buffer.write_all()?, ReceiveMode::Copy);
        Ok(PendingNumbers { ticket, buffer })
    }

    /// Takes the sender and the numbers, once they have arrived.
    ///
    /// # Errors
    /// Those of the receive, such as a mismatch.
    pub(crate) fn take<const N: usize>(&self, host: &dyn Transport) -> Result<Option<(usize, [u64; N])>> {
        let Poll::Ready(outcome) = host.poll(self.ticket, &mut Context::from_waker(Waker::noop())) else {
            return Ok(None);
        };
        let from = outcome?.peer;
        let numbers = self.buffer.host::<i64>()?;
        let numbers = <&[i64; N]>::try_from(&*numbers).map_err(|_| {
            Error::usage("a control message of a different length was read", "report this defect of the path")
        })?;
        Ok(Some((from, numbers.map(|number| number as u64))))
    }

    /// Abandons it.
    pub(crate) fn cancel(&self, host: &dyn Transport) {
        host.cancel(self.ticket);
    }
}
