//! Network interfaces of this host: where a rank accepts connections if the user wants to choose.

use crate::error::{Error, Result};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// The addresses of this host, each with the name of its interface.
///
/// # Errors
/// [`Error::System`] if the system does not tell.
pub fn interfaces() -> Result<Vec<(String, IpAddr)>> {
    let mut first = ptr::null_mut();
    // SAFETY: writes the head of a list to `first`, or fails.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let cause = io::Error::last_os_error();
        return Err(Error::system("list network interfaces", cause, "see getifaddrs(3)"));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: null at the end of the list, otherwise an entry of it, which nobody else changes.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry's name is a string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: an entry's address is null or a socket address of the family that it states.
        found.extend(unsafe { address(entry.ifa_addr) }.map(|address| (name, address)));
        next = entry.ifa_next;
    }
    // SAFETY: the list from above, of which nothing is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `socket` is null or points to a socket address as large as its family says.
unsafe fn address(socket: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as promised by the caller, for all three reads.
    unsafe {
        match i32::from(socket.as_ref()?.sa_family) {
            libc::AF_INET => {
                let inner = socket.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(inner.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let inner = socket.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(inner.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// The address that `name` means: one of this host's, or the first of the interface of that name, IPv4 before IPv6.
pub(crate) fn find(name: &str) -> Result<IpAddr> {
    let name = name.trim();
    let all = interfaces()?;
    let asked = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    // A link-local address means nothing without its interface.
    let useful = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut fitting: Vec<IpAddr> = all
        .iter()
        .filter(|(interface, address)| asked.map_or(interface == name, |asked| asked == *address))
        .map(|(_, address)| *address)
        .filter(useful)
        .collect();
    fitting.sort_by_key(IpAddr::is_ipv6);
    fitting.first().copied().ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|(name, address)| format!("{name} {address}")).collect();
        let what = format!("HEXAGRAM_INTERFACE={name} is no interface or address of this host");
        Error::setup(what, format!("use one of: {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_name_and_by_address() {
        assert_eq!(find("lo").unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(find(" 127.0.0.1 ").unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn what_this_host_does_not_have_is_refused_with_what_it_has() {
        for name in ["eth99", "192.0.2.7", ""] {
            let error = find(name).unwrap_err().to_string();
            assert!(error.contains("lo 127.0.0.1"), "{error}");
        }
    }
}
