//! Eager messages: the small MPI messages that carry headers, small payloads and announcements of large ones.

use super::link::{MpiComm, RequestSet};
use crate::backends::stream::frame::Header;
use crate::error::Result;
use crate::transport::tickets::Tickets;
use crate::transport::{HEADER_BYTES, Received, Ticket};
use std::ffi::c_int;

/// Bytes of the longest eager message, which common MPIs send without a handshake with the receiver.
pub(super) const EAGER_BYTES: usize = 4000;
/// Longest payload that an eager message carries.
pub(super) const INLINE: usize = EAGER_BYTES - HEADER_BYTES;
/// Number of eager messages that can arrive between two polls without being buffered by MPI.
pub(super) const EAGER_RECEIVES: usize = 8;
/// MPI tag of eager messages.
pub(super) const EAGER_TAG: c_int = 0;

/// Payload of an eager message, or its place.
pub(super) enum EagerPayload {
    /// The payload itself.
    Inline(Vec<u8>),
    /// A payload that waits at its sender, under this tag.
    Announced(c_int),
}

/// Eager message that has not left yet, and the send that it completes.
pub(super) struct EagerSend {
    pub(super) send: Option<(Ticket, Received)>,
    pub(super) requests: RequestSet<Box<[u8]>>,
}

/// Decodes an eager message. Returns `None` if it is invalid.
pub(super) fn parse(message: &[u8], largest_tag: c_int) -> Option<(Header, EagerPayload)> {
    let (header, rest) = message.split_first_chunk()?;
    let header = Header::from_bytes(header)?;
    let message = if header.length > INLINE as u64 {
        let tag = c_int::from_le_bytes(rest.try_into().ok()?);
        EagerPayload::Announced((EAGER_TAG + 1..=largest_tag).contains(&tag).then_some(tag)?)
    } else {
        EagerPayload::Inline((rest.len() as u64 == header.length).then(|| rest.to_vec())?)
    };
    Some((header, message))
}

/// Starts receiving the next eager message.
pub(super) fn post_eager_receive(
    comm: MpiComm,
    mut receive: RequestSet<Box<[u8]>>,
) -> Result<RequestSet<Box<[u8]>>> {
    // SAFETY: the request set owns the bytes, and no code reads them before the request is done.
    unsafe {
        comm.receive(None, EAGER_TAG, &mut receive, |bytes| (bytes.as_mut_ptr(), bytes.len()))?;
    }
    Ok(receive)
}

/// Completes eager messages that have left. Returns true if there were any.
pub(super) fn progress_sends(eager_sends: &mut Vec<EagerSend>, tickets: &mut Tickets) -> bool {
    let before = eager_sends.len();
    eager_sends.retain_mut(|message| {
        let done = message.requests.settle();
        if let (true, Some((ticket, got))) = (done, message.send) {
            tickets.finish(ticket, Ok(got));
        }
        !done
    });
    eager_sends.len() < before
}
