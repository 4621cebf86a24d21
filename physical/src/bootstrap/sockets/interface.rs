//! Network interfaces of this host: a rank accepts connections at the one in `HEXAGRAM_INTERFACE`, if it is set.

use crate::error::{Error, Result};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

/// Address of this host, and the interface that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, for example `eth0`.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Number of the interface for a link-local IPv6 address, which is ambiguous without it; 0 for all other addresses.
    pub scope: u32,
    /// True if the interface is up.
    pub is_up: bool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interface { name, address, scope, .. } = self;
        if *scope == 0 { write!(f, "{name} {address}") } else { write!(f, "{name} {address}%{name}") }
    }
}

/// Returns the addresses of this host, including those of interfaces that are down.
///
/// # Errors
/// [`Error::System`] if the system call fails.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut first = ptr::null_mut();
    // SAFETY: writes the head of a list to `first`, or fails.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let cause = io::Error::last_os_error();
        return Err(Error::system("list network interfaces", cause, "see getifaddrs(3)"));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: null at the end of the list, otherwise an entry of it, which no other thread changes.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry's name is a string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: an entry's address is null or a socket address of the family that it states.
        let address = unsafe { address(entry.ifa_addr) };
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        found.extend(address.map(|(address, scope)| Interface { name, address, scope, is_up }));
        next = entry.ifa_next;
    }
    // SAFETY: the list from above, to which no reference remains.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Decodes a socket address and its scope. Returns `None` for families other than IPv4 and IPv6.
///
/// # Safety
/// `socket` is null or points to a socket address as large as its family says.
unsafe fn address(socket: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    // SAFETY: as promised by the caller, for all three reads.
    unsafe {
        match i32::from(socket.as_ref()?.sa_family) {
            libc::AF_INET => {
                let inner = socket.cast::<libc::sockaddr_in>().read_unaligned();
                Some((Ipv4Addr::from(u32::from_be(inner.sin_addr.s_addr)).into(), 0))
            }
            libc::AF_INET6 => {
                let inner = socket.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((Ipv6Addr::from(inner.sin6_addr.s6_addr).into(), inner.sin6_scope_id))
            }
            _ => None,
        }
    }
}

/// Returns the address for `name`, with port 0: `name` is an address of this host, or an interface, which stands for
/// its first address. IPv4 comes before IPv6, and link-local addresses (`fe80::1%eth0`) come last.
///
/// # Errors
/// [`Error::Setup`] if this host has no such interface or address.
pub(crate) fn find(name: &str) -> Result<SocketAddr> {
    let name = name.trim();
    let all = interfaces()?;
    let text = name.trim_start_matches('[').trim_end_matches(']');
    let (text, zone) = text.split_once('%').map_or((text, None), |(text, zone)| (text, Some(zone)));
    let asked = text.parse::<IpAddr>().ok();
    let fits = |found: &&Interface| match asked {
        None => found.name == name,
        Some(asked) => {
            found.address == asked
                && zone.is_none_or(|zone| found.name == zone || zone.parse() == Ok(found.scope))
        }
    };
    let order = |found: &&Interface| (found.address.is_ipv6(), found.scope != 0);
    let socket = |found: &Interface| match found.address {
        IpAddr::V4(address) => SocketAddr::from((address, 0)),
        IpAddr::V6(address) => SocketAddrV6::new(address, 0, 0, found.scope).into(),
    };
    all.iter().filter(fits).min_by_key(order).map(socket).ok_or_else(|| {
        let known: Vec<String> = all.iter().map(Interface::to_string).collect();
        let what = format!("HEXAGRAM_INTERFACE={name} is not an interface or address of this host");
        Error::setup(what, format!("use one of: {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_name_and_by_address() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert_eq!(find("lo").unwrap(), loopback);
        assert_eq!(find(" 127.0.0.1 ").unwrap(), loopback);
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        // A machine may have none.
        for Interface { name, address, scope, .. } in
            interfaces().unwrap().into_iter().filter(|i| i.scope != 0)
        {
            for asked in [format!("{address}%{name}"), format!("[{address}%{scope}]")] {
                let SocketAddr::V6(found) = find(&asked).unwrap() else { panic!("{asked}") };
                assert_eq!((IpAddr::from(*found.ip()), found.scope_id()), (address, scope));
            }
            assert!(find(&format!("{address}%lo")).is_err());
        }
    }

    #[test]
    fn what_this_host_does_not_have_is_refused_with_what_it_has() {
        for name in ["eth99", "192.0.2.7", ""] {
            let error = find(name).unwrap_err().to_string();
            assert!(error.contains("lo 127.0.0.1"), "{error}");
        }
    }
}
