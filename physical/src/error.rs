//! Everything that can go wrong, in one taxonomy. Open this file to learn what a caller may still do after an error.
//!
//! Each error says who is to blame (a rank, with its host and process), what was being done (operation and sequence
//! number), why it failed, and what to do about it. `docs/errors.md` is the same list for people who run jobs.

use crate::fingerprint::Fingerprint;
use crate::tag::Tag;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The result of everything in hexagram that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed, who caused it, and what to do.
///
/// Errors are cheap to clone, because one failure is reported to every operation that it ends.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank died, left early, or gave up. Its communicators cannot be used any more; restart the job.
    #[error(
        "{culprit} {cause}{during}; every rank of this job has to be restarted, from the last checkpoint"
    )]
    PeerFailed {
        /// The rank that failed first: the root cause, not the neighbour that noticed it.
        culprit: Peer,
        /// What happened to it, as a verb phrase: `died (its connection closed)`.
        cause: String,
        /// What this rank was doing.
        during: During,
    },

    /// An operation did not end in time although nobody is known to have failed. The communicator is poisoned.
    #[error("no answer from {} within {after:?}{during}; see whether that rank is still computing, and raise the operation deadline if it is", whom(.waiting_for.as_ref()))]
    Deadline {
        /// The peer whose message is missing; `None` if anyone's would do.
        waiting_for: Option<Peer>,
        /// How long this rank waited.
        after: Duration,
        /// What this rank was doing.
        during: During,
    },

    /// Two ranks disagree about which operation comes next. The communicator is poisoned.
    #[error(
        "ranks disagree about operation #{sequence}: this rank calls {mine}, {peer} calls {theirs}; all ranks must call the same operations in the same order"
    )]
    Mismatch {
        /// Number of the operation in its lane.
        sequence: u64,
        /// What this rank called.
        mine: Fingerprint,
        /// What the peer called.
        theirs: Fingerprint,
        /// The rank that differs.
        peer: Peer,
    },

    /// The communicator was used after an operation on it failed or was dropped unfinished.
    #[error("this communicator cannot be used any more, because an earlier operation failed: {because}")]
    Poisoned {
        /// The first failure.
        because: String,
    },

    /// Memory is lent to an operation in flight; wait for that operation before touching these bytes.
    #[error(
        "bytes {start}..{end} of a buffer of {size} bytes are in use by another operation; wait for that operation first"
    )]
    Busy {
        /// First byte asked for.
        start: usize,
        /// One past the last byte asked for.
        end: usize,
        /// Size of the whole memory, in bytes.
        size: usize,
    },

    /// The caller asked for something that cannot be done. Nothing was sent; correct the call and go on.
    #[error("{what}; {remedy}")]
    Usage {
        /// What is wrong with the call.
        what: String,
        /// What to do instead.
        remedy: String,
    },

    /// Start-up failed: variables, meeting, launch. No world exists; correct the cause and start again.
    #[error("{what}; {remedy}")]
    Setup {
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },

    /// The operating system refused something.
    #[error("cannot {doing}: {cause}; {remedy}")]
    System {
        /// What hexagram tried, as an infinitive: `map 4 MiB of shared memory`.
        doing: String,
        /// The system's own words.
        cause: Arc<io::Error>,
        /// What to do about it.
        remedy: String,
    },
}

impl Error {
    /// A call that cannot be carried out.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Usage { what: what.into(), remedy: remedy.into() }
    }

    /// A failure before the world exists.
    pub fn setup(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Setup { what: what.into(), remedy: remedy.into() }
    }

    /// A refusal by the operating system.
    pub fn system(doing: impl Into<String>, cause: impl Into<io::Error>, remedy: impl Into<String>) -> Self {
        Error::System { doing: doing.into(), cause: Arc::new(cause.into()), remedy: remedy.into() }
    }
}

fn whom(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "any rank".to_owned(), Peer::to_string)
}

/// A rank, and where to find its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Rank in the world.
    pub rank: usize,
    /// Host name, for people; never used to decide anything.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// What a rank was doing when an error reached it; empty outside an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct During(pub Option<(Fingerprint, Tag)>);

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((fingerprint, tag)) => write!(f, " during {fingerprint}, {tag}"),
            None => Ok(()),
        }
    }
}
