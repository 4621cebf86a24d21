//! One operation under way: what an author of a primitive sends and receives with.
//!
//! A [`Call`] carries the operation's identity, so that the primitive names only peer, step and elements:
//!
//! ```text
//! comm.operate(fingerprint, async |call| {
//!     for step in 0..rounds {
//!         let send = call.send(next, step, &buffer, chunk)?;             // posted here, both of them,
//!         call.recv(previous, step, &buffer, other, Land::Copy)?.await?; // before the first await
//!         send.await?;
//!     }
//!     Ok(())
//! })
//! .await
//! ```

use crate::encoding::MessageSender;
use crate::group::Group;
use hexagram_physical::codec::Codec;
use hexagram_physical::error::During;
use hexagram_physical::memory::{ReadView, WriteView};
use hexagram_physical::operation::{Operation, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::{Label, Land, Source};
use hexagram_physical::{Buffer, Peer, Result};
use std::ops::Range;

/// Range of elements of a buffer.
#[derive(Clone)]
pub struct Part<'a> {
    /// Buffer that the elements are of.
    pub buffer: &'a Buffer,
    /// Place of the elements in the buffer.
    pub range: Range<usize>,
}

impl<'a> Part<'a> {
    /// Returns all elements of a buffer.
    pub fn whole(buffer: &'a Buffer) -> Self {
        Part { buffer, range: 0..buffer.len() }
    }

    /// Returns a range of a buffer's elements.
    pub fn of(buffer: &'a Buffer, range: Range<usize>) -> Self {
        Part { buffer, range }
    }

    /// Returns the first `len` of these elements.
    pub(crate) fn first(&self, len: usize) -> Self {
        Part { buffer: self.buffer, range: self.range.start..self.range.start + len }
    }

    pub(crate) fn read(&self) -> Result<ReadView> {
        self.buffer.read(self.range.clone())
    }

    pub(crate) fn write(&self) -> Result<WriteView> {
        self.buffer.write(self.range.clone())
    }
}

/// Operation of a communicator under way.
pub struct Call<'a> {
    terms: Terms<'a>,
    group: &'a Group,
    label: Label,
}

impl<'a> Call<'a> {
    pub(crate) fn new(terms: Terms<'a>, group: &'a Group, label: Label) -> Self {
        Call { terms, group, label }
    }

    /// Returns the same operation for a message of `count` elements, a number that only its two ranks agree on.
    pub fn counting(&self, count: usize) -> Self {
        let mut label = self.label;
        label.fingerprint.count = count as u64;
        Call { label, ..*self }
    }

    fn at(&self, step: usize) -> Result<Label> {
        let tag: Tag = self.label.tag.at_step(step)?;
        Ok(Label { tag, ..self.label })
    }

    /// Starts sending `elements` of `buffer`; they must not be written until the operation is done.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) if they are being written, [`Error::Usage`](crate::Error::Usage) if they lie
    /// outside the buffer or the step does not fit a tag.
    pub fn send(
        &self,
        to: usize,
        step: usize,
        buffer: &Buffer,
        elements: Range<usize>,
    ) -> Result<Operation<'a>> {
        let to = self.in_world(to)?;
        let label = self.at(step)?;
        let view = buffer.read(elements)?;
        let ticket = self.terms.transport.post_send(to, label, view);
        Ok(Operation::new(self.terms, ticket, Source::Rank(to), label))
    }

    /// Starts receiving into `elements` of `buffer`, stored or reduced as `land` says.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub fn recv(
        &self,
        from: usize,
        step: usize,
        buffer: &Buffer,
        elements: Range<usize>,
        land: Land,
    ) -> Result<Operation<'a>> {
        let source = Source::Rank(self.in_world(from)?);
        let label = self.at(step)?;
        let view = buffer.write(elements)?;
        let ticket = self.terms.transport.post_recv(source, label, view, land);
        Ok(Operation::new(self.terms, ticket, source, label))
    }

    /// Writes the message for `from` to the beginning of `to`, a buffer of bytes, and returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) with this rank and the element's index in its buffer, where the codec refuses it; as
    /// [`WriteView::encode`].
    pub fn encode(&self, codec: &dyn Codec, from: Part<'_>, to: Part<'_>, seed: u64) -> Result<usize> {
        let start = from.range.start;
        self.own().encode(codec, start, from, to, seed)
    }

    /// Returns this rank as the sender of messages of this operation.
    pub(crate) fn own(&self) -> MessageSender<'_> {
        self.sender(self.group.rank())
    }

    /// Returns a rank of the group as the sender of messages of this operation.
    pub(crate) fn sender(&self, rank: usize) -> MessageSender<'_> {
        let during = During::Operation(self.label.fingerprint, self.label.tag);
        MessageSender { rank: self.peer(rank), during, ends: Some(self.terms) }
    }

    /// Decodes a message: `to ← to + weight × decode(from)`, or `to ← decode(from)` without a weight; `from` is a
    /// message that rank `sender` encoded.
    ///
    /// # Errors
    /// [`Error::PeerFailed`](crate::Error::PeerFailed) with the sender, if it is no message of the codec; as
    /// [`WriteView::decode`].
    pub fn decode(
        &self,
        codec: &dyn Codec,
        sender: usize,
        from: Part<'_>,
        weight: Option<f32>,
        to: Part<'_>,
    ) -> Result<()> {
        self.sender(sender).decode(codec, from, weight, to)
    }

    /// Moves bytes that can be moved now. Call it between two pieces of work, to keep the wire busy meanwhile.
    pub fn progress(&self) {
        self.terms.transport.progress();
    }

    fn peer(&self, rank: usize) -> &Peer {
        &self.terms.transport.health().peers()[self.group.members()[rank]]
    }

    fn in_world(&self, rank: usize) -> Result<usize> {
        self.group.check(rank)?;
        Ok(self.group.members()[rank])
    }

    /// Lets the backend carry out the whole operation, if it offers to: see
    /// [`Collectives`](hexagram_physical::native::Collectives). `None`, and the views are released, if it is to be
    /// done by messages.
    pub fn native(&self, input: Option<ReadView>, output: WriteView) -> Option<Operation<'a>> {
        let native = self.terms.transport.native()?;
        if !native.offers(&self.label, input.as_ref(), &output) {
            return None;
        }
        let ticket = native.post(self.label, input, output);
        Some(Operation::new(self.terms, ticket, Source::Any, self.label))
    }
}
