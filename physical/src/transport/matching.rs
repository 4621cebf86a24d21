//! Matching: assigns arriving messages to posted receives, and checks that both sides call the same operation.
//!
//! Receives and messages with equal tags meet here, in any order. Two ranks disagree, which is reported instead of a
//! hang, if a message of the *same operation* has a different fingerprint than the receive. They also disagree if the
//! peer of a receive has begun a later operation of the lane without sending the message.

use super::fingerprint::Fingerprint;
use super::message::{Label, ReceiveMode, Received, Source};
use super::tickets::Ticket;
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::memory::WriteView;
use crate::memory::landing::Landing;
use std::collections::VecDeque;

/// A receive that waits for its message.
pub struct Posted {
    pub(crate) ticket: Ticket,
    pub(crate) source: Source,
    pub(crate) label: Label,
    pub(crate) landing: Landing,
}

impl Posted {
    /// Creates a receive as it was posted: the arguments are those of
    /// [`Transport::post_recv`](crate::Transport::post_recv).
    pub fn new(ticket: Ticket, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Self {
        Posted { ticket, source, label, landing: Landing::new(view, land) }
    }

    /// Returns the ticket that was given for it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Lands a whole message of rank `from` in the view, which is released, and returns the outcome.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the message does not have the size that the receive expects.
    pub fn land(mut self, from: usize, message: &[u8], health: &Health) -> Result<Received> {
        let bytes = message.len();
        self.check_size(from, bytes, health)?;
        self.landing.push(message);
        Ok(Received { peer: from, bytes })
    }

    /// Lands a message of rank `from` that has a size only, and returns the outcome.
    ///
    /// # Errors
    /// As [`Posted::land`].
    #[cfg(feature = "sim")]
    pub(crate) fn land_size(self, from: usize, bytes: usize, health: &Health) -> Result<Received> {
        self.check_size(from, bytes, health)?;
        self.landing.charge(bytes);
        Ok(Received { peer: from, bytes })
    }

    /// Refuses a message of rank `from` whose size is not the one that the receive expects.
    fn check_size(&self, from: usize, bytes: usize, health: &Health) -> Result<()> {
        if self.landing.fits(bytes as u64) {
            return Ok(());
        }
        let peer = health.peers()[from].clone();
        Err(self.label.wrong_size(bytes as u64, self.landing.capacity(), peer))
    }

    /// Returns the error of a receive that met a message of rank `from` with a different fingerprint.
    pub fn mismatch(&self, from: usize, theirs: Fingerprint, health: &Health) -> Error {
        self.label.mismatch(theirs, health.peers()[from].clone())
    }
}

/// A message that waits for its receive; `M` is the type in which the backend holds its bytes.
pub struct Early<M> {
    /// Rank that sent it.
    pub from: usize,
    /// Identity of the message, as its sender gave it.
    pub label: Label,
    /// Its bytes.
    pub message: M,
}

/// Outcome of the search for the counterpart of a new receive or message.
pub enum Match<T> {
    /// Message or receive that matches.
    Found(T),
    /// A counterpart of the same operation with a different fingerprint, and that of the message.
    Conflict(T, Fingerprint),
    /// Nothing yet.
    Nothing,
}

/// Receives and messages of one endpoint that have not met yet.
pub struct Matcher<M> {
    posted: VecDeque<Posted>,
    early: VecDeque<Early<M>>,
}

impl<M> Default for Matcher<M> {
    fn default() -> Self {
        Matcher { posted: VecDeque::new(), early: VecDeque::new() }
    }
}

/// Returns true if a receive and a message from its peer meet: as counterparts, or as proof of a disagreement.
fn meet(source: Source, receive: &Label, message: &Label) -> bool {
    if receive.tag == message.tag {
        return true;
    }
    if !receive.tag.same_lane(&message.tag) {
        return false;
    }
    let waiting = receive.tag.sequence();
    let come = message.tag.sequence();
    if waiting == come {
        return receive.fingerprint != message.fingerprint;
    }
    // Messages of a pair arrive in order, and operations of a lane one after another. An older message is expected by
    // no receive here; a newer one means that the awaited message never comes. With any source, it may still come
    // from another rank.
    source != Source::Any
}

impl<M> Matcher<M> {
    /// Looks for the message that a receive from `source` waits for, and removes it.
    pub fn find_early(&mut self, source: Source, label: &Label) -> Match<Early<M>> {
        let at = self
            .early
            .iter()
            .position(|early| source.accepts(early.from) && meet(source, label, &early.label));
        match at.and_then(|at| self.early.remove(at)) {
            Some(early) if early.label == *label => Match::Found(early),
            Some(early) => {
                let theirs = early.label.fingerprint;
                Match::Conflict(early, theirs)
            }
            None => Match::Nothing,
        }
    }

