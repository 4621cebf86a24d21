//! Messages of the rendezvous, as types. The grammar is in `join`.

use super::peer_info::{JoinRequest, PeerInfo, PeerTable};
use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::error::Peer;
use std::io::{self, Read};

/// Kind of [`LeaderMessage::Refused`].
const REFUSED: usize = 0;
/// Kind of [`LeaderMessage::Peers`].
const PEERS: usize = 1;
/// Kind of [`LeaderMessage::Registered`].
const REGISTERED: usize = 2;
/// Kind of [`LeaderMessage::Failed`].
const FAILED: usize = 3;

/// Kind of [`Hello::Rank`].
const RANK: usize = 0;
/// Kind of [`Hello::Ended`].
const ENDED: usize = 1;

/// Kind of [`MemberMessage::Join`].
const JOIN: usize = 0;
/// Kind of [`MemberMessage::GiveUp`].
const GIVEN_UP: usize = 1;

/// First message of a process that has proved the secret.
pub(crate) enum Hello {
    /// Identity of a rank, and the size of its world.
    Rank(Peer, usize),
    /// Rank of a launcher that has ended, and the cause, as a verb phrase.
    Ended(Peer, String),
}

impl Hello {
    /// Encodes the message, with its length.
    pub(crate) fn write(&self) -> Vec<u8> {
        let message = match self {
            Hello::Rank(peer, size) => put(MessageWriter::default().number(RANK).number(*size), peer),
            Hello::Ended(peer, cause) => put(MessageWriter::default().number(ENDED), peer).text(cause),
        };
        message.whole()
    }

    /// Decodes the message.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        match message.number()? {
            RANK => {
                let size = message.number()?;
                Ok(Hello::Rank(peer(message)?, size))
            }
            ENDED => Ok(Hello::Ended(peer(message)?, message.text()?)),
            _ => Err(malformed()),
        }
    }
}

/// Message of a registered member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberMessage {
    /// Request to join.
    Join(Box<JoinRequest>),
    /// Reason why the member does not join, as a verb phrase.
    GiveUp(String),
}

impl MemberMessage {
    /// Encodes the message.
    pub(crate) fn write(&self) -> MessageWriter {
        match self {
            MemberMessage::Join(request) => request.write(MessageWriter::default().number(JOIN)),
            MemberMessage::GiveUp(cause) => MessageWriter::default().number(GIVEN_UP).text(cause),
        }
    }

    /// Decodes the message.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        match message.number()? {
            JOIN => JoinRequest::read(message).map(Box::new).map(MemberMessage::Join),
            GIVEN_UP => message.text().map(MemberMessage::GiveUp),
            _ => Err(malformed()),
        }
    }
}

/// Message of rank 0.
pub(crate) enum LeaderMessage {
    /// Identity of rank 0, for a member that it has registered.
    Registered(Peer),
    /// Table of all ranks, not yet decoded.
    Peers(MessageReader),
    /// Refusal of the whole job, with a remedy.
    Refused { reason: String, remedy: String },
    /// Rank that has ended, and the cause, as a verb phrase.
    Failed(Peer, String),
}

impl LeaderMessage {
    /// Encodes [`LeaderMessage::Registered`].
    pub(crate) fn registered(leader: &Peer) -> MessageWriter {
        put(MessageWriter::default().number(REGISTERED), leader)
    }

    /// Encodes [`LeaderMessage::Peers`] for the job that drew the number `job`.
    pub(crate) fn peers(infos: &[PeerInfo], job: &[u8; 16]) -> MessageWriter {
        PeerTable::write(infos, job, MessageWriter::default().number(PEERS))
    }

    /// Encodes [`LeaderMessage::Refused`].
    pub(crate) fn refused(reason: &str, remedy: &str) -> MessageWriter {
        MessageWriter::default().number(REFUSED).text(reason).text(remedy)
    }

    /// Encodes [`LeaderMessage::Failed`].
    pub(crate) fn failed(culprit: &Peer, cause: &str) -> MessageWriter {
        put(MessageWriter::default().number(FAILED), culprit).text(cause)
    }

    /// Reads a message from a blocking stream.
    pub(crate) fn receive(stream: &mut impl Read) -> io::Result<Self> {
        Self::read(MessageReader::receive(stream)?)
    }

    /// Decodes a message.
    pub(crate) fn read(mut message: MessageReader) -> io::Result<Self> {
        match message.number()? {
            REGISTERED => peer(&mut message).map(LeaderMessage::Registered),
            PEERS => Ok(LeaderMessage::Peers(message)),
            REFUSED => Ok(LeaderMessage::Refused { reason: message.text()?, remedy: message.text()? }),
            FAILED => Ok(LeaderMessage::Failed(peer(&mut message)?, message.text()?)),
            _ => Err(malformed()),
        }
    }
}

/// Appends the identity of a rank.
fn put(message: MessageWriter, peer: &Peer) -> MessageWriter {
    message.number(peer.rank).number(peer.pid as usize).text(&peer.host)
}

/// Decodes the identity of a rank.
fn peer(message: &mut MessageReader) -> io::Result<Peer> {
    let rank = message.number()?;
    let pid = message.number()? as u32;
    Ok(Peer { rank, pid, host: message.text()?.into() })
}
