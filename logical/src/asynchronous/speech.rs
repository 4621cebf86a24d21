//! What one rank says to another of a value x that changes: all of it each time, or encoded, with what both remember.
//!
//! | encoding | message | remembered by the sender | by the receiver | the receiver's value |
//! |---|---|---|---|---|
//! | none | x | – | – | the message |
//! | no feedback | c = C(x) | – | – | D(c) |
//! | error | c = C(x + e); e ← x + e − D(c) | e | – | D(c) |
//! | difference | c = C(x − h); h ← h + D(c) | h | h ← h + D(c) | h |
//!
//! D decodes. Each pair of ranks has its own e and h, in each direction.

use super::core::Payload;
use super::spares::{Spares, add, copy_all};
use super::wire::nonsense;
use crate::codec::Codec;
use crate::encoding::{Encoding, Feedback, MessageSender, State};
use crate::{Buffer, DType, Part, Peer, Result};
use std::sync::Arc;

/// What becomes of values on their way: shared by all pairs of ranks.
pub(super) struct Language {
    encoding: Option<Encoding>,
    pub(super) values: Spares,
    messages: Spares,
}

/// What a sender remembers of one receiver.
pub(super) struct Speaker {
    encoding: Option<Encoding>,
    /// For which of the handler's purposes: what two say to each other for different ones is drawn apart.
    verb: u16,
}

impl Speaker {
    /// What is remembered, to be saved; nothing without an encoding.
    pub(super) fn state(&self) -> Option<&State> {
        self.encoding.as_ref().map(Encoding::state)
    }

    pub(super) fn restore(&mut self, state: State) {
        if let Some(encoding) = &mut self.encoding {
            *encoding.state_mut() = state;
        }
    }
}

/// What a receiver remembers of one sender.
#[derive(Default)]
pub(super) struct Listener(pub(super) State);

impl Language {
    /// For values of `len` elements.
    pub(super) fn new(dtype: DType, len: usize, encoding: Option<Encoding>) -> Self {
        let largest = encoding.as_ref().map_or(0, |encoding| encoding.codec().encoded_len(len));
        Language { encoding, values: Spares::of(dtype, len), messages: Spares::of(DType::U8, largest) }
    }

    pub(super) fn speaker(&self, verb: u16) -> Speaker {
        Speaker { encoding: self.encoding.as_ref().map(fresh), verb }
    }

    pub(super) fn encodes(&self) -> bool {
        self.encoding.is_some()
    }

    /// Whether each receiver gets messages of its own.
    pub(super) fn remembers(&self) -> bool {
        self.encoding.as_ref().is_some_and(|encoding| encoding.feedback() != Feedback::None)
    }

    /// Room for any message.
    pub(super) fn room(&self) -> Result<Arc<Buffer>> {
        if self.encoding.is_some() { self.messages.take() } else { self.values.take() }
    }

    /// The message of `rank` to `to` for `value`. Nothing is remembered of a message that cannot be made.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite), where the codec refuses an element.
    pub(super) fn say(
        &self,
        speaker: &mut Speaker,
        rank: &Peer,
        to: usize,
        value: &Buffer,
    ) -> Result<Payload> {
        let Speaker { encoding: Some(encoding), verb } = speaker else {
            return self.values.copy_of(value).map(Payload::whole);
        };
        let message = self.messages.take()?;
        let seed = encoding.draw(&[u64::from(*verb), rank.rank as u64, to as u64]);
        let len = value.len();
        let codec = Arc::clone(encoding.codec());
        let feedback = encoding.feedback();
        if feedback == Feedback::None {
            let len = encode(&*codec, rank, 0, Part::whole(value), &message, seed)?;
            encoding.state_mut().advance();
            return Ok(Payload { buffer: message, len });
        }
        let (name, sign) = if feedback == Feedback::Error { ("error", 1.0) } else { ("difference", -1.0) };
        let (remembered, _) = encoding.state_mut().entry(value, name, DType::F32, len)?;
        let said = self.values.copy_of(value)?;
        add(sign, &remembered, &said)?;
        let bytes = encode(&*codec, rank, 0, Part::whole(&said), &message, seed)?;
        // e ← (x + e) − D(c), or h ← h + D(c).
        if feedback == Feedback::Error {
            copy_all(&said, &remembered)?;
        }
        self.decode(rank, &message, bytes, Some(-sign as f32), &remembered)?;
        encoding.state_mut().advance();
        Ok(Payload { buffer: message, len: bytes })
    }

