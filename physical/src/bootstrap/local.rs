//! Unix sockets with abstract names: no file, gone with their process, reachable on this host only. Open this to see who
//! may talk over them, and what happens where nobody answers.

use super::holder::Holder;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// Returns the address of an abstract unix socket.
pub(crate) fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Connects with whoever listens at `name`; every later read and write is bounded by `patience`, too.
///
/// # Errors
/// `WouldBlock` if that process does not accept connections, stopped as it may be, and those that wait already are as
/// many as may wait.
pub(crate) fn call(name: &str, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Zero would mean for ever.
    let patience = Some(patience.max(Duration::from_millis(1)));
    sockopt::set_socket_timeout(&socket, Timeout::Recv, patience)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, patience)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Refuses a connection across users: an abstract name is free for anyone on the host to take.
pub(crate) fn same_user(stream: &UnixStream) -> io::Result<()> {
    if sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid() {
        return Ok(());
    }
    let theirs =
        Holder::of_stream(stream).map_or_else(|| "another user's".to_owned(), |holder| holder.to_string());
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

    /// As a process does that is stopped: it listens, and accepts nobody.
    #[test]
    fn who_does_not_accept_is_not_waited_for_without_limit() {
        let name = format!("hexagram-test-local-{}", std::process::id());
        let listener = UnixListener::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        rustix::net::listen(listener.as_fd(), 1).unwrap();
        let (sender, outcomes) = mpsc::channel();
        std::thread::spawn(move || {
            let mut waiting = Vec::new();
            loop {
                match call(&name, Duration::from_millis(50)) {
                    Ok(stream) => waiting.push(stream),
                    Err(error) => return sender.send((waiting.len(), error.kind())),
                }
            }
        });
        let (waiting, kind) = outcomes.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(waiting > 0 && kind == io::ErrorKind::WouldBlock, "{waiting} {kind}");
    }
}
