//! The process that occupies the port or name that this process needs, as far as the kernel reveals it.
//!
//! The kernel table of sockets contains the user and the inode of the socket of each port. The list of open files
//! identifies the process, but only its own user and root may read it. For an abstract unix socket, the kernel
//! reveals the listener to every caller.

use crate::runtime;
use rustix::net::sockopt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{fmt, fs};

/// Longest time for a connection to be accepted, as the listening process may be stopped.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Process that listens at an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SocketOwner {
    /// User id of the process.
    user: u32,
    /// Process id. `None` if this user may not see it.
    pid: Option<u32>,
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            None => f.write_str("a process that only its own user can see")?,
            Some(pid) => {
                let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                write!(f, "process {pid} ({})", if program.is_empty() { "unknown" } else { program.trim() })?;
            }
        }
        write!(f, " of user {}", self.user)?;
        name_of(self.user).map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl SocketOwner {
    /// Returns the process that listens at this address of this host, or at its port on all addresses.
    pub(crate) fn of_address(address: SocketAddr) -> Option<Self> {
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let rows = tables.into_iter().flat_map(|table| {
            let text = fs::read_to_string(table).unwrap_or_default();
            text.lines().filter_map(SocketTableRow::parse).collect::<Vec<_>>()
        });
        let listens = |row: &SocketTableRow| {
            let everywhere = row.address.ip().is_unspecified();
            row.address.port() == address.port() && (everywhere || row.address.ip() == address.ip())
        };
        let row = rows.into_iter().find(listens)?;
        Some(SocketOwner { user: row.user, pid: process_with(&format!("socket:[{}]", row.socket)) })
    }

    /// Returns the process that listens at this abstract unix socket.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let stream = runtime::connect_local(name, CONNECT_TIMEOUT).ok()?;
        Self::of_stream(&stream)
    }

    /// Returns the process at the other end of a unix socket.
    pub(crate) fn of_stream(stream: &UnixStream) -> Option<Self> {
        let peer = sockopt::socket_peercred(stream).ok()?;
        // The kernel writes 0 for a process of a different process namespace.
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok();
        Some(SocketOwner { user: peer.uid.as_raw(), pid })
    }
}

/// Row of the kernel's table about a listening socket.
struct SocketTableRow {
    /// Address of the socket.
    address: SocketAddr,
    /// User id of its owner.
    user: u32,
    /// Inode of the socket.
    socket: u64,
}

impl SocketTableRow {
    /// Decodes a row. Returns `None` if its socket does not listen.
    fn parse(line: &str) -> Option<Self> {
        const LISTENS: &str = "0A";
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, address, _, LISTENS, _, _, _, user, _, socket, ..] = fields[..] else { return None };
        let (ip, port) = address.split_once(':')?;
        let address = SocketAddr::new(parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
        Some(SocketTableRow { address, user: user.parse().ok()?, socket: socket.parse().ok()? })
    }
}

/// Decodes an address in which every four bytes are a hexadecimal number in this machine's byte order.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at..at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let words = [word(0)?, word(8)?, word(16)?, word(24)?];
    let bytes = <[u8; 16]>::try_from(words.concat()).ok()?;
    Some(Ipv6Addr::from(bytes).to_canonical())
}

/// Returns a process that has this file open, among those that this user may inspect.
fn process_with(file: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.flat_map(|entry| fs::read_link(entry.path())).any(|link| link.as_os_str() == file)
    })
}

/// Returns the name of a user in `/etc/passwd`.
fn name_of(user: u32) -> Option<String> {
    let known = fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = known.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::abstract_address;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    fn myself() -> SocketOwner {
        SocketOwner { user: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) }
    }

    #[test]
    fn who_listens_at_a_port_is_found() {
        for ip in ["127.0.0.1", "0.0.0.0", "::1"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            let mut address = listener.local_addr().unwrap();
            if ip == "0.0.0.0" {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            becomes(address, Some(myself()));
            drop(listener);
            becomes(address, None);
        }
    }

    /// Waits until `want` listens at `address`: a process that another test starts holds all descriptors of this one
    /// until its program begins.
    fn becomes(address: SocketAddr, want: Option<SocketOwner>) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let found = SocketOwner::of_address(address);
            if found == want {
                return;
            }
            assert!(Instant::now() < until, "{address}: {found:?} instead of {want:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_listens_at_a_name_is_found_and_named() {
        let name = format!("hexagram-owner-{}", std::process::id());
        assert_eq!(SocketOwner::of_name(&name), None);
        let _listener = UnixListener::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        let owner = SocketOwner::of_name(&name).unwrap();
        assert_eq!(owner, myself());
        let said = owner.to_string();
        assert!(said.starts_with(&format!("process {} (", std::process::id())), "{said}");
        assert!(said.contains(&format!(") of user {}", owner.user)), "{said}");
    }

    #[test]
    fn both_families_are_decoded() {
        let decoded = |word: u32| format!("{:08X}", word.to_be());
        let v4 = decoded(0x7f00_0001);
        assert_eq!(parse_ip(&v4), Some(Ipv4Addr::LOCALHOST.into()));
        let v6 = [0xfe80_0000, 0, 0, 1].map(decoded).concat();
        assert_eq!(parse_ip(&v6), Some("fe80::1".parse().unwrap()));
        for text in ["", "0", "0100007G", "żżżż"] {
            assert_eq!(parse_ip(text), None, "{text}");
        }
    }
}
