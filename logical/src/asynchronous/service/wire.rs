//! Requests and replies on the wire. The grammar of the protocol is in [`super::dispatcher`].

use crate::{Error, Peer, Result};
use hexagram_physical::error::ErrorContext;
use hexagram_physical::fingerprint::{FINGERPRINT_BYTES, Fingerprint};

/// Bytes of a request, before a payload.
pub const REQUEST_BYTES: usize = 48 + FINGERPRINT_BYTES + 8;
/// Bytes of a reply, before a payload.
pub const REPLY_BYTES: usize = 24;
/// Longest payload that is part of its request or reply, instead of a separate message.
pub const INLINE_BYTES: usize = 1024;
/// Number of simultaneous requests of one rank to another; further ones wait for a slot.
pub(super) const SLOTS: u16 = 16;
/// In place of a handler: the sender will make no more requests.
pub(super) const LEAVE: u32 = u32::MAX;

/// Request of a rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// Number of the handler in the service.
    pub(crate) handler: u32,
    /// Number of the operation; each handler has its own.
    pub(crate) verb: u16,
    pub(crate) slot: u16,
    /// Counts the requests between two ranks.
    pub(crate) number: u64,
    /// Fingerprint of the handler at the sender.
    pub(crate) fingerprint: Fingerprint,
    /// Size of the payload.
    pub(crate) bytes: u64,
    /// Size of the largest payload of the reply.
    pub(crate) room: u64,
    /// Arguments, defined by the verb.
    pub(crate) arguments: [u64; 3],
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Request {
    /// Encodes the request, with `payload` if it is inline.
    pub(super) fn to_bytes(self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REQUEST_BYTES + payload.len());
        bytes.extend_from_slice(&self.handler.to_le_bytes());
        bytes.extend_from_slice(&self.verb.to_le_bytes());
        bytes.extend_from_slice(&self.slot.to_le_bytes());
        let [first, second, third] = self.arguments;
        for word in [self.number, self.bytes, self.room, first, second, third] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.fingerprint.to_bytes());
        if self.rides() {
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    /// Parses a request and its inline payload; `None` if `message` is malformed.
    pub(super) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, payload) = message.split_at_checked(REQUEST_BYTES)?;
        let fingerprint = head[REQUEST_BYTES - FINGERPRINT_BYTES..].try_into().ok()?;
        let request = Request {
            handler: u32::from_le_bytes(head[0..4].try_into().ok()?),
            verb: u16::from_le_bytes([head[4], head[5]]),
            slot: u16::from_le_bytes([head[6], head[7]]),
            number: word(head, 8)?,
            bytes: word(head, 16)?,
            room: word(head, 24)?,
            arguments: [word(head, 32)?, word(head, 40)?, word(head, 48)?],
            fingerprint: Fingerprint::from_bytes(fingerprint)?,
        };
        let expected = if request.rides() { request.bytes } else { 0 };
        (request.slot < SLOTS && payload.len() as u64 == expected).then_some((request, payload))
    }

    /// Fails if the fingerprint of the handler at the sender, `peer`, is not `mine`.
    pub(crate) fn expect(&self, mine: &Fingerprint, peer: &Peer) -> Result<()> {
        if self.fingerprint == *mine {
            return Ok(());
        }
        let peer = peer.clone();
        let theirs = self.fingerprint;
        Err(Error::Mismatch { sequence: self.number, mine: *mine, theirs: Box::new(theirs), peer })
    }

    /// Returns the error for an unknown verb.
    pub(crate) fn unknown(&self, peer: &Peer) -> Error {
        let cause = format!("sent {} an unknown request (verb {})", self.fingerprint, self.verb);
        Error::PeerFailed { culprit: peer.clone(), cause, context: ErrorContext::Nothing }
    }

    /// Returns true if the payload is part of the request.
    pub(super) fn rides(&self) -> bool {
        self.bytes <= INLINE_BYTES as u64
    }

    /// Returns true if the payload of the reply will be part of the reply.
    pub(super) fn reply_rides(&self) -> bool {
        self.room <= INLINE_BYTES as u64
    }
}

/// Returns the error for a rank that violates the protocol by sending `sent`.
pub(crate) fn violation(peer: &Peer, sent: &str) -> Error {
    Error::PeerFailed { culprit: peer.clone(), cause: format!("sent {sent}"), context: ErrorContext::Nothing }
}

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(crate) arguments: [u64; 2],
    /// Size of the payload.
    pub(crate) bytes: u64,
}

impl Head {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let [first, second] = self.arguments;
        [first, second, self.bytes].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Parses the head of `message`, and its inline payload.
    pub(super) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, payload) = message.split_at_checked(REPLY_BYTES)?;
        let arguments = [word(head, 0)?, word(head, 8)?];
        Some((Head { arguments, bytes: word(head, 16)? }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use hexagram_physical::fingerprint::OperationKind;
    use proptest::prelude::*;

    fn request(bytes: u64) -> Request {
        let fingerprint = Fingerprint::new(OperationKind::Window, DType::F32, 77);
        let arguments = [1, u64::MAX, 3];
        Request { handler: 5, verb: 2, slot: 15, number: 1 << 40, fingerprint, bytes, room: 9, arguments }
    }

    #[test]
    fn requests_and_replies_round_trip() {
        let short = request(4);
        assert_eq!(Request::parse(&short.to_bytes(&[1, 2, 3, 4])), Some((short, &[1, 2, 3, 4][..])));
        let long = request(1 << 40);
        assert_eq!(long.to_bytes(&[]).len(), REQUEST_BYTES);
        assert_eq!(Request::parse(&long.to_bytes(&[])), Some((long, &[][..])));
        let head = Head { arguments: [7, 8], bytes: 2 };
        let mut bytes = head.to_bytes();
        assert_eq!(bytes.len(), REPLY_BYTES);
        bytes.extend([5, 6]);
        assert_eq!(Head::parse(&bytes), Some((head, &[5, 6][..])));
    }

    #[test]
    fn what_says_another_size_than_it_has_is_refused() {
        let bytes = request(4).to_bytes(&[1, 2, 3, 4]);
        assert_eq!(Request::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Request::parse(&bytes[..REQUEST_BYTES - 1]), None);
        let slot = Request { slot: SLOTS, ..request(0) };
        assert_eq!(Request::parse(&slot.to_bytes(&[])), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            if let Some((request, payload)) = Request::parse(&bytes) {
                prop_assert_eq!(request.to_bytes(payload).len(), bytes.len());
            } else {
                let _ = Head::parse(&bytes);
            }
        }

        #[test]
        fn a_damaged_request_is_another_request_or_none(at in 0..REQUEST_BYTES, byte: u8) {
            let mut bytes = request(0).to_bytes(&[]);
            bytes[at] = byte;
            if let Some((request, payload)) = Request::parse(&bytes) {
                prop_assert_eq!(request.to_bytes(payload).len(), bytes.len());
            }
        }
    }
}
