//! Links that transfer a changing value x from one rank to another: the whole value each time, or encoded with
//! feedback that both ranks remember.
//!
//! | encoding | message | remembered by the sender | by the receiver | the receiver's value |
//! |---|---|---|---|---|
//! | none | x | – | – | the message |
//! | no feedback | c = C(x) | – | – | D(c) |
//! | error | c = C(x + e); e ← x + e − D(c) | e | – | D(c) |
//! | difference | c = C(x − h); h ← h + D(c) | h | h ← h + D(c) | h |
//!
//! D decodes. Each pair of ranks has its own e and h, in each direction.

use super::pool::BufferPool;
use super::service::{ElementsPayload, violation};
use crate::encoding::{Coding, Encoding, Feedback, FeedbackLink, LinkNames, MessageSender, State};
use crate::{Buffer, DType, Part, Peer, Result};
use std::sync::Arc;

/// Names under which the memory of a link is saved.
const NAMES: LinkNames = LinkNames { error: "error", difference: "difference" };

/// Encoding of values of one length, between any two ranks.
pub(super) struct ValueEncoding {
    encoding: Option<Encoding>,
    pub(super) values: BufferPool,
    messages: BufferPool,
}

/// Memory of a sender for one receiver.
pub(super) struct SendLink {
    encoding: Option<Encoding>,
    /// The verb of the handler: messages of different verbs use different random draws.
    verb: u16,
}

impl SendLink {
    /// Returns the memory, for saving; `None` without an encoding.
    pub(super) fn state(&self) -> Option<&State> {
        self.encoding.as_ref().map(Encoding::state)
    }

    pub(super) fn restore(&mut self, state: State) {
        if let Some(encoding) = &mut self.encoding {
            *encoding.state_mut() = state;
        }
    }
}

/// Memory of a receiver for one sender.
#[derive(Default)]
pub(super) struct ReceiveLink(pub(super) State);

impl ValueEncoding {
    /// Creates the encoding of values like `value`, with buffers on the same device.
    pub(super) fn new(value: &Buffer, encoding: Option<Encoding>) -> Result<Self> {
        let len = value.len();
        let largest = encoding.as_ref().map_or(0, |encoding| encoding.codec().encoded_len(len));
        let values = BufferPool::same_device(value, value.dtype(), len)?;
        let messages = BufferPool::same_device(value, DType::U8, largest)?;
        Ok(ValueEncoding { encoding, values, messages })
    }

    /// Creates a link to a receiver, with empty memory.
    pub(super) fn send_link(&self, verb: u16) -> SendLink {
        SendLink { encoding: self.encoding.as_ref().map(fresh), verb }
    }

    /// Returns true if values are encoded.
    pub(super) fn encodes(&self) -> bool {
        self.encoding.is_some()
    }

    /// Returns true if each receiver needs a separate message, because of the feedback.
    pub(super) fn remembers(&self) -> bool {
        self.encoding.as_ref().is_some_and(|encoding| encoding.feedback() != Feedback::None)
    }

    /// Returns a buffer with room for any message.
    pub(super) fn room(&self) -> Result<Arc<Buffer>> {
        if self.encoding.is_some() { self.messages.take() } else { self.values.take() }
    }

