//! Rendezvous of the ranks of a job, prepared by the launcher: a listening socket for rank 0 and a secret for all
//! ranks.
//!
//! Both are open files that the ranks inherit, so that neither has a name. No other process can take the port before
//! it is used, two jobs never collide, and a killed launcher leaves no file behind. Therefore a wrapper script around
//! the program must keep open files (`sudo` and Python's `subprocess` close them by default).

use crate::Job;
use hexagram_physical::launcher::{QUEUE, RegisteredFlags, draw, memory_file, read_given};
use hexagram_physical::{Error, Result};
use rustix::fs::{Mode, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Rendezvous of a job. [`super::environment`] gives each rank its part.
pub(super) struct RendezvousSetup {
    /// Address of rank 0.
    pub(super) address: String,
    /// Listening sockets, on the machine of rank 0 and until rank 0 takes them. If another process kept them open, a
    /// dead rank 0 would still seem to listen.
    pub(super) listeners: Vec<OwnedFd>,
    /// Secret, in a memory file.
    pub(super) secret: Arc<OwnedFd>,
    /// Bytes of the secret, for this process.
    pub(super) secret_bytes: Vec<u8>,
    /// Flags in which the ranks note that rank 0 has registered them.
    pub(super) registered: RegisteredFlags,
    /// Connection of the next process to the launcher, in an elastic job.
    pub(super) membership: Option<OwnedFd>,
}

impl RendezvousSetup {
    /// Opens the rendezvous of `job`: on one machine at a free port of 127.0.0.1 with a fresh secret, on several as
    /// the job specifies. With `secret`, one start on several machines.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the system provides no socket or memory, or the secret cannot be read.
    pub(super) fn open(job: &Job, secret: Option<&[u8]>) -> Result<Self> {
        let in_memory = |secret: &[u8]| {
            let remedy = "check that free memory exists and memfd_create is allowed";
            let kept = keep(secret)
                .map_err(|cause| Error::system("put the job's secret into memory", cause, remedy))?;
            Ok::<_, Error>(Arc::new(kept))
        };
        let registered = RegisteredFlags::open(job.ranks).map_err(|cause| {
            Error::system(
                "make a file in memory",
                cause,
                "check that free memory exists and memfd_create is allowed",
            )
        })?;
        if let Some(node) = &job.node {
            let given = || read_given(&node.secret.to_string_lossy());
            let secret_bytes = secret.map_or_else(given, |secret| Ok(secret.to_vec()))?;
            let secret = in_memory(&secret_bytes)?;
            // The ranks of an elastic job meet through its keeper.
            let is_met = job.elastic.is_none();
            let listeners = if is_met { node.listen(job.size() - job.ranks)? } else { Vec::new() };
            let address = node.address.clone();
            let membership = None;
            return Ok(RendezvousSetup { address, listeners, secret, secret_bytes, registered, membership });
        }
        let (listener, address) = listen().map_err(|cause| {
            let remedy = "bring the loopback interface up (ip link set lo up)";
            Error::system("open a rendezvous at 127.0.0.1", cause, remedy)
        })?;
        let secret_bytes = draw().map_err(Error::no_random)?.into_bytes();
        let secret = in_memory(&secret_bytes)?;
        let address = address.to_string();
        let listeners = vec![listener.into()];
        let membership = None;
        Ok(RendezvousSetup { address, listeners, secret, secret_bytes, registered, membership })
    }
}

/// Listens at a free port of the loopback interface, and checks that it can be reached.
fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // All ranks connect at the same time, before rank 0 answers; the default queue of 128 in the standard library
    // would lose some connections for a second.
    rustix::net::listen(&listener, QUEUE)?;
    let address = listener.local_addr()?;
    // If loopback is down, a socket can listen there, but connections fail.
    let call = TcpStream::connect_timeout(&address, Duration::from_secs(10))?.local_addr()?;
    while listener.accept()?.1 != call {}
    Ok((listener, address))
}

/// Returns a sealed memory file, where the system supports seals. Each rank reads it from its start, through
/// `/proc/self/fd`.
fn keep(secret: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memory_file("hexagram-secret")?);
    file.write_all(secret)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    match rustix::fs::fcntl_add_seals(&file, seals) {
        // The fallback without memfd is a regular file, which has no seals.
        Ok(()) | Err(Errno::INVAL) => Ok(file.into()),
        Err(cause) => Err(cause.into()),
    }
}
