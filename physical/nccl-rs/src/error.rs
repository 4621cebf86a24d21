//! Errors, as values.

use crate::version::Version;
use std::ffi::c_int;
use std::fmt;
use std::time::Duration;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why NCCL cannot be used, or has refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The loader does not find NCCL, or cannot load it.
    Missing {
        /// Reason of the loader.
        reason: String,
    },
    /// The library lacks a function.
    Lacking {
        /// Name of the function.
        function: &'static str,
    },
    /// The version is older than [`Version::OLDEST`].
    TooOld {
        /// Version of the library that the loader finds.
        found: Version,
    },
    /// A variable of the environment makes NCCL wait for other ranks within its calls.
    Blocking {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// NCCL has refused a call, or the operation that a call began has failed.
    Refused {
        /// NCCL's result.
        status: Status,
        /// NCCL's description of the result, and its last warning. The warning may be of any communicator of the process,
        /// and old.
        details: String,
    },
    /// The communicator was not ready in time.
    Late {
        /// Time for which the caller has waited.
        after: Duration,
    },
    /// A rank or a number of ranks exceeds the range of NCCL's integers.
    OutOfRange {
        /// The number.
        number: usize,
    },
}

impl Error {
    /// Returns NCCL's result, if NCCL has given one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { reason } => write!(f, "libnccl.so.2 cannot be loaded: {reason}"),
            Self::Lacking { function } => write!(f, "libnccl.so.2 is too old: it has no {function}"),
            Self::TooOld { found } => {
                write!(f, "libnccl.so.2 is of version {found}, older than {}", Version::OLDEST)
            }
            Self::Blocking { name, value } => {
                write!(f, "{name} is {value}, with which NCCL waits for other ranks within its calls")
            }
            Self::Refused { status, details } if details.is_empty() => status.fmt(f),
            Self::Refused { status, details } => write!(f, "{status}, {details}"),
            Self::Late { after } => write!(f, "NCCL was not ready within {after:?}"),
            Self::OutOfRange { number } => write!(f, "{number} is more than NCCL can count"),
        }
    }
}

impl std::error::Error for Error {}

/// Result of a function of NCCL. Newer versions may have further ones, so it is a number.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub(crate) c_int);

impl Status {
    /// Nothing has failed, and nothing is in progress.
    pub const SUCCESS: Self = Status(0);
    /// A call of CUDA has failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Status(1);
    /// A call of the system has failed, such as one for the network.
    pub const SYSTEM_ERROR: Self = Status(2);
    /// An internal error of NCCL.
    pub const INTERNAL_ERROR: Self = Status(3);
    /// An argument is wrong, or the communicator was not ready for the call.
    pub const INVALID_ARGUMENT: Self = Status(4);
    /// The call is wrong in this place.
    pub const INVALID_USAGE: Self = Status(5);
    /// Another rank has ended, or cannot be reached.
    pub const REMOTE_ERROR: Self = Status(6);
    /// An operation was begun: the communicator is not ready for another call.
    pub const IN_PROGRESS: Self = Status(7);

    /// Returns NCCL's number of the result.
    pub fn number(self) -> i32 {
        self.0
    }

    /// Returns true if nothing has failed.
    pub(crate) fn is_well(self) -> bool {
        [Self::SUCCESS, Self::IN_PROGRESS].contains(&self)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            other => return write!(f, "NCCL error {other}"),
        })
    }
}
