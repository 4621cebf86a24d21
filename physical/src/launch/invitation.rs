//! How the ranks of one job find and trust each other: a listening socket for rank 0 and a secret for all.
//!
//! Both are open files that the ranks inherit, so that nothing has a name. No port can be taken between choosing and
//! using it, two jobs never collide, and a launcher that is killed leaves no file behind. A wrapper script around the
//! program must therefore leave open files alone (`sudo` and Python's `subprocess` close them unless told otherwise).

use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::rand::GetRandomFlags;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where the ranks meet. Each is given what it needs of it by [`super::environment`].
pub(super) struct Invitation {
    /// Where rank 0 listens.
    pub(super) address: SocketAddr,
    /// The socket, until rank 0 takes it: nobody else may keep it open, or a dead rank 0 would still seem to listen.
    pub(super) listener: Option<OwnedFd>,
    /// The secret, 64 hexadecimal digits in a file of memory.
    pub(super) secret: Arc<OwnedFd>,
}

impl Invitation {
    /// Opens a socket on a free port of 127.0.0.1 for `ranks` callers and draws a fresh secret.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the system lets this process have neither socket nor memory.
    pub(super) fn open(ranks: usize) -> Result<Self> {
        let (listener, address) = listen(ranks).map_err(|cause| {
            Error::system("listen on 127.0.0.1", cause, "see whether this machine's loopback interface is up")
        })?;
        let secret = secret().map_err(|cause| {
            Error::system(
                "put the job's secret into memory",
                cause,
                "see whether memory and memfd_create are allowed",
            )
        })?;
        Ok(Invitation { address, listener: Some(listener.into()), secret: Arc::new(secret) })
    }
}

fn listen(ranks: usize) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // All ranks call at once, before rank 0 answers; the standard library's queue of 128 would lose some for a second.
    rustix::net::listen(&listener, i32::try_from(ranks).unwrap_or(i32::MAX))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// A file of memory that nobody can alter. Through `/proc/self/fd` each rank reads it from its start.
fn secret() -> io::Result<OwnedFd> {
    let mut bytes = [0; 32];
    // The system gives up to 256 random bytes whole, never a part.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    let mut digits = String::new();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    let memory =
        rustix::fs::memfd_create("hexagram-secret", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(digits.as_bytes())?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(file.into())
}
