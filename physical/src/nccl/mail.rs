//! Mail: short messages of the host's transport, in which ranks agree on what NCCL is to do. Open this to see what they
//! say.
//!
//! | message | label | numbers |
//! |---|---|---|
//! | announcement | the message's own | its size in bytes, its number among those from its sender to its receiver |
//! | reply | of all mail | 0, that number, the time that the receiver proposes |
//! | decision | of all mail | 1, that number, the time |
//! | arrival | the collective's, at a step of its own | none |
//! | proposal | the collective's, at a step of its own | the latest time that its sender knows |

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::Buffer;
use crate::tag::Tag;
use crate::transport::{Label, Land, Source, Ticket, Transport};
use std::task::{Context, Poll, Waker};

/// Number of the communicator of replies and decisions, which no group has.
const COMMUNICATOR: u32 = u32::MAX - 1;

/// Numbers of a reply or a decision.
pub(super) const CONTROL: usize = 3;

/// Returns the label of replies and decisions: those of a pair come in the order in which they were sent.
pub(super) fn control_label() -> Result<Label> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::I64, CONTROL);
    Ok(Label { tag: Tag::new(COMMUNICATOR, 0, 0, 0)?, fingerprint })
}

/// Sends numbers to a rank.
///
/// # Errors
/// [`Error::System`] if memory runs out.
pub(super) fn post(host: &dyn Transport, to: usize, label: Label, numbers: &[u64]) -> Result<Ticket> {
    let numbers: Vec<i64> = numbers.iter().map(|number| *number as i64).collect();
    Ok(host.post_send(to, label, Buffer::from_slice(&numbers)?.read_all()?))
}

/// Takes the outcome of something posted, if there is one.
///
/// # Errors
/// Its own.
pub(super) fn is_sent(host: &dyn Transport, ticket: Ticket) -> Result<bool> {
    match host.poll(ticket, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome.map(|_| true),
        Poll::Pending => Ok(false),
    }
}

/// Numbers that are to come.
pub(super) struct Mail {
    ticket: Ticket,
    buffer: Buffer,
}

impl Mail {
    /// Expects so many numbers from a rank.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub(super) fn expect(host: &dyn Transport, from: Source, label: Label, count: usize) -> Result<Self> {
        let buffer = Buffer::zeroed(DType::I64, count)?;
        let ticket = host.post_recv(from, label, buffer.write_all()?, Land::Copy);
        Ok(Mail { ticket, buffer })
    }

    /// Takes the sender and the numbers, once they have come.
    ///
    /// # Errors
    /// Those of the receive, such as a mismatch.
    pub(super) fn take<const N: usize>(&self, host: &dyn Transport) -> Result<Option<(usize, [u64; N])>> {
        let Poll::Ready(outcome) = host.poll(self.ticket, &mut Context::from_waker(Waker::noop())) else {
            return Ok(None);
        };
        let from = outcome?.peer;
        let numbers = self.buffer.host::<i64>()?;
        let numbers = <&[i64; N]>::try_from(&*numbers)
            .map_err(|_| Error::usage("mail of another length was read", "report this defect of the path"))?;
        Ok(Some((from, numbers.map(|number| number as u64))))
    }

    /// Gives it up.
    pub(super) fn cancel(&self, host: &dyn Transport) {
        host.cancel(self.ticket);
    }
}
