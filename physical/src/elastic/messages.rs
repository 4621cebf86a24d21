//! Messages between a launcher and a process of an elastic job.
//!
//! ```text
//! process → launcher   READY:u32                                              it has left its world, and waits for the next
//!                    | FAILED:u32 generation:u32 rank:u32                     the ranks have found that this one has failed
//!                    | PUT:u32 generation:u32 key:text value:blob             of the store of a generation
//!                    | GET:u32 generation:u32 request:u32 key:text            answered once the key has a value
//!                    | REMOVE:u32 generation:u32 key:text
//! launcher → process   WELCOME:u32 milliseconds:u32                           first: longest wait for the other processes
//!                    | GENERATION:u32 generation:u32 rank:u32 size:u32        answer to READY
//!                    | CHANGED:u32 generation:u32 culprit:u32 cause:text      culprit = rank + 1, or 0 for an arrival
//!                    | VALUE:u32 request:u32 value:blob
//!                    | ENDED:u32 cause:text                                   no further generation begins
//! ```

use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use std::io;
use std::time::Duration;

/// Longest message, in bytes.
const CAP: usize = 128 << 10;
/// Longest value of a key, in bytes.
const VALUE_BYTES: usize = 64 << 10;

const READY: usize = 0;
const PUT: usize = 1;
const GET: usize = 2;
const REMOVE: usize = 3;
const WELCOME: usize = 4;
const GENERATION: usize = 5;
const CHANGED: usize = 6;
const VALUE: usize = 7;
const ENDED: usize = 8;
const FAILED: usize = 9;

/// Message of a process to its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberRequest {
    /// The process waits for the next generation.
    Ready,
    /// The ranks of a generation have found that one of them has failed, for example because it is stopped.
    Failed {
        /// The generation.
        generation: u64,
        /// The rank.
        rank: usize,
    },
    /// Sets a key of the store of a generation.
    Put {
        /// The generation.
        generation: u64,
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Asks for the value of a key, now or once it has one.
    Get {
        /// The generation.
        generation: u64,
        /// Number of the request, for the answer.
        request: usize,
        /// The key.
        key: String,
    },
    /// Removes a key.
    Remove {
        /// The generation.
        generation: u64,
        /// The key.
        key: String,
    },
}

/// Message of a launcher to one of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberNotice {
    /// The longest time for which the launcher waits for a process after a change.
    Welcome(Duration),
    /// The next generation begins.
    Generation {
        /// Its number, from 1.
        number: u64,
        /// Rank of the process in it.
        rank: usize,
        /// Number of its ranks.
        size: usize,
    },
    /// A generation ends, because its members change.
    Changed {
        /// The generation.
        generation: u64,
        /// Rank that died or left; `None` if a process waits to join.
        culprit: Option<usize>,
        /// Cause, as a verb phrase of the rank, or a clause.
        cause: String,
    },
    /// Answer to [`MemberRequest::Get`].
    Value {
        /// Number of the request.
        request: usize,
        /// Value of its key.
        value: Vec<u8>,
    },
    /// No further generation begins, for this reason.
    Ended(String),
}

impl MemberRequest {
    /// Encodes the message.
    pub fn write(&self) -> Vec<u8> {
        let start =
            |kind, generation: &u64| MessageWriter::default().number(kind).number(*generation as usize);
        let message = match self {
            MemberRequest::Ready => MessageWriter::default().number(READY),
            MemberRequest::Failed { generation, rank } => start(FAILED, generation).number(*rank),
            MemberRequest::Put { generation, key, value } => start(PUT, generation).text(key).blob(value),
            MemberRequest::Get { generation, request, key } => {
                start(GET, generation).number(*request).text(key)
            }
            MemberRequest::Remove { generation, key } => start(REMOVE, generation).text(key),
        };
        message.whole()
    }

    /// Removes the first message from the bytes read so far. Returns `None` if it is not complete.
    ///
    /// # Errors
    /// `InvalidData` if the bytes break the protocol.
    pub fn split(from: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let Some(mut message) = MessageReader::split(from, CAP)? else { return Ok(None) };
        let kind = message.number()?;
        if kind == READY {
            return Ok(Some(MemberRequest::Ready));
        }
        let generation = message.number()? as u64;
        Ok(Some(match kind {
            FAILED => MemberRequest::Failed { generation, rank: message.number()? },
            PUT => {
                let key = message.text()?;
                MemberRequest::Put { generation, key, value: message.blob(VALUE_BYTES)?.to_vec() }
            }
            GET => MemberRequest::Get { generation, request: message.number()?, key: message.text()? },
            REMOVE => MemberRequest::Remove { generation, key: message.text()? },
            _ => return Err(malformed()),
        }))
    }
}

