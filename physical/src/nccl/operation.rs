//! Operations of a path, from the post to the stream.

use super::members::Members;
use super::order::Identity;
use crate::memory::{ReadView, WriteView};
use crate::path::mail::Mail;
use crate::transport::{Got, Label, Land, Ticket};

/// Matter of an operation, with the views that it needs.
pub(super) enum NcclWork {
    Send { to: usize, view: ReadView },
    Receive { view: WriteView, land: Land },
    Collective { input: Option<ReadView>, output: WriteView },
}

/// Point to which an operation has come.
pub(super) enum NcclStage {
    /// A send whose receiver has not replied.
    Announced,
    /// A receive whose message was not announced.
    Expecting(Mail),
    /// A receive whose sender has not decided.
    Replied,
    /// A collective behind one of its lane: messages of a later one would say that nothing more comes for this.
    Queued,
    /// A collective in this round of the agreement, with the latest time that this rank knows; no time was proposed in
    /// the rounds in which ranks only learn that all have come.
    Agreeing { round: u32, latest: Option<u64>, mail: Mail },
    /// It has its place in the order.
    Settled,
    /// It is on the stream.
    Enqueued,
}

/// An operation that is not over.
pub(super) struct NcclOperation {
    pub(super) ticket: Ticket,
    pub(super) label: Label,
    /// Ranks that take part in a collective; of messages, all ranks.
    pub(super) members: Members,
    pub(super) identity: Identity,
    /// Its own messages of the host's transport that are not out.
    pub(super) sent: Vec<Ticket>,
    /// `None` once it is on the stream.
    pub(super) work: Option<NcclWork>,
    pub(super) stage: NcclStage,
    /// Outcome for its caller.
    pub(super) got: Got,
}
