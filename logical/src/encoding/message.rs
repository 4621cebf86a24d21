//! Encoding and decoding of messages for every primitive; adds the rank to codec errors.

use crate::Part;
use hexagram_physical::codec::{Codec, CodecError};
use hexagram_physical::error::ErrorContext;
use hexagram_physical::operation::OperationContext;
use hexagram_physical::{Error, Peer, Result};

/// Rank that encodes a message, for errors.
#[derive(Clone, Copy)]
pub(crate) struct MessageSender<'a> {
    pub(crate) rank: &'a Peer,
    pub(crate) context: ErrorContext,
    /// Operation that the message belongs to. An error ends it on all ranks immediately. Otherwise the other ranks would be
    /// notified only that unfinished operations were dropped.
    pub(crate) ends: Option<OperationContext<'a>>,
}

impl<'a> MessageSender<'a> {
    /// Creates the sender of messages that belong to no operation.
    pub(crate) fn aside(rank: &'a Peer) -> Self {
        MessageSender { rank, context: ErrorContext::Nothing, ends: None }
    }

    /// Encodes the message for `from` to the beginning of `to`; returns its size in bytes. Errors count elements from
    /// `start`.
    ///
    /// # Errors
    /// [`Error::NotFinite`] with this rank and the index of an element that the codec refuses. A device detects it
    /// late: within an operation, the next wait for its queue returns the error, at the latest the send of the
    /// message.
    pub(crate) fn encode(
        &self,
        codec: &dyn Codec,
        start: usize,
        from: Part<'_>,
        to: Part<'_>,
        seed: u64,
    ) -> Result<usize> {
        let elements = from.read()?;
        let mut message = to.write()?;
        let encoded = message.encode(codec, &elements, seed).map_err(|error| self.end(error))?;
        // Outside an operation, the device is checked immediately, and the memory of an invalid message is unchanged.
        let found_late = match &self.ends {
            None => to.buffer.queue().refusal()?.map(|refusal| counted_from(from.range.start, refusal)),
            Some(_) => None,
        };
        let encoded = found_late.map_or(encoded, Err);
        encoded.map_err(|refusal| self.refused(&codec.name(), start, refusal))
    }

    /// Decodes a message of this rank: `to ← to + weight × decode(message)`, or `to ← decode(message)` without a
    /// weight.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] with this rank, if the message is damaged.
    pub(crate) fn decode(
        &self,
        codec: &dyn Codec,
        message: Part<'_>,
        weight: Option<f32>,
        to: Part<'_>,
    ) -> Result<()> {
        let mut elements = to.write()?;
        let decoded = elements.decode(codec, &message.read()?, weight).map_err(|error| self.end(error))?;
        decoded.map_err(|refusal| self.damaged(&codec.name(), &refusal))
    }

    /// Returns the error for elements, counted from `start`, that a codec of this name refuses.
    pub(crate) fn refused(&self, codec: &str, start: usize, refusal: CodecError) -> Error {
        self.end(match refusal {
            CodecError::NotFinite { index, value } => Error::NotFinite {
                place: self.rank.clone(),
                tensor: None,
                index: start + index,
                value,
                context: self.context,
            },
            CodecError::Damaged { what } => {
                Error::usage(format!("{codec} cannot encode: {what}"), "correct the codec")
            }
        })
    }

    /// Returns the error for a message of this rank that the codec of this name cannot decode.
    pub(crate) fn damaged(&self, codec: &str, refusal: &CodecError) -> Error {
        let cause = format!("sent a message that {codec} cannot decode ({refusal})");
        self.end(Error::PeerFailed { culprit: self.rank.clone(), cause, context: self.context })
    }

    /// Ends the operation on all ranks with this error, before its messages are dropped.
    pub(crate) fn end(&self, error: Error) -> Error {
        if let Some(terms) = &self.ends {
            terms.poison.spread(terms.transport.health(), &error);
        }
        error
    }
}

/// Returns the refusal of a device, with its element counted from element `start` of the memory.
fn counted_from(start: usize, refusal: CodecError) -> CodecError {
    match refusal {
        CodecError::NotFinite { index, value } => {
            CodecError::NotFinite { index: index.saturating_sub(start), value }
        }
        refusal => refusal,
    }
}