impl MemberNotice {
    /// Encodes the message.
    pub fn write(&self) -> Vec<u8> {
        let start = |kind| MessageWriter::default().number(kind);
        let message = match self {
            MemberNotice::Welcome(wait) => {
                start(WELCOME).number(usize::try_from(wait.as_millis()).unwrap_or(usize::MAX))
            }
            MemberNotice::Generation { number, rank, size } => {
                start(GENERATION).number(*number as usize).number(*rank).number(*size)
            }
            MemberNotice::Changed { generation, culprit, cause } => {
                let culprit = culprit.map_or(0, |rank| rank + 1);
                start(CHANGED).number(*generation as usize).number(culprit).text(cause)
            }
            MemberNotice::Value { request, value } => start(VALUE).number(*request).blob(value),
            MemberNotice::Ended(cause) => start(ENDED).text(cause),
        };
        message.whole()
    }

    /// Removes the first message from the bytes read so far, as [`MemberRequest::split`].
    ///
    /// # Errors
    /// As [`MemberRequest::split`].
    pub fn split(from: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let Some(mut message) = MessageReader::split(from, CAP)? else { return Ok(None) };
        Ok(Some(match message.number()? {
            WELCOME => MemberNotice::Welcome(Duration::from_millis(message.number()? as u64)),
            GENERATION => {
                let [number, rank, size] = [message.number()?, message.number()?, message.number()?];
                if rank >= size {
                    return Err(malformed());
                }
                MemberNotice::Generation { number: number as u64, rank, size }
            }
            CHANGED => MemberNotice::Changed {
                generation: message.number()? as u64,
                culprit: message.number()?.checked_sub(1),
                cause: message.text()?,
            },
            VALUE => {
                MemberNotice::Value { request: message.number()?, value: message.blob(VALUE_BYTES)?.to_vec() }
            }
            ENDED => MemberNotice::Ended(message.text()?),
            _ => return Err(malformed()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_wherever_reads_end() {
        let key = || "hexagram/rank/3".to_owned();
        let requests = [
            MemberRequest::Ready,
            MemberRequest::Failed { generation: 7, rank: 3 },
            MemberRequest::Put { generation: 7, key: key(), value: vec![1, 2] },
            MemberRequest::Get { generation: 7, request: 9, key: key() },
            MemberRequest::Remove { generation: 8, key: key() },
        ];
        let mut read = Vec::new();
        let mut found = Vec::new();
        for byte in requests.iter().flat_map(MemberRequest::write) {
            read.push(byte);
            found.extend(MemberRequest::split(&mut read).unwrap());
        }
        assert_eq!(found, requests);
        let notices = [
            MemberNotice::Welcome(Duration::from_secs(60)),
            MemberNotice::Generation { number: 4, rank: 2, size: 3 },
            MemberNotice::Changed { generation: 4, culprit: Some(0), cause: "died".into() },
            MemberNotice::Changed { generation: 4, culprit: None, cause: "a process waits".into() },
            MemberNotice::Value { request: 9, value: vec![3] },
            MemberNotice::Ended("too few".into()),
        ];
        let mut read = notices.iter().flat_map(MemberNotice::write).collect();
        let found: Vec<_> = std::iter::from_fn(|| MemberNotice::split(&mut read).unwrap()).collect();
        assert_eq!(found, notices);
    }

    #[test]
    fn a_rank_outside_its_generation_and_an_unknown_kind_are_refused() {
        let mut outside = MemberNotice::Generation { number: 1, rank: 3, size: 3 }.write();
        assert!(MemberNotice::split(&mut outside).is_err());
        let mut unknown = MessageWriter::default().number(99).number(1).whole();
        assert!(MemberNotice::split(&mut unknown.clone()).is_err());
        assert!(MemberRequest::split(&mut unknown).is_err());
    }
}
