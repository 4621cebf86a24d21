//! The side of rank 0 in the rendezvous.
//!
//! Rank 0 never blocks on a single connection: it serves pending and registered connections alike as they become
//! readable, and writes without blocking.

use super::join_messages::LeaderMessage;
use super::joined_ranks::JoinedRanks;
use super::peer_info::{JoinRequest, PeerTable, TransportLimits};
use super::rendezvous_member::{ControlStreams, peer_failed};
use crate::bootstrap::handshake::acceptor::Acceptor;
use crate::bootstrap::handshake::message::MessageWriter;
use crate::bootstrap::handshake::secret::Secret;
use crate::bootstrap::handshake::{JobKey, random};
use crate::bootstrap::sockets::stream::Listener;
use crate::error::{Error, Peer, Result};
use crate::waiting::stopwatch::Stopwatch;
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest time between two checks of the clock. A longer gap means that this process was stopped.
const LOOK: Duration = Duration::from_millis(250);

/// Leads the rendezvous as rank 0, until all ranks have joined, or `is_over` returns true. Returns the table of the ranks, and
/// the connections for `control`.
///
/// # Errors
/// [`Error::PeerFailed`] if a rank has ended; [`Error::Setup`] if the ranks do not match, one is missing after
/// `limit`, or descriptors do not suffice.
pub(crate) fn lead(
    listener: Listener,
    mine: JoinRequest,
    reach: TransportLimits<'_>,
    secret: &Secret,
    limit: Duration,
    is_over: &dyn Fn() -> bool,
) -> Result<(PeerTable, ControlStreams)> {
    let (bytes, file) = secret.for_rank_0()?;
    let mut acceptor = Acceptor::new(listener, &bytes, mine.settings.size)?;
    // Removed before the listener closes: the file belongs to the rank that listens at the address.
    let _file = file;
    let mut registry = JoinedRanks::new(mine, reach)?;
    let mut waited = Stopwatch::with_gap(2 * LOOK);
    // Before any rank connects: descriptors of unauthenticated connections are freed again.
    let mut outcome = registry.check_open_files();
    while outcome.is_ok() && !registry.is_complete() {
        let left = limit.saturating_sub(waited.elapsed());
        // Ranks that have connected are served before others are reported missing, however late this process woke.
        let connections = acceptor.wait(Some(left.min(LOOK)), &[registry.as_fd()]);
        outcome = registry.serve(connections);
        if outcome.is_ok() && !registry.is_complete() && left.is_zero() {
            outcome = Err(registry.incomplete(limit, &acceptor, secret));
        }
        if outcome.is_ok() && is_over() {
            // The launcher notifies the others, so none has to be awaited.
            return Err(Error::setup("the members of the job change", "join the next generation"));
        }
    }
    if let Err(failure) = outcome {
        registry.give_up(&mut acceptor, &failure);
        return Err(failure.into_error());
    }
    let job = random().map_err(Error::no_random)?;
    let key = JobKey::derive(&bytes, &job);
    Ok(registry.announce(&job, key))
}

/// Reason why the rendezvous ended without a world.
pub(crate) enum JoinFailure {
    /// A rank does not match or is missing, with a remedy.
    Refused(String, String),
    /// A rank has ended, and the cause, as a verb phrase.
    Failed(Peer, String),
}

impl JoinFailure {
    /// Encodes the message about it to the other ranks.
    pub(crate) fn message(&self) -> MessageWriter {
        match self {
            JoinFailure::Refused(reason, remedy) => LeaderMessage::refused(reason, remedy),
            JoinFailure::Failed(culprit, cause) => LeaderMessage::failed(culprit, cause),
        }
    }

    /// Converts it to rank 0's own error.
    fn into_error(self) -> Error {
        match self {
            JoinFailure::Refused(reason, remedy) => Error::setup(reason, remedy),
            JoinFailure::Failed(culprit, cause) => peer_failed(culprit, cause),
        }
    }

    /// Creates the refusal of a rank, described by `who`, whose settings differ from those of rank 0.
    pub(crate) fn mismatch(who: &str, reason: &str) -> Self {
        JoinFailure::refused(who, reason, "start all ranks with the same options and variables")
    }

    /// Creates the refusal of a rank, described by `who`, with a different build than rank 0.
    pub(crate) fn other_build(who: &str, reason: &str) -> Self {
        JoinFailure::refused(who, reason, "use the same build on all ranks")
    }

    /// Creates the refusal of a rank, described by `who`, whose number another process already has.
    pub(crate) fn taken(who: &str, rank: usize, by: &Peer) -> Self {
        let Peer { host, pid, .. } = by;
        let reason = format!("rank {rank} has joined already, from {host} (pid {pid})");
        JoinFailure::refused(
            who,
            &reason,
            "use a different number for each rank, and a different port for each job",
        )
    }

    /// Creates the refusal of a rank, described by `who`.
    fn refused(who: &str, reason: &str, remedy: &str) -> Self {
        JoinFailure::Refused(format!("{who} cannot join: {reason}"), remedy.to_owned())
    }
}