    /// The value behind the first `bytes` bytes of a message of `from`.
    pub(super) fn hear(
        &self,
        listener: &mut Listener,
        from: &Peer,
        message: &Arc<Buffer>,
        bytes: usize,
    ) -> Result<Arc<Buffer>> {
        let Some(encoding) = &self.encoding else { return plain(from, message, bytes) };
        let value = self.values.take()?;
        if encoding.feedback() != Feedback::Difference {
            self.decode(from, message, bytes, None, &value)?;
            return Ok(value);
        }
        let (remembered, _) = listener.0.entry(&value, "difference", DType::F32, value.len())?;
        self.decode(from, message, bytes, Some(1.0), &remembered)?;
        copy_all(&remembered, &value)?;
        Ok(value)
    }

    /// Encodes a value once and for all, without feedback: the message, and `value ← D(message)`.
    pub(super) fn round(&self, rank: &Peer, to: usize, turn: u64, value: &Arc<Buffer>) -> Result<Payload> {
        let Some(encoding) = &self.encoding else { return Ok(Payload::whole(Arc::clone(value))) };
        let message = self.messages.take()?;
        let seed = encoding.draw(&[rank.rank as u64, to as u64, turn]);
        let len = encode(&**encoding.codec(), rank, 0, Part::whole(value), &message, seed)?;
        self.decode(rank, &message, len, None, value)?;
        Ok(Payload { buffer: message, len })
    }

    /// What [`Language::round`] left at the sender.
    pub(super) fn rounded(&self, from: &Peer, message: &Arc<Buffer>, bytes: usize) -> Result<Arc<Buffer>> {
        if self.encoding.is_none() {
            return plain(from, message, bytes);
        }
        let value = self.values.take()?;
        self.decode(from, message, bytes, None, &value)?;
        Ok(value)
    }

    fn decode(
        &self,
        from: &Peer,
        message: &Buffer,
        bytes: usize,
        weight: Option<f32>,
        to: &Buffer,
    ) -> Result<()> {
        let Some(encoding) = &self.encoding else { return Ok(()) };
        let message = Part::of(message, 0..bytes);
        decode(&**encoding.codec(), from, message, weight, Part::whole(to))
    }
}

/// Another encoding like this one, which remembers nothing.
pub(super) fn fresh(encoding: &Encoding) -> Encoding {
    let codec = Arc::clone(encoding.codec());
    Encoding::new(codec).with_feedback(encoding.feedback()).with_seed(encoding.seed())
}

/// A value that came as it is.
fn plain(from: &Peer, message: &Arc<Buffer>, bytes: usize) -> Result<Arc<Buffer>> {
    let expected = message.len() * message.dtype().size();
    if bytes == expected {
        return Ok(Arc::clone(message));
    }
    Err(nonsense(from, &format!("{bytes} bytes for a value of {expected}")))
}

/// The message of `rank` for some elements, which errors count from `start` on: its size in bytes.
pub(super) fn encode(
    codec: &dyn Codec,
    rank: &Peer,
    start: usize,
    from: Part<'_>,
    to: &Buffer,
    seed: u64,
) -> Result<usize> {
    MessageSender::aside(rank).encode(codec, start, from, Part::whole(to), seed)
}

/// `to ← to + weight × D(message)`, or `to ← D(message)` without a weight, of a message of `from`.
pub(super) fn decode(
    codec: &dyn Codec,
    from: &Peer,
    message: Part<'_>,
    weight: Option<f32>,
    to: Part<'_>,
) -> Result<()> {
    MessageSender::aside(from).decode(codec, message, weight, to)
}
