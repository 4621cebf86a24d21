//! All errors, in one taxonomy.
//!
//! Each error names the rank that caused it (with its host and process), the operation and sequence number, the
//! cause, and a remedy. `docs/errors.md` has the same list for users.

use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Result of a function of hexagram that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Cause of a failure, the rank that caused it, and a remedy.
///
/// Errors are cheap to clone, as one failure is reported to every operation that it ends.
///
/// ```
/// use hexagram_physical::Error;
///
/// let error = Error::usage("the buffer is empty", "give it at least one element");
/// assert_eq!(error.to_string(), "the buffer is empty; give it at least one element");
/// assert!(matches!(error, Error::Usage { .. }));
/// // A `main` that returns it prints this, and so does `unwrap`.
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// Another rank died, left early, or gave up. Its communicators are unusable; restart the job.
    PeerFailed {
        /// Rank that failed first: the root cause, not the neighbour that noticed it.
        culprit: Peer,
        /// Description of its failure, as a verb phrase: `died (its connection closed)`.
        cause: String,
        /// Activity of this rank at that time.
        context: ErrorContext,
    },

    /// The members of an elastic world change: a rank died, left early or gave up, or a process waits to join. Its communicators
    /// are unusable; continue with [`World::next`](crate::World::next).
    Membership {
        /// Number of the generation that ends.
        generation: u64,
        /// Rank that failed first; `None` if a process waits to join.
        culprit: Option<Peer>,
        /// Description, as a verb phrase of the culprit, or as a clause.
        cause: String,
        /// Activity of this rank at that time.
        context: ErrorContext,
    },

    /// An operation did not end in time although no rank has failed: every process answers heartbeats. The communicator
    /// is poisoned.
    Deadline {
        /// Peer whose message is missing; `None` if a message of any peer would do.
        waiting_for: Option<Peer>,
        /// Ranks for which all ranks of this operation ultimately wait, the root cause first. Empty if unknown. They
        /// may differ from the peer.
        stragglers: Vec<Straggler>,
        /// Time that this rank waited.
        after: Duration,
        /// Activity of this rank.
        context: ErrorContext,
    },

    /// Two ranks call different operations. The communicator is poisoned.
    Mismatch {
        /// Sequence number of the operation in its lane, or the tag of a message.
        sequence: u64,
        /// Operation that this rank called.
        mine: Fingerprint,
        /// Operation that the peer called.
        theirs: Box<Fingerprint>,
        /// Rank that differs from this one.
        peer: Peer,
    },

    /// A codec that refuses NaN and infinity got such a value to encode. The communicator is poisoned.
    NotFinite {
        /// Rank that has the value.
        place: Peer,
        /// Tensor of the value, if the caller has named it. Otherwise elements count from the beginning of the buffer.
        tensor: Option<Arc<str>>,
        /// Index of the element.
        index: usize,
        /// The value.
        value: f32,
        /// Activity of this rank.
        context: ErrorContext,
    },

    /// The communicator was used after an operation on it failed or was dropped unfinished.
    Poisoned {
        /// Description of the first failure.
        because: String,
    },

    /// Memory is lent to an operation in flight. Wait for that operation before touching these bytes.
    Busy {
        /// First byte of the refused range.
        start: usize,
        /// End of the refused range, exclusive.
        end: usize,
        /// Size of the whole memory, in bytes.
        size: usize,
    },

    /// The caller requested an impossible operation. Nothing was sent; correct the call and continue.
    Usage {
        /// Description of the incorrect call.
        what: String,
        /// Instruction to correct it.
        remedy: String,
    },

    /// Start-up failed: variables, rendezvous, launch. No world exists; correct the cause and start again.
    Setup {
        /// Description of the error.
        what: String,
        /// Instruction to correct it.
        remedy: String,
    },

    /// The operating system refused a call.
    System {
        /// Attempted action, as an infinitive: `map 4 MiB of shared memory`.
        doing: String,
        /// Error of the system.
        cause: Arc<io::Error>,
        /// Instruction to correct the cause.
        remedy: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PeerFailed { culprit, cause, context } => write!(
                f,
                "{culprit} {cause}{}; every rank of this job has to be restarted, from the last checkpoint",
                noticed(cause, context)
            ),
            Error::Membership { generation, culprit, cause, context } => write!(
                f,
                "generation {generation} ends: {}{cause}{}; continue with World::next, or from the last checkpoint",
                culprit.as_ref().map_or_else(String::new, |culprit| format!("{culprit} ")),
                noticed(cause, context)
            ),
            Error::Deadline { waiting_for, stragglers, after, context } => write!(
                f,
                "no answer from {} within {after:?}{context}; {}",
                name_of(waiting_for.as_ref()),
                advice(stragglers)
            ),
            Error::Mismatch { sequence, mine, theirs, peer } => write!(
                f,
                "ranks disagree about {}: this rank calls {mine}, {peer} calls {theirs}; {}",
                subject(*sequence, mine),
                agreement(mine, theirs)
            ),
            Error::NotFinite { place, tensor, index, value, context } => write!(
                f,
                "element {index}{} is {value} on {place}, and cannot be encoded{context}; check why training diverges there, or choose a codec that propagates or saturates",
                of_tensor(tensor.as_deref())
            ),
            Error::Poisoned { because } => write!(
                f,
                "this communicator cannot be used any more, because an earlier operation failed: {because}"
            ),
            Error::Busy { start, end, size } => write!(
                f,
                "bytes {start}..{end} of a buffer of {size} bytes are in use by another operation; wait for that operation first"
            ),
            Error::Usage { what, remedy } => write!(f, "{what}; {remedy}"),
            Error::Setup { what, remedy } => write!(f, "{what}; {remedy}"),
            Error::System { doing, cause, remedy } => write!(f, "cannot {doing}: {cause}; {remedy}"),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Debug for Error {
    /// Writes the message, as a `main` that returns an error prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Creates the error of a call that cannot be carried out.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Usage { what: what.into(), remedy: remedy.into() }
    }

    /// Creates the error for a panic of `what` that was caught on a thread of this library.
    pub fn panicked(what: &str, panic: &(dyn Any + Send)) -> Self {
        let text =
            panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let what = format!("{what} panicked: {}", text.unwrap_or("without a message"));
        Error::usage(what, "see the message of the panic for the place")
    }

    /// Creates the error of a failure before the world exists.
    pub fn setup(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Setup { what: what.into(), remedy: remedy.into() }
    }

    /// Creates the error of a refusal by the operating system.
    pub fn system(doing: impl Into<String>, cause: impl Into<io::Error>, remedy: impl Into<String>) -> Self {
        Error::System { doing: doing.into(), cause: Arc::new(cause.into()), remedy: remedy.into() }
    }
}

