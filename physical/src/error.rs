//! Everything that can go wrong, in one taxonomy. Open this file to learn what a caller may still do after an error.
//!
//! Each error says who is to blame (a rank, with its host and process), what was being done (operation and sequence
//! number), why it failed, and what to do about it. `docs/errors.md` is the same list for people who run jobs.

use crate::fingerprint::{Fingerprint, OperationKind};
use crate::tag::Tag;
use std::any::Any;
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
        "{culprit} {cause}{}; every rank of this job has to be restarted, from the last checkpoint",
        noticed(.cause, .during)
    )]
    PeerFailed {
        /// The rank that failed first: the root cause, not the neighbour that noticed it.
        culprit: Peer,
        /// What happened to it, as a verb phrase: `died (its connection closed)`.
        cause: String,
        /// What this rank was doing.
        during: During,
    },

    /// An operation did not end in time although nobody has failed: every process answers heartbeats. The communicator
    /// is poisoned.
    #[error("no answer from {} within {after:?}{during}; {}", whom(.waiting_for.as_ref()), advice(.stragglers))]
    Deadline {
        /// The peer whose message is missing; `None` if anyone's would do.
        waiting_for: Option<Peer>,
        /// The ranks for which everyone in this operation waits in the end, the root cause first; empty if that is not
        /// known. They may be others than the peer.
        stragglers: Vec<Straggler>,
        /// How long this rank waited.
        after: Duration,
        /// What this rank was doing.
        during: During,
    },

    /// Two ranks disagree about which operation comes next. The communicator is poisoned.
    #[error(
        "ranks disagree about operation #{sequence}: this rank calls {mine}, {peer} calls {theirs}; {}",
        agreement(.mine, .theirs)
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

    /// A codec met NaN or infinity in what it was to encode, and refuses such. The communicator is poisoned.
    #[error(
        "element {index}{} is {value} on {place}, and cannot be encoded{during}; see why training diverges there, or choose a codec that propagates or saturates",
        of_tensor(.tensor.as_deref())
    )]
    NotFinite {
        /// The rank that has it.
        place: Peer,
        /// The tensor, if the caller has named it; otherwise elements count from the beginning of the buffer.
        tensor: Option<Arc<str>>,
        /// Which element.
        index: usize,
        /// What it is.
        value: f32,
        /// What this rank was doing.
        during: During,
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

    /// Start-up failed: variables, rendezvous, launch. No world exists; correct the cause and start again.
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

    /// What a panic of `what`, caught on a thread of ours, is to the program.
    pub fn panicked(what: &str, panic: &(dyn Any + Send)) -> Self {
        let text =
            panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let what = format!("{what} panicked: {}", text.unwrap_or("without a message"));
        Error::usage(what, "see the panic's own message for the place")
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

/// When a failure was noticed, after what it was: a clause of its own where that is a sentence.
fn noticed(cause: &str, during: &During) -> String {
    let during = during.to_string();
    match (cause.contains(": "), cause.contains(&during)) {
        (true, true) => String::new(),
        (true, false) => format!("; noticed{during}"),
        (false, _) => during,
    }
}

fn of_tensor(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" of {tensor}"))
}

fn whom(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "any rank".to_owned(), Peer::to_string)
}

const SAME_ORDER: &str = "all ranks must call the same operations in the same order";

/// What to do about ranks that call different things: what is hidden in a digest is said in words.
fn agreement(mine: &Fingerprint, theirs: &Fingerprint) -> &'static str {
    if *mine == (Fingerprint { codec: mine.codec, ..*theirs }) {
        return "give all ranks the same codec, feedback, seed and options";
    }
    if mine.operation == OperationKind::Gossip && *mine == (Fingerprint { root: mine.root, ..*theirs }) {
        return "give all ranks the same schedule and step";
    }
    SAME_ORDER
}

/// What to do about ranks that are late.
fn advice(stragglers: &[Straggler]) -> String {
    let Some(first) = stragglers.first() else {
        return "see whether that rank is still computing, and raise the operation deadline if it is"
            .to_owned();
    };
    let all: Vec<String> = stragglers.iter().map(Straggler::to_string).collect();
    let remedy = match first.during {
        During::Operation(..) => SAME_ORDER,
        _ => "see what it does, and raise the operation deadline if it only needs longer",
    };
    format!("everyone waits for {}; {remedy}", all.join(", and "))
}

/// A rank that is alive and late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Straggler {
    /// The rank.
    pub peer: Peer,
    /// Another operation, in which it waits; nothing if it waits for nobody, and so computes, or reads, or sleeps.
    pub during: During,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which is alive, but ", self.peer)?;
        match &self.during {
            During::Operation(fingerprint, tag) => write!(f, "in {fingerprint}, {tag}"),
            _ => f.write_str("in no operation"),
        }
    }
}

/// A rank, and where to find its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Rank in the world.
    pub rank: usize,
    /// Host name, for people; never used to decide anything.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// What a rank was doing when an error reached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum During {
    /// Nothing that others take part in, as far as is known.
    #[default]
    Nothing,
    /// An operation.
    Operation(Fingerprint, Tag),
    /// Rendezvous the other ranks.
    Joining,
    /// Opening this channel.
    Opening(u16),
    /// Making memory that all ranks can reach.
    Registering,
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            During::Nothing => Ok(()),
            During::Operation(fingerprint, tag) => write!(f, " during {fingerprint}, {tag}"),
            During::Joining => f.write_str(" before all ranks had joined"),
            During::Opening(channel) => write!(f, " while channel {channel} was being opened"),
            During::Registering => f.write_str(" while memory was being registered"),
        }
    }
}
