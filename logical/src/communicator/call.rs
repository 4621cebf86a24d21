//! An operation, from its number to its end, for authors of primitives: beginning, sending and receiving.
//!
//! [`Communicator::operate`] gives the next collective of a lane its sequence number, and notifies the other ranks if
//! it fails. The [`Call`] carries the identity of the operation, so that the primitive names only peer, step and
//! elements:
//!
//! ```text
//! comm.operate(fingerprint, async |call| {
//!     for step in 0..rounds {
//!         let send = call.send(next, step, &buffer, chunk)?;             // posted here, both of them,
//!         call.recv(previous, step, &buffer, other, ReceiveMode::Copy)?.await?; // before the first await
//!         send.await?;
//!     }
//!     Ok(())
//! })
//! .await
//! ```

use super::group::{Group, TagKind};
use crate::encoding::MessageSender;
use crate::{Buffer, Communicator, Part, Peer, Result};
use hexagram_physical::codec::Codec;
use hexagram_physical::error::ErrorContext;
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::memory::{ReadView, WriteView};
use hexagram_physical::native::AtOnce;
use hexagram_physical::operation::{Operation, OperationContext};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::{Label, ReceiveMode, Source};
use std::cell::Cell;
use std::ops::Range;

/// Size in bytes above which no backend runs a collective immediately.
const AT_ONCE: usize = 4096;

impl Communicator {
    /// Runs the next collective of this lane. For authors of primitives; see [`Call`].
    ///
    /// From here on, the other ranks rely on this one: an error of `body` poisons the communicator, and ends the
    /// operation on all ranks. Check arguments before.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) after a failure; the error of `body`.
    pub async fn operate(
        &self,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.numbered(TagKind::Collective, self.collectives(), fingerprint, body).await
    }

    /// Runs the next collective of this lane immediately, in place, if it is small and the backend supports it.
    /// `None` if it must be run with [`Communicator::operate`], under the same fingerprint and on the same elements.
    #[inline]
    pub(crate) fn at_once(&self, fingerprint: Fingerprint, elements: &mut [u8]) -> Option<Result<()>> {
        if elements.len() > AT_ONCE || !self.group().is_world() {
            return None;
        }
        let endpoint = self.endpoint();
        let native = endpoint.native()?;
        let sequence = self.collectives();
        let label = match self.label(TagKind::Collective, fingerprint, sequence.get()) {
            Ok(label) => label,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = self.poison().check(endpoint.health(), &label) {
            return Some(Err(error));
        }
        // Success is returned anew, as in `all_reduce`.
        match native.at_once(&label, elements) {
            AtOnce::Done(Ok(())) => {
                sequence.set(sequence.get() + 1);
                Some(Ok(()))
            }
            AtOnce::Done(Err(error)) => {
                sequence.set(sequence.get() + 1);
                self.give_up(&error);
                Some(Err(error))
            }
            AtOnce::Begun | AtOnce::Not => None,
        }
    }

    /// Runs the next send to a rank.
    pub(crate) async fn operate_send(
        &self,
        to: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(to)?;
        self.numbered(TagKind::Message, self.sends_to(to), fingerprint, body).await
    }

    /// Runs the next receive from a rank.
    pub(crate) async fn operate_recv(
        &self,
        from: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(from)?;
        self.numbered(TagKind::Message, self.receives_from(from), fingerprint, body).await
    }

    /// Runs the next operation of `counter`, and ends the work of all ranks if it fails.
    async fn numbered(
        &self,
        kind: TagKind,
        counter: &Cell<u64>,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        let call = self.begin(self.label(kind, fingerprint, counter.get())?)?;
        counter.set(counter.get() + 1);
        body(&call).await.inspect_err(|error| self.give_up(error))
    }

    /// Begins the next exchange with a rank about a new group that contains both.
    pub(crate) fn begin_grouping(&self, with: usize, fingerprint: Fingerprint) -> Result<Call<'_>> {
        let counter = self.groups_with(with);
        let call = self.begin(self.label(TagKind::Grouping, fingerprint, counter.get())?)?;
        counter.set(counter.get() + 1);
        Ok(call)
    }

