//! Messages of control connections.
//!
//! ```text
//! member → rank 0   (HEARTBEAT wait* | LOCATED locality | FAILURE culprit:u32 cause:text)*  (LEFT rank:u32)?  end of stream
//! rank 0 → member   (HEARTBEAT | HOSTS locality* | STRAGGLERS answer* | FAILURE culprit:u32 cause:text | LEFT rank:u32)*
//!                   end of stream
//! wait              label count:u32 rank:u32*
//! answer            label count:u32 (rank:u32 (NO:u32 | YES:u32 label))*
//! locality          host:u32 kernel:u32           both are ranks
//! label             tag:16 fingerprint:16
//! ```
//!
//! Messages follow each other without gaps. Lists begin with their count. Every rank is checked against the size of
//! the world, and a list grows only as its elements are decoded.

use super::wait_graph::{Missing, MissingRanks, PendingWait};
use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::bootstrap::hosts::Locality;
use crate::transport::fingerprint::Fingerprint;
use crate::transport::message::Label;
use crate::transport::tag::Tag;
use std::io;

/// Kind of [`ControlMessage::Failure`].
const FAILURE: usize = 0;
/// Kind of [`ControlMessage::Left`].
const LEFT: usize = 1;
/// Kind of [`ControlMessage::Heartbeat`].
const HEARTBEAT: usize = 2;
/// Kind of [`ControlMessage::Stragglers`].
const STRAGGLERS: usize = 3;
/// Kind of [`ControlMessage::Located`].
const LOCATED: usize = 4;
/// Kind of [`ControlMessage::Hosts`].
const HOSTS: usize = 5;

/// Longest message, in bytes. All lists of waits or answers are shorter.
pub(super) const CAP: usize = 256 << 10;

/// Message of a control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// Heartbeat, with the waits of the operations of a member.
    Heartbeat(Vec<PendingWait>),
    /// Stragglers: the ranks for which the operations of the member ultimately wait.
    Stragglers(Vec<MissingRanks>),
    /// Result of the probes of a member.
    Located(Locality),
    /// Results of the probes of all ranks.
    Hosts(Vec<Locality>),
    /// Failure of the rank `culprit`.
    Failure { culprit: usize, cause: String },
    /// Departure of a rank that has finished.
    Left(usize),
}

impl ControlMessage {
    /// Encodes the message, with its length.
    pub(super) fn write(&self) -> Vec<u8> {
        let message = MessageWriter::default();
        let message = match self {
            ControlMessage::Heartbeat(waits) => {
                waits.iter().fold(message.number(HEARTBEAT).number(waits.len()), |message, wait| {
                    let message = put_label(message, &wait.label).number(wait.ranks.len());
                    wait.ranks.iter().fold(message, |message, rank| message.number(*rank))
                })
            }
            ControlMessage::Stragglers(answers) => {
                answers.iter().fold(message.number(STRAGGLERS).number(answers.len()), |message, answer| {
                    let message = put_label(message, &answer.label).number(answer.missing.len());
                    answer.missing.iter().fold(message, |message, Missing { rank, within }| {
                        let message = message.number(*rank).number(usize::from(within.is_some()));
                        within.iter().fold(message, put_label)
                    })
                })
            }
            ControlMessage::Located(locality) => put_locality(message.number(LOCATED), locality),
            ControlMessage::Hosts(localities) => {
                localities.iter().fold(message.number(HOSTS).number(localities.len()), put_locality)
            }
            ControlMessage::Failure { culprit, cause } => {
                message.number(FAILURE).number(*culprit).text(cause)
            }
            ControlMessage::Left(rank) => message.number(LEFT).number(*rank),
        };
        message.whole()
    }

    /// Decodes a message, in a world of `size` ranks.
    pub(super) fn read(mut message: MessageReader, size: usize) -> io::Result<Self> {
        let message = &mut message;
        match message.number()? {
            FAILURE => Ok(ControlMessage::Failure { culprit: rank(message, size)?, cause: message.text()? }),
            LEFT => rank(message, size).map(ControlMessage::Left),
            LOCATED => locality(message, size).map(ControlMessage::Located),
            HOSTS => list(message, |message| locality(message, size)).map(ControlMessage::Hosts),
            HEARTBEAT => list(message, |message| {
                Ok(PendingWait {
                    label: label(message)?,
                    ranks: list(message, |message| rank(message, size))?,
                })
            })
            .map(ControlMessage::Heartbeat),
            STRAGGLERS => list(message, |message| {
                Ok(MissingRanks {
                    label: label(message)?,
                    missing: list(message, |message| missing(message, size))?,
                })
            })
            .map(ControlMessage::Stragglers),
            _ => Err(malformed()),
        }
    }
}

/// Returns true for the bytes of exactly one heartbeat.
#[cfg(feature = "sim")]
pub(crate) fn is_heartbeat(bytes: &[u8]) -> bool {
    let message = MessageReader::split(&mut bytes.to_vec(), CAP).ok().flatten();
    let message = message.and_then(|message| ControlMessage::read(message, usize::MAX).ok());
    message.is_some_and(|message| matches!(message, ControlMessage::Heartbeat(_)) && message.write() == bytes)
}

