//! How the ranks of one job find and trust each other: a listening socket for rank 0 and a secret for all.
//!
//! Both are open files that the ranks inherit, so that nothing has a name. No port can be taken between choosing and
//! using it, two jobs never collide, and a launcher that is killed leaves no file behind. A wrapper script around the
//! program must therefore leave open files alone (`sudo` and Python's `subprocess` close them unless told otherwise).

use super::Job;
use crate::bootstrap::QUEUE;
use crate::bootstrap::registered::RegisteredFlags;
use crate::bootstrap::secret::{draw, read_given};
use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Where the ranks meet. Each is given what it needs of it by [`super::environment`].
pub(super) struct RendezvousSetup {
    /// Where rank 0 listens.
    pub(super) address: String,
    /// The sockets, on the machine of rank 0 and until that takes them: nobody else may keep them open, or a dead rank 0
    /// would still seem to listen.
    pub(super) listeners: Vec<OwnedFd>,
    /// The secret, in a file of memory.
    pub(super) secret: Arc<OwnedFd>,
    /// The same, for this process.
    pub(super) secret_bytes: Vec<u8>,
    /// Where the ranks note that rank 0 knows them.
    pub(super) registered: RegisteredFlags,
}

impl RendezvousSetup {
    /// Opens what the ranks of `job` need: on one machine a free port of 127.0.0.1 and a fresh secret, else what the job
    /// gives.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the system lets this process have neither socket nor memory, or the secret cannot be read.
    pub(super) fn open(job: &Job) -> Result<Self> {
        let in_memory = |secret: &[u8]| {
            let remedy = "see whether memory and memfd_create are allowed";
            let kept = keep(secret)
                .map_err(|cause| Error::system("put the job's secret into memory", cause, remedy))?;
            Ok::<_, Error>(Arc::new(kept))
        };
        let registered = RegisteredFlags::open(job.ranks).map_err(|cause| {
            Error::system("make a file in memory", cause, "see whether memory and memfd_create are allowed")
        })?;
        if let Some(node) = &job.node {
            let secret_bytes = read_given(&node.secret.to_string_lossy())?;
            let secret = in_memory(&secret_bytes)?;
            let listeners = node.listen(job.size() - job.ranks)?;
            let address = node.address.clone();
            return Ok(RendezvousSetup { address, listeners, secret, secret_bytes, registered });
        }
        let (listener, address) = listen().map_err(|cause| {
            let remedy = "see whether this machine's loopback interface is up (ip link set lo up)";
            Error::system("let ranks meet at 127.0.0.1", cause, remedy)
        })?;
        let secret_bytes = draw().map_err(Error::no_random)?.into_bytes();
        let secret = in_memory(&secret_bytes)?;
        let address = address.to_string();
        Ok(RendezvousSetup { address, listeners: vec![listener.into()], secret, secret_bytes, registered })
    }
}

fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // All ranks call at once, before rank 0 answers; the standard library's queue of 128 would lose some for a second.
    rustix::net::listen(&listener, QUEUE)?;
    let address = listener.local_addr()?;
    // Where loopback is down, a socket can listen there, and nobody can call.
    let call = TcpStream::connect_timeout(&address, Duration::from_secs(10))?.local_addr()?;
    while listener.accept()?.1 != call {}
    Ok((listener, address))
}

/// A file of memory that nobody can alter. Through `/proc/self/fd` each rank reads it from its start.
fn keep(secret: &[u8]) -> io::Result<OwnedFd> {
    let memory =
        rustix::fs::memfd_create("hexagram-secret", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(secret)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(file.into())
}