    /// Runs a message under a user tag, and ends the work of all ranks if it fails.
    pub(crate) async fn operate_tagged<T>(
        &self,
        tag: u32,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<T>,
    ) -> Result<T> {
        let tag = Tag::of_user(self.group().communicator(TagKind::Tagged), tag);
        let call = self.begin(Label { tag, fingerprint })?;
        body(&call).await.inspect_err(|error| self.give_up(error))
    }

    #[inline]
    fn label(&self, kind: TagKind, fingerprint: Fingerprint, sequence: u64) -> Result<Label> {
        // Messages between two ranks have no lane: they are ordered among all messages of the pair.
        let lane = if kind == TagKind::Collective { self.lane_number() } else { 0 };
        let communicator = self.group().communicator(kind);
        let rate = self.rate().filter(|_| kind == TagKind::Collective && fingerprint.root.is_none());
        Ok(Label {
            tag: Tag::new(communicator, lane, sequence, 0)?,
            fingerprint: Fingerprint { rate, ..fingerprint },
        })
    }

    /// Starts an operation under a label that this communicator has not counted.
    pub(crate) fn begin(&self, label: Label) -> Result<Call<'_>> {
        let transport = self.endpoint();
        let poison = self.poison();
        poison.check(transport.health(), &label)?;
        let terms = OperationContext { transport, poison, deadline: self.deadline() };
        Ok(Call { terms, group: self.group(), label })
    }
}

/// Running operation of a communicator.
pub struct Call<'a> {
    terms: OperationContext<'a>,
    group: &'a Group,
    label: Label,
}

impl<'a> Call<'a> {
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

    /// Starts sending `elements` of `buffer`, which must not be written until the operation has completed.
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

    /// Starts receiving into `elements` of `buffer`, stored or reduced according to `land`.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub fn recv(
        &self,
        from: usize,
        step: usize,
        buffer: &Buffer,
        elements: Range<usize>,
        land: ReceiveMode,
    ) -> Result<Operation<'a>> {
        let source = Source::Rank(self.in_world(from)?);
        let label = self.at(step)?;
        let view = buffer.write(elements)?;
        let ticket = self.terms.transport.post_recv(source, label, view, land);
        Ok(Operation::new(self.terms, ticket, source, label))
    }

    /// Starts receiving into `elements` of `buffer` from the rank of the group that sends first.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub(crate) fn recv_any(&self, buffer: &Buffer, elements: Range<usize>) -> Result<Operation<'a>> {
        let view = buffer.write(elements)?;
        let ticket = self.terms.transport.post_recv(Source::Any, self.label, view, ReceiveMode::Copy);
        Ok(Operation::from_any(self.terms, ticket, self.group.members().to_vec(), self.label))
    }

    /// Returns the rank in the group of a rank of the world.
    pub(crate) fn in_group(&self, world_rank: usize) -> Option<usize> {
        self.group.rank_of(world_rank)
    }

    /// Encodes the message for `from` to the beginning of `to`, a buffer of bytes, and returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) with this rank and the index of the element in its buffer, if
    /// the codec refuses it; as [`WriteView::encode`].
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
        let context = ErrorContext::Operation(self.label.fingerprint, self.label.tag);
        MessageSender { rank: self.peer(rank), context, ends: Some(self.terms) }
    }

    /// Decodes a message: `to ← to + weight × decode(from)`, or `to ← decode(from)` without a weight; `from` is a
    /// message that rank `sender` encoded.
    ///
    /// # Errors
    /// [`Error::PeerFailed`](crate::Error::PeerFailed) with the sender, if the message is damaged; as
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

    /// Moves bytes that are ready. Call it between pieces of work, to keep the network busy.
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

    /// Offers the whole operation to the backend: see [`Collectives`](hexagram_physical::native::Collectives).
    /// Returns `None`, and releases the views, if it must be done by messages.
    pub fn native(&self, input: Option<ReadView>, output: WriteView) -> Option<Operation<'a>> {
        let native = self.terms.transport.native()?;
        let members = self.group.members();
        if !native.offers(&self.label, members, input.as_ref(), &output) {
            return None;
        }
        let ticket = native.post(self.label, members, input, output);
        Some(Operation::new(self.terms, ticket, Source::Any, self.label))
    }
}