/// Appends a label.
fn put_label(message: MessageWriter, label: &Label) -> MessageWriter {
    message.bytes(&label.tag.to_bytes()).bytes(&label.fingerprint.to_bytes())
}

/// Appends a locality.
fn put_locality(message: MessageWriter, locality: &Locality) -> MessageWriter {
    message.number(locality.host).number(locality.kernel)
}

/// Decodes a locality.
fn locality(message: &mut MessageReader, size: usize) -> io::Result<Locality> {
    Ok(Locality { host: rank(message, size)?, kernel: rank(message, size)? })
}

/// Decodes a label.
fn label(message: &mut MessageReader) -> io::Result<Label> {
    let tag = Tag::from_bytes(&message.bytes()?);
    let fingerprint = Fingerprint::from_bytes(&message.bytes()?).ok_or_else(malformed)?;
    Ok(Label { tag, fingerprint })
}

/// Decodes a rank, and refuses one outside the world.
fn rank(message: &mut MessageReader, size: usize) -> io::Result<usize> {
    message.number().and_then(|rank| if rank < size { Ok(rank) } else { Err(malformed()) })
}

/// Decodes a straggler.
fn missing(message: &mut MessageReader, size: usize) -> io::Result<Missing> {
    let rank = rank(message, size)?;
    let within = if message.number()? == 0 { None } else { Some(label(message)?) };
    Ok(Missing { rank, within })
}

/// Decodes a list, which grows only as its elements are found.
fn list<T>(
    message: &mut MessageReader,
    mut element: impl FnMut(&mut MessageReader) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let count = message.number()?;
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(element(message)?);
    }
    Ok(list)
}

/// Decodes arbitrary bytes, for the fuzzers. A decoded message must survive another round trip.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let [size, data @ ..] = data else { return };
    if let Ok(message) = ControlMessage::read(MessageReader::from(data.to_vec()), usize::from(*size)) {
        let mut bytes = message.write();
        let again = MessageReader::split(&mut bytes, CAP).and_then(|message| match message {
            Some(message) => ControlMessage::read(message, usize::from(*size)),
            None => Err(malformed()),
        });
        // Long texts are cut when they are written, and lists of nothing have room for more than a message.
        assert!(data.len() > 1000 || again.is_ok_and(|again| again == message));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bootstrap::handshake::message::LENGTH;
    use crate::memory::dtype::DType;
    use crate::testing::fuzzing::tests::Seed;
    use crate::transport::fingerprint::OperationKind;

    fn read(mut bytes: Vec<u8>, size: usize) -> io::Result<ControlMessage> {
        ControlMessage::read(MessageReader::split(&mut bytes, CAP)?.ok_or_else(malformed)?, size)
    }

    fn some_label(sequence: u64) -> Label {
        let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F16, 77);
        Label { tag: Tag::new(1, 2, sequence, 0).unwrap(), fingerprint }
    }

    fn messages() -> Vec<ControlMessage> {
        let within = Some(some_label(9));
        vec![
            ControlMessage::Heartbeat(vec![]),
            ControlMessage::Heartbeat(vec![
                PendingWait { label: some_label(5), ranks: vec![0, 4] },
                PendingWait { label: some_label(6), ranks: vec![] },
            ]),
            ControlMessage::Stragglers(vec![MissingRanks {
                label: some_label(5),
                missing: vec![Missing { rank: 3, within: None }, Missing { rank: 4, within }],
            }]),
            ControlMessage::Failure { culprit: 2, cause: "żółw".into() },
            ControlMessage::Left(4),
            ControlMessage::Located(Locality { host: 4, kernel: 2 }),
            ControlMessage::Hosts(vec![Locality { host: 3, kernel: 3 }; 5]),
        ]
    }

    /// Returns the messages in a world of 5 ranks, below that number, for the fuzzers' corpus.
    pub(crate) fn seeds() -> Vec<Seed> {
        let names = ["no_waits", "waits", "stragglers", "failure", "left", "located", "hosts"].into_iter();
        let bytes = messages().into_iter().map(|message| [&[5], &message.write()[LENGTH..]].concat());
        names.zip(bytes).map(|(file, bytes)| ("control_message", file, bytes)).collect()
    }

    #[test]
    fn words_round_trip() {
        for message in messages() {
            assert_eq!(read(message.write(), 5).unwrap(), message);
        }
    }

    #[test]
    fn a_rank_beyond_the_world_is_refused() {
        let refused = messages().into_iter().filter(|message| read(message.write(), 2).is_err()).count();
        assert_eq!(refused, 6, "all but the beat that names no rank");
    }

    #[test]
    fn a_truncated_or_hostile_word_is_refused() {
        for message in messages() {
            let whole = message.write();
            for end in 4..whole.len() - 1 {
                let cut = [((end - 4) as u32).to_le_bytes().as_slice(), &whole[4..end]].concat();
                assert!(read(cut, 5).is_err(), "{message:?} up to {end}");
            }
        }
        let endless = MessageWriter::default().number(HEARTBEAT).number(u32::MAX as usize).whole();
        assert!(read(endless, 5).is_err());
        assert!(read(MessageWriter::default().number(99).whole(), 5).is_err());
    }
}