    /// Looks for the receive that a message waits for, and removes it.
    pub fn find_posted(&mut self, from: usize, label: &Label) -> Match<Posted> {
        let at = self
            .posted
            .iter()
            .position(|posted| posted.source.accepts(from) && meet(posted.source, &posted.label, label));
        match at.and_then(|at| self.posted.remove(at)) {
            Some(posted) if posted.label == *label => Match::Found(posted),
            Some(posted) => Match::Conflict(posted, label.fingerprint),
            None => Match::Nothing,
        }
    }

    /// Returns the sender and the fingerprint of a message on the lane of `label` that no receive waits for.
    pub(crate) fn early_in_lane(&self, label: &Label) -> Option<(usize, Fingerprint)> {
        let early = self.early.iter().find(|early| early.label.tag.same_lane(&label.tag))?;
        Some((early.from, early.label.fingerprint))
    }

    /// Lists the receives from a certain peer, with that peer.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (Ticket, usize, Label)> {
        self.posted.iter().filter_map(|posted| match posted.source {
            Source::Rank(peer) => Some((posted.ticket, peer, posted.label)),
            Source::Any => None,
        })
    }

    /// Returns true if a receive accepts a message from this rank.
    pub(crate) fn expects(&self, from: usize) -> bool {
        self.posted.iter().any(|posted| posted.source.accepts(from))
    }

    /// Keeps a receive until its message arrives.
    pub fn keep_posted(&mut self, posted: Posted) {
        self.posted.push_back(posted);
    }

    /// Keeps a message until its receive is posted.
    pub fn keep_early(&mut self, early: Early<M>) {
        self.early.push_back(early);
    }

    /// Forgets a receive, which releases its view.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.posted.retain(|posted| posted.ticket != ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::OperationKind;
    use super::super::tag::Tag;
    use super::*;
    use crate::memory::Buffer;
    use crate::memory::dtype::DType;

    fn label(sequence: u64, step: usize, count: usize) -> Label {
        let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, count);
        Label { tag: Tag::new(0, 0, sequence, step).unwrap(), fingerprint }
    }

    fn posted(source: Source, label: Label) -> Posted {
        let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
        let view = buffer.write(0..1).unwrap();
        Posted::new(Ticket { index: 0, generation: 0 }, source, label, view, ReceiveMode::Copy)
    }

    #[test]
    fn the_first_of_equal_tags_is_taken_first() {
        let mut matcher = Matcher::<&str>::default();
        for message in ["first", "second"] {
            matcher.keep_early(Early { from: 1, label: label(1, 0, 1), message });
        }
        for want in ["first", "second"] {
            let Match::Found(early) = matcher.find_early(Source::Rank(1), &label(1, 0, 1)) else { panic!() };
            assert_eq!(early.message, want);
        }
        assert!(matches!(matcher.find_early(Source::Rank(1), &label(1, 0, 1)), Match::Nothing));
    }

    #[test]
    fn senders_and_steps_are_told_apart() {
        let mut matcher = Matcher::<()>::default();
        matcher.keep_posted(posted(Source::Rank(2), label(5, 1, 9)));
        assert!(matches!(matcher.find_posted(1, &label(5, 1, 9)), Match::Nothing));
        assert!(matches!(matcher.find_posted(2, &label(5, 0, 9)), Match::Nothing));
        assert!(matches!(matcher.find_posted(2, &label(5, 1, 9)), Match::Found(_)));
    }

    #[test]
    fn a_peer_that_has_gone_on_is_noticed() {
        let mut matcher = Matcher::<()>::default();
        matcher.keep_posted(posted(Source::Rank(2), label(5, 1, 9)));
        assert!(matches!(matcher.find_posted(2, &label(6, 0, 9)), Match::Conflict(..)));
        matcher.keep_early(Early { from: 2, label: label(7, 0, 9), message: () });
        assert!(matches!(matcher.find_early(Source::Rank(2), &label(8, 0, 9)), Match::Conflict(..)));
        let mut any = Matcher::<()>::default();
        any.keep_posted(posted(Source::Any, label(5, 0, 9)));
        assert!(
            matches!(any.find_posted(2, &label(6, 0, 9)), Match::Nothing),
            "another rank may still send #5"
        );
    }

    #[test]
    fn any_source_takes_whoever_comes() {
        let mut matcher = Matcher::<()>::default();
        matcher.keep_posted(posted(Source::Any, label(0, 0, 1)));
        assert!(matches!(matcher.find_posted(7, &label(0, 0, 1)), Match::Found(_)));
    }

    #[test]
    fn disagreement_shows_whichever_comes_first_and_at_any_step() {
        let mut matcher = Matcher::<()>::default();
        matcher.keep_posted(posted(Source::Rank(0), label(3, 0, 10)));
        assert!(
            matches!(matcher.find_posted(0, &label(3, 2, 11)), Match::Conflict(_, theirs) if theirs.count == 11)
        );
        matcher.keep_early(Early { from: 0, label: label(4, 1, 10), message: () });
        assert!(matches!(matcher.find_early(Source::Rank(0), &label(4, 0, 12)), Match::Conflict(..)));
    }
}