    /// Encodes the message of `rank` to `to` for `value`. A failure leaves the memory unchanged.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) if the codec refuses an element.
    pub(super) fn encode(
        &self,
        link: &mut SendLink,
        rank: &Peer,
        to: usize,
        value: &Buffer,
    ) -> Result<ElementsPayload> {
        let SendLink { encoding: Some(encoding), verb } = link else {
            return self.values.copy_of(value).map(ElementsPayload::whole);
        };
        let message = self.messages.take()?;
        let whole = || 0..value.len();
        let seed = encoding.draw(&[u64::from(*verb), rank.rank as u64, to as u64]);
        let codec = Arc::clone(encoding.codec());
        let coding = Coding { codec: &*codec, seed, sender: MessageSender::aside(rank), start: 0 };
        let memory = FeedbackLink::of(encoding, NAMES, value, value.len())?;
        let sum = match memory {
            FeedbackLink::Direct => None,
            _ => Some(self.values.take()?),
        };
        let sum = match &sum {
            None => Part::whole(value),
            Some(sum) => {
                memory.compensate_into(whole(), &Part::whole(value), &Part::whole(sum))?;
                Part::whole(sum)
            }
        };
        let len = memory.encode(coding, whole(), sum, Part::whole(&message))?;
        encoding.state_mut().advance();
        Ok(ElementsPayload { buffer: message, len })
    }

    /// Returns the value of the first `bytes` bytes of a message of `from`.
    pub(super) fn decode(
        &self,
        link: &mut ReceiveLink,
        from: &Peer,
        message: &Arc<Buffer>,
        bytes: usize,
    ) -> Result<Arc<Buffer>> {
        let Some(encoding) = &self.encoding else { return unencoded(from, message, bytes) };
        let value = self.values.take()?;
        if encoding.feedback() != Feedback::Difference {
            self.decode_into(from, message, bytes, None, &value)?;
            return Ok(value);
        }
        let (remembered, _) = link.0.entry(&value, NAMES.difference, DType::F32, value.len())?;
        self.decode_into(from, message, bytes, Some(1.0), &remembered)?;
        value.write_all()?.copy_from(&remembered.read_all()?)?;
        Ok(value)
    }

    /// Encodes a value without feedback, and replaces it by the decoded message: `value ← D(message)`.
    pub(super) fn encode_rounded(
        &self,
        rank: &Peer,
        to: usize,
        turn: u64,
        value: &Arc<Buffer>,
    ) -> Result<ElementsPayload> {
        let Some(encoding) = &self.encoding else { return Ok(ElementsPayload::whole(Arc::clone(value))) };
        let message = self.messages.take()?;
        let seed = encoding.draw(&[rank.rank as u64, to as u64, turn]);
        let sender = MessageSender::aside(rank);
        let len = sender.encode(&**encoding.codec(), 0, Part::whole(value), Part::whole(&message), seed)?;
        self.decode_into(rank, &message, len, None, value)?;
        Ok(ElementsPayload { buffer: message, len })
    }

    /// Returns the value that [`ValueEncoding::encode_rounded`] left at the sender.
    pub(super) fn decode_rounded(
        &self,
        from: &Peer,
        message: &Arc<Buffer>,
        bytes: usize,
    ) -> Result<Arc<Buffer>> {
        if self.encoding.is_none() {
            return unencoded(from, message, bytes);
        }
        let value = self.values.take()?;
        self.decode_into(from, message, bytes, None, &value)?;
        Ok(value)
    }

    fn decode_into(
        &self,
        from: &Peer,
        message: &Buffer,
        bytes: usize,
        weight: Option<f32>,
        to: &Buffer,
    ) -> Result<()> {
        let Some(encoding) = &self.encoding else { return Ok(()) };
        let message = Part::of(message, 0..bytes);
        MessageSender::aside(from).decode(&**encoding.codec(), message, weight, Part::whole(to))
    }
}

/// Returns a copy of this encoding with empty memory.
pub(super) fn fresh(encoding: &Encoding) -> Encoding {
    let codec = Arc::clone(encoding.codec());
    Encoding::new(codec).with_feedback(encoding.feedback()).with_seed(encoding.seed())
}

/// Returns an unencoded value.
fn unencoded(from: &Peer, message: &Arc<Buffer>, bytes: usize) -> Result<Arc<Buffer>> {
    let expected = message.len() * message.dtype().size();
    if bytes == expected {
        return Ok(Arc::clone(message));
    }
    Err(violation(from, &format!("{bytes} bytes for a value of {expected}")))
}