/// Returns the clause with the operation during which a failure was noticed, to follow its `cause`.
fn noticed(cause: &str, during: &ErrorContext) -> String {
    let during = during.to_string();
    match (cause.contains(": "), cause.contains(&during)) {
        (true, true) => String::new(),
        (true, false) => format!("; noticed{during}"),
        (false, _) => during,
    }
}

/// Returns the clause that names a tensor.
fn of_tensor(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" of {tensor}"))
}

/// Returns the name of a peer, or of any rank.
fn name_of(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "any rank".to_owned(), Peer::to_string)
}

/// Advice for ranks that call different operations.
const SAME_ORDER: &str = "all ranks must call the same operations in the same order";

/// Returns the operation on which ranks disagree.
fn subject(sequence: u64, mine: &Fingerprint) -> String {
    match mine.operation {
        OperationKind::Message => format!("the messages with tag {sequence}"),
        _ => format!("operation #{sequence}"),
    }
}

/// Returns the advice for ranks that call different operations. Differences that a digest hides are put into words.
fn agreement(mine: &Fingerprint, theirs: &Fingerprint) -> &'static str {
    if *mine == (Fingerprint { codec: mine.codec, ..*theirs }) {
        return "use the same codec, feedback, seed and options on all ranks";
    }
    if *mine == (Fingerprint { rate: mine.rate, ..*theirs }) {
        return "use the same learning rate on all ranks; a schedule must not depend on local values";
    }
    if mine.operation == OperationKind::Gossip && *mine == (Fingerprint { root: mine.root, ..*theirs }) {
        return "use the same schedule and step on all ranks";
    }
    if mine.operation == OperationKind::Message {
        return "send and receive equal numbers of elements, of the same type, under each tag";
    }
    SAME_ORDER
}

/// Returns the advice for ranks that are late.
fn advice(stragglers: &[Straggler]) -> String {
    let Some(first) = stragglers.first() else {
        return "check whether that rank is still computing, and raise the operation deadline if it is"
            .to_owned();
    };
    let all: Vec<String> = stragglers.iter().map(Straggler::to_string).collect();
    let remedy = match first.context {
        ErrorContext::Operation(..) => SAME_ORDER,
        ErrorContext::Device => {
            "find the kernel of that rank that does not end, or raise the operation deadline"
        }
        _ => "check what that rank does, and raise the operation deadline if it only needs more time",
    };
    format!("all ranks wait for {}; {remedy}", all.join(", and "))
}

/// Rank that is alive and late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Straggler {
    /// The rank.
    pub peer: Peer,
    /// The operation in which it waits itself. [`ErrorContext::Nothing`] if it does not wait, so that it computes, reads or
    /// sleeps; [`ErrorContext::Device`] if it takes part, but its device has not finished its contribution.
    pub context: ErrorContext,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which is alive, but ", self.peer)?;
        match &self.context {
            ErrorContext::Operation(fingerprint, tag) => write!(f, "in {fingerprint}, {tag}"),
            ErrorContext::Device => f.write_str("whose device has not finished its work"),
            _ => f.write_str("in no operation"),
        }
    }
}

/// Rank, with the location of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Rank in the world.
    pub rank: usize,
    /// Name of the host, for people. It is never used to decide anything.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// Activity of a rank when an error reached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorContext {
    /// No common operation, as far as is known.
    #[default]
    Nothing,
    /// An operation.
    Operation(Fingerprint, Tag),
    /// The rendezvous with the other ranks.
    Joining,
    /// Opening this channel.
    Opening(u16),
    /// Registering memory that all ranks can reach.
    Registering,
    /// Waiting for work of its own device.
    Device,
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorContext::Nothing => Ok(()),
            ErrorContext::Operation(fingerprint, tag) => write!(f, " during {fingerprint}, {tag}"),
            ErrorContext::Joining => f.write_str(" before all ranks had joined"),
            ErrorContext::Opening(channel) => write!(f, " while channel {channel} was being opened"),
            ErrorContext::Registering => f.write_str(" while memory was being registered"),
            ErrorContext::Device => f.write_str(" while its device was at work"),
        }
    }
}
