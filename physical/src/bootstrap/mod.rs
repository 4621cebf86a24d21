//! Start-up: turns the variables of a launcher into a world of connected ranks.
//!
//! Start here to follow a rank from its environment to its first endpoint:
//!
//! | module | content |
//! |---|---|
//! | `variables` | rank, size, and rendezvous of the job |
//! | `meeting` | the address of the rendezvous, the sides of a member and of rank 0, and their messages |
//! | `stores` | ranks that meet through a key-value store, their own or that of a launcher with PMI or PMIx |
//! | `handshake` | the secret that all ranks of a job share, its proof, and connections that have not proved it yet |
//! | `sockets` | addresses, listeners, unix sockets, and the data connections of a transport |
//! | `hosts` | the ranks that share memory |
//! | `parent`, `private_file` | the end of the launcher; files that only this user may read |
//!
//! The connections that stay open afterwards are in the module `control`.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
pub(crate) mod fuzz_seeds;
pub(crate) mod handshake;
pub(crate) mod hosts;
pub(crate) mod meeting;
pub(crate) mod parent;
pub(crate) mod private_file;
pub(crate) mod sockets;
pub(crate) mod stores;
#[cfg(test)]
mod tests;
mod variables;

pub use crate::system::environment::{variable, variable_os};
pub use handshake::random;
pub(crate) use meeting::rendezvous::ListenContext;
pub use meeting::rendezvous::{Inherited, Rendezvous};
pub use sockets::interface;
pub(crate) use sockets::listeners::Accept;
pub(crate) use sockets::local::{abstract_address, same_user};
pub(crate) use sockets::stream::Listener;
pub use stores::launcher_store::meets_through_store;
pub use stores::store::Store;
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
