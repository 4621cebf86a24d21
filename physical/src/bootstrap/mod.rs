//! Start-up: turns the variables of a launcher into a world of connected ranks.
//!
//! Start here to follow a rank from its environment to its first endpoint:
//!
//! | module | content |
//! |---|---|
//! | `variables` | rank, size, and rendezvous of the job |
//! | `rendezvous` | the address of the rendezvous, its listener and the connections to it |
//! | `store`, `announcement`, `reachable` | ranks that meet through a key-value store or MPI: the announcement of rank 0, and its reachable address |
//! | `launcher_store` | the store of a launcher with PMI or PMIx, through which ranks on several hosts meet |
//! | `secret`, `private_file` | the secret that all ranks of a job share, and the files that only this user may read |
//! | `handshake`, `message` | the proof of that secret, and the encoding of all later messages |
//! | `acceptor`, `pending`, `poller`, `rejections` | connections that have not completed the handshake, and those that were rejected |
//! | `join`, `lead` | the rendezvous, as a member and as rank 0 |
//! | `occupant` | another program at the address of rank 0 |
//! | `peer_info` | the fields that each rank sends there, and the table that it receives |
//! | `control` | the connections that stay open afterwards, for heartbeats, failures and departures |
//! | `data_listener` | data connections of a transport, accepted and opened |
//! | `interface`, `listeners`, `local`, `socket_owner` | addresses, sockets at several of them, unix sockets, and the owner of a taken address |
//! | `hosts` | the ranks that share memory |
//! | `parent`, `registered`, `report` | the launcher: its end, its record of joined ranks, and its report of a rank that ended early |

mod acceptor;
pub(crate) mod announcement;
mod broadcast;
pub(crate) mod data_listener;
#[cfg(test)]
mod exits;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod handshake;
pub(crate) mod hosts;
pub mod interface;
pub(crate) mod join;
mod join_messages;
pub(crate) mod launcher_store;
pub(crate) mod lead;
pub(crate) mod listeners;
pub(crate) mod local;
pub(crate) mod message;
mod occupant;
pub(crate) mod opening;
pub(crate) mod parent;
pub(crate) mod peer_info;
mod pending;
mod poller;
pub(crate) mod private_file;
pub(crate) mod reachable;
pub(crate) mod registered;
mod registry;
mod rejections;
mod rendezvous;
pub(crate) mod report;
pub(crate) mod secret;
#[cfg(test)]
pub(crate) mod seeds;
#[cfg(test)]
mod simulated;
mod socket_owner;
pub(crate) mod store;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod variables;

pub use crate::system::environment::{variable, variable_os};
pub use handshake::random;
pub use launcher_store::meets_through_store;
pub(crate) use listeners::Accept;
pub(crate) use local::{abstract_address, same_user};
pub(crate) use rendezvous::ListenContext;
pub use rendezvous::{Inherited, Rendezvous};
pub use store::Store;
pub(crate) use stream::Listener;
pub(crate) use variables::parse_number;
pub use variables::{Launcher, MAX_SIZE, Placement, host_and_port, of_launchers, warn_of_rank_given};

use std::io;
use std::time::Duration;

/// Longest backlog of a listener, in connections. The system may keep fewer.
pub const QUEUE: i32 = 4096;

/// Longest duration that is added to a clock, or passed to the system: one year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns true if a read or write failed only because its timeout passed.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Returns true if the peer has closed the connection, or its process has ended.
pub(crate) fn is_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns true if a call failed for lack of descriptors or memory, so that an immediate retry would fail, too.
pub fn exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].contains(&errno))
}
