//! An operation, from its number to its end: what an author of a primitive begins, sends and receives with.
//!
//! The next collective of a lane gets its sequence number by [`Communicator::operate`], which tells the other ranks if
//! it fails. The [`Call`] carries the operation's identity, so that the primitive names only peer, step and elements:
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
use crate::group::{Group, Kind};
use crate::{Buffer, Communicator, Part, Peer, Result};
use hexagram_physical::codec::Codec;
use hexagram_physical::error::During;
use hexagram_physical::fingerprint::Fingerprint;
use hexagram_physical::memory::{ReadView, WriteView};
use hexagram_physical::native::AtOnce;
use hexagram_physical::operation::{Operation, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::{Label, Land, Source};
use std::cell::Cell;
use std::ops::Range;

/// Size in bytes above which no backend carries a collective out at once.
const AT_ONCE: usize = 4096;

impl Communicator {
    /// Runs the next collective of this lane. For authors of primitives; see [`Call`].
    ///
    /// From here on the other ranks count on this one: an error of `body` poisons the communicator and is told to them.
    /// Check arguments before.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) after a failure; the error of `body`.
    pub async fn operate(
        &self,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.numbered(Kind::Collective, self.collectives(), fingerprint, body).await
    }

    /// Carries out the next collective of this lane at once, in place, if it is small and the backend can; `None` if it
    /// has yet to be run by [`Communicator::operate`] as usual, under the same fingerprint and on the same elements.
    pub(crate) fn at_once(&self, fingerprint: Fingerprint, elements: &mut [u8]) -> Option<Result<()>> {
        if elements.len() > AT_ONCE || !self.group().is_world() {
            return None;
        }
        let endpoint = self.endpoint();
        let native = endpoint.native()?;
        let sequence = self.collectives();
        let label = match self.label(Kind::Collective, fingerprint, sequence.get()) {
            Ok(label) => label,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = self.poison().check(endpoint.health(), &label) {
            return Some(Err(error));
        }
        let AtOnce::Done(outcome) = native.at_once(&label, elements) else { return None };
        sequence.set(sequence.get() + 1);
        Some(outcome.inspect_err(|error| self.give_up(error)))
    }

    /// Runs the next send to a rank.
    pub(crate) async fn operate_send(
        &self,
        to: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(to)?;
        self.numbered(Kind::Message, self.sends_to(to), fingerprint, body).await
    }

    /// Runs the next receive from a rank.
    pub(crate) async fn operate_recv(
        &self,
        from: usize,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_rank(from)?;
        self.numbered(Kind::Message, self.receives_from(from), fingerprint, body).await
    }

    /// Runs the next operation that `counter` counts, and ends the work of all ranks if it fails.
    async fn numbered(
        &self,
        kind: Kind,
        counter: &Cell<u64>,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<()>,
    ) -> Result<()> {
        let call = self.begin(self.label(kind, fingerprint, counter.get())?)?;
        counter.set(counter.get() + 1);
        body(&call).await.inspect_err(|error| self.give_up(error))
    }

    /// Begins the next exchange with a rank about a group that both are to be in.
    pub(crate) fn begin_grouping(&self, with: usize, fingerprint: Fingerprint) -> Result<Call<'_>> {
        let counter = self.groups_with(with);
        let call = self.begin(self.label(Kind::Grouping, fingerprint, counter.get())?)?;
        counter.set(counter.get() + 1);
        Ok(call)
    }

    /// Runs a message under a tag of the user's, and ends the work of all ranks if it fails.
    pub(crate) async fn operate_tagged<T>(
        &self,
        tag: u32,
        fingerprint: Fingerprint,
        body: impl AsyncFnOnce(&Call<'_>) -> Result<T>,
    ) -> Result<T> {
        let tag = Tag::of_user(self.group().communicator(Kind::Tagged), tag);
        let call = self.begin(Label { tag, fingerprint })?;
        body(&call).await.inspect_err(|error| self.give_up(error))
    }

    fn label(&self, kind: Kind, fingerprint: Fingerprint, sequence: u64) -> Result<Label> {
        // Messages between two ranks are not on a lane: their order is that of all messages of the pair.
        let lane = if kind == Kind::Collective { self.lane_number() } else { 0 };
        let communicator = self.group().communicator(kind);
        let rate = self.rate().filter(|_| kind == Kind::Collective && fingerprint.root.is_none());
        Ok(Label {
            tag: Tag::new(communicator, lane, sequence, 0)?,
            fingerprint: Fingerprint { rate, ..fingerprint },
        })
    }

    /// Starts an operation under a label that is not of this communicator's own counting.
    pub(crate) fn begin(&self, label: Label) -> Result<Call<'_>> {
        let transport = self.endpoint();
        let poison = self.poison();
        poison.check(transport.health(), &label)?;
        let terms = Terms { transport, poison, deadline: self.deadline() };
        Ok(Call { terms, group: self.group(), label })
    }
}

/// Operation of a communicator under way.
pub struct Call<'a> {
    terms: Terms<'a>,
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

    /// Starts receiving into `elements` of `buffer` from whichever rank of the group sends first.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub(crate) fn recv_any(&self, buffer: &Buffer, elements: Range<usize>) -> Result<Operation<'a>> {
        let view = buffer.write(elements)?;
        let ticket = self.terms.transport.post_recv(Source::Any, self.label, view, Land::Copy);
        Ok(Operation::from_any(self.terms, ticket, self.group.members().to_vec(), self.label))
    }

    /// Returns the rank in the group of a rank of the world.
    pub(crate) fn in_group(&self, world_rank: usize) -> Option<usize> {
        self.group.members().iter().position(|member| *member == world_rank)
    }

    /// Writes the message for `from` to the beginning of `to`, a buffer of bytes, and returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) with this rank and the element's index in its buffer, where the
    /// codec refuses it; as [`WriteView::encode`].
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
        let members = self.group.members();
        if !native.offers(&self.label, members, input.as_ref(), &output) {
            return None;
        }
        let ticket = native.post(self.label, members, input, output);
        Some(Operation::new(self.terms, ticket, Source::Any, self.label))
    }
}
