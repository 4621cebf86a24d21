//! The types of one message: its identity, its sender, the place of its bytes, and its outcome.

use super::fingerprint::Fingerprint;
use super::tag::Tag;
use crate::error::{Error, Peer};
use crate::memory::dtype::ReduceOp;

/// Identity of a message, and its operation at the sender or receiver.
///
/// Between two ranks, all messages of one operation carry the same fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Identity of the message.
    pub tag: Tag,
    /// Properties of the operation on which both sides must agree.
    pub fingerprint: Fingerprint,
}

impl Label {
    /// Returns the label of the operation as a whole, at step 0.
    pub(crate) fn whole(&self) -> Label {
        Label { tag: self.tag.operation(), ..*self }
    }

    /// Returns the error of a rank that meets `theirs` under its own label.
    pub(crate) fn mismatch(&self, theirs: Fingerprint, peer: Peer) -> Error {
        Error::Mismatch {
            sequence: self.tag.sequence(),
            mine: self.fingerprint,
            theirs: Box::new(theirs),
            peer,
        }
    }

    /// Returns the error of a rank that gets `got` bytes where it expected a different number, although both call the
    /// same operation.
    pub(crate) fn wrong_size(&self, got: u64, expected: usize, peer: Peer) -> Error {
        let of = |bytes: u64| {
            let count = bytes / self.fingerprint.dtype.size() as u64;
            Fingerprint { count, ..self.fingerprint }
        };
        Label { fingerprint: of(expected as u64), ..*self }.mismatch(of(got), peer)
    }
}

/// Sender from which a receive accepts a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Only this rank.
    Rank(usize),
    /// The rank that first sends the tag.
    Any,
}

impl Source {
    pub(crate) fn accepts(self, from: usize) -> bool {
        self == Source::Any || self == Source::Rank(from)
    }
}

/// Treatment of received bytes: stored, or combined with the existing ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveMode {
    /// `view ← message`.
    Copy,
    /// `view ← view ∘ message`, element by element.
    Reduce(ReduceOp),
    /// The first bytes of `view ← message`, which may be shorter than the view; [`Received`] has its size. For messages
    /// whose size only their sender knows.
    AtMost,
}

/// Outcome of a finished operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The other rank.
    pub peer: usize,
    /// Payload, in bytes.
    pub bytes: usize,
}
