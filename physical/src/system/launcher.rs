//! Common parts of a launcher and its ranks, for the crate hexagram-launch; not part of the interface.

pub use super::limits::{LAUNCHER as DESCRIPTORS, more_open_files, more_threads, raise_open_files};
pub use super::memory_file::memory_file;
pub use super::process::signal_all;
pub use crate::bootstrap::handshake::launchers::{accept_proof, prove, secret_of_start};
pub use crate::bootstrap::handshake::secret::draw;
pub use crate::bootstrap::handshake::{from_hex, hex};
pub use crate::bootstrap::meeting::attendance_file::{
    RegisteredFlags, VARIABLE as REGISTERED, note_checkpoint,
};
pub use crate::bootstrap::meeting::report::{EndedRank, RendezvousAccess};
pub use crate::bootstrap::parent::STARTERS;
pub use crate::bootstrap::private_file::read_given;
pub use crate::bootstrap::{
    MAX_SIZE, QUEUE, exhausted, host_and_port, of_launchers, random, warn_of_rank_given,
};
pub use crate::elastic::link::MEMBERSHIP;
pub use crate::elastic::messages::{MemberNotice, MemberRequest};
pub use crate::waiting::doorbell::Doorbell;
pub use crate::world::{RESTART, warn_of_unknown};

use crate::bootstrap::{ListenContext, Listener, Rendezvous};
use crate::error::Result;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Listens at the address of a job on several machines, where the other machines have `remote_ranks` ranks. Resolves
/// names within `patience`. Returns the sockets for rank 0.
///
/// # Errors
/// [`Error::System`](crate::Error::System), with `alternative` as a remedy, if the address is taken or belongs to a
/// different machine.
pub fn listen(
    host: String,
    port: u16,
    remote_ranks: usize,
    alternative: &'static str,
    patience: Duration,
) -> Result<Vec<OwnedFd>> {
    let context = ListenContext { remote_ranks, alternative, patience };
    match (Rendezvous::Tcp { host, port, agent: false }).listen(None, context)? {
        Listener::Tcp(listeners, _) => Ok(listeners.into_files()),
        Listener::Local(listener) => Ok(vec![listener.into()]),
    }
}
