//! Unix sockets with abstract names: they have no file, end with their process, and are reachable on this host only.

#![allow(
    clippy::disallowed_methods,
    reason = "connects as the system does, for the runtime and for shared memory"
)]

use super::socket_owner::SocketOwner;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// Returns the address of an abstract unix socket.
pub(crate) fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Returns the system's name for the network namespace of this process, or an empty text.
pub(crate) fn network_namespace() -> String {
    std::fs::read_link("/proc/self/ns/net").unwrap_or_default().display().to_string()
}

/// Connects to the listener at `name`. The `timeout` also bounds every later read and write.
///
/// # Errors
/// `WouldBlock` if the backlog of the listener is full, for example because its process is stopped.
pub(crate) fn connect(name: &str, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Zero would mean forever.
    let timeout = Some(timeout.max(Duration::from_millis(1)));
    sockopt::set_socket_timeout(&socket, Timeout::Recv, timeout)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, timeout)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Refuses a connection whose peer runs as a different user, since any user of the host may take an abstract name.
pub(crate) fn same_user(stream: &UnixStream) -> io::Result<()> {
    if sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid() {
        return Ok(());
    }
    let theirs =
        SocketOwner::of_stream(stream).map_or_else(|| "another user's".to_owned(), |owner| owner.to_string());
    let what =
        format!("the other side is {theirs}, and this one of user {}", rustix::process::geteuid().as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    /// Simulates a stopped process: it listens, and accepts no connection.
    #[test]
    fn who_does_not_accept_is_not_waited_for_without_limit() {
        let name = format!("hexagram-test-local-{}", std::process::id());
        let listener = UnixListener::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        rustix::net::listen(listener.as_fd(), 1).unwrap();
        let (sender, outcomes) = mpsc::channel();
        std::thread::spawn(move || {
            let mut waiting = Vec::new();
            loop {
                match super::connect(&name, Duration::from_millis(50)) {
                    Ok(stream) => waiting.push(stream),
                    Err(error) => return sender.send((waiting.len(), error.kind())),
                }
            }
        });
        let (waiting, kind) = outcomes.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(waiting > 0 && kind == io::ErrorKind::WouldBlock, "{waiting} {kind}");
    }
}
