//! Start-up: from variables that a launcher set to a world whose ranks know each other.
//!
//! `variables` says who this rank is and where all ranks meet; `rendezvous` is that place; `handshake` proves that a
//! newcomer belongs to the job; `join` is the rendezvous itself, which rank 0 leads (`lead`), and a `card` what each rank
//! brings there; `control` keeps its connections open afterwards, to tell everyone who left and who failed; `doorway`
//! accepts the data connections of a transport, at the interface that the user chose with `interface`, or by which the
//! ranks met. In the `hall` callers of either wait until they have proved themselves, with the `secret` that all ranks
//! share: `stranger` is one of them, a `poller` tells which of them speak, and `complaints` says who was turned away.
//! Where a launcher has started the ranks, it says in a `report` which of them have ended that rank 0 does not know, as
//! their `attendance` tells. `parent` is the launcher, which no rank outlives; `local` are the sockets that never leave
//! this host, `listeners` those at several addresses, and `holder` is who else has an address that is taken. `hosts` says
//! which ranks share memory.

mod acceptor;
pub(crate) mod control;
pub(crate) mod data_listener;
#[cfg(test)]
mod exits;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod handshake;
pub(crate) mod hosts;
pub mod interface;
pub(crate) mod join;
pub(crate) mod lead;
pub(crate) mod listeners;
pub(crate) mod local;
pub(crate) mod message;
pub(crate) mod parent;
pub(crate) mod peer_info;
mod pending;
mod poller;
pub(crate) mod registered;
mod rejections;
mod rendezvous;
pub(crate) mod report;
pub(crate) mod secret;
mod socket_owner;
#[cfg(test)]
mod tests;
mod variables;

pub(crate) use acceptor::Accept;
pub(crate) use handshake::random;
pub(crate) use local::{abstract_address, same_user};
pub use rendezvous::{Inherited, Rendezvous};
pub(crate) use rendezvous::{ListenContext, Listener};
pub use variables::{Launcher, Placement, variable, variable_os};
pub(crate) use variables::{MAX_SIZE, host_and_port, of_other_launchers};

use crate::runtime::{self, Instant};
use std::io;
use std::time::Duration;

/// Connections that may wait to be accepted; the system may keep fewer.
pub(crate) const QUEUE: i32 = 4096;

/// When `limit` will be over; a limit beyond any job's life is as good as none.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    runtime::now() + limit.min(LONGEST)
}

/// Whether an attempt was only too slow, on a connection whose reads and writes are bounded.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Whether the other side has ended a connection, or with its process.
pub(crate) fn is_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether a listener failed for want of descriptors or memory, which trying again does not mend.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].contains(&errno))
}
