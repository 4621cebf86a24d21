//! Connections between processes that do not belong to a transport: for start-up, heartbeats and failure reports.

use super::current;
use crate::bootstrap::sockets::local;
use crate::waiting::doorbell::timespec;
use rustix::event::PollFd;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

/// Waits until one of `sources` is ready, and records which are, or until `at_most` has passed; `None` waits forever.
/// Returns the number of ready ones.
///
/// # Errors
/// Those of poll(2).
pub fn poll(sources: &mut [PollFd<'_>], at_most: Option<Duration>) -> io::Result<usize> {
    match current() {
        Some(runtime) => runtime.poll(sources, at_most),
        None => Ok(rustix::event::poll(sources, at_most.map(timespec).as_ref())?),
    }
}

/// Returns the addresses of `host`, with `port`, within `patience`.
///
/// # Errors
/// Those of the resolver; `TimedOut` after `patience`.
pub fn resolve(host: &str, port: u16, patience: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Some(runtime) = current() {
        return runtime.resolve(host, port);
    }
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    within(patience, move || Ok((name.as_str(), port).to_socket_addrs()?.collect()))
}

/// Runs `ask` on a separate thread, which is abandoned if it takes longer than `patience`: getaddrinfo(3) has no
/// deadline.
fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, answer) = mpsc::channel();
    let work = move || drop(sender.send(ask()));
    thread::Builder::new().name("hexagram-resolve".to_owned()).spawn(work)?;
    answer.recv_timeout(patience).unwrap_or_else(|_| {
        let what = format!("the name is not resolved within {patience:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    })
}

/// Returns true if `address` is of this host: no others can be bound.
pub fn is_of_this_host(address: SocketAddr) -> bool {
    let mut any_port = address;
    any_port.set_port(0);
    match current() {
        Some(runtime) => runtime.listen(any_port).is_ok(),
        None => UdpSocket::bind(any_port).is_ok(),
    }
}

/// Connects to `address`, within `patience`.
///
/// # Errors
/// Those of connect(2); `TimedOut` after `patience`.
pub fn connect(address: &SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    match current() {
        Some(runtime) => runtime.connect(address, patience),
        None => TcpStream::connect_timeout(address, patience),
    }
}

/// Listens at `address`; port 0 stands for any free one.
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match current() {
        Some(runtime) => runtime.listen(address),
        None => TcpListener::bind(address),
    }
}

/// Connects to the process of this host that listens under the abstract `name`; every later read and write is bounded
/// by `patience`, too.
///
/// # Errors
/// `WouldBlock` if that process, which may be stopped, does not accept connections, and its backlog is full.
pub fn connect_local(name: &str, patience: Duration) -> io::Result<UnixStream> {
    match current() {
        Some(runtime) => runtime.connect_local(name, patience),
        None => local::connect(name, patience),
    }
}

/// Listens under the abstract `name`, for processes of this host only.
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen_local(name: &str) -> io::Result<UnixListener> {
    match current() {
        Some(runtime) => runtime.listen_local(name),
        None => UnixListener::bind_addr(&local::abstract_address(name)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_does_not_answer_is_left_at_the_deadline() {
        let (_kept, never) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(20), move || never.recv().map_err(io::Error::other));
        assert_eq!(hung.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let long = Duration::from_secs(60);
        assert_eq!(resolve("::1", 7, long).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(resolve("localhost", 7, long).unwrap().iter().all(|address| address.ip().is_loopback()));
    }
}
