//! Network interfaces, and by which of them this machine reaches the place where the ranks meet.

use super::report::Report;
use hexagram::{Meeting, Placement};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::ptr;

pub(super) fn check(report: &mut Report, placement: Option<&Placement>) {
    report.title("interfaces");
    let found = match addresses() {
        Ok(found) => found,
        Err(cause) => {
            return report.bad(&format!("the system does not tell: {cause}; see whether /sys is mounted"));
        }
    };
    let mut by_name = BTreeMap::<&str, Vec<String>>::new();
    for (name, address) in &found {
        by_name.entry(name).or_default().push(address.to_string());
    }
    for (name, addresses) in &by_name {
        report.good(&format!("{name}: {}", addresses.join(", ")));
    }
    if !found.iter().any(|(_, address)| address.is_loopback()) {
        report.bad("no loopback address is up, at which ranks of one machine meet; `ip link set lo up`");
    }
    let meeting = placement.map(|placement| &placement.meeting);
    if let Some(meeting @ (Meeting::Tcp { .. } | Meeting::Inherited(_))) = meeting {
        route(report, &meeting.to_string(), &found);
    }
}

/// By which interface packets to `meeting` leave.
fn route(report: &mut Report, meeting: &str, found: &[(String, IpAddr)]) {
    match source(meeting) {
        Ok(ours) => {
            let named = found.iter().find(|(_, address)| *address == ours);
            let name = named.map_or("an interface without a name", |(name, _)| name);
            report.good(&format!("{name}, {ours}: routes to the meeting address {meeting}"));
        }
        Err(cause) => report.bad(&format!(
            "nothing routes to the meeting address {meeting}: {cause}; correct HEXAGRAM_ADDR or MASTER_ADDR, or the route"
        )),
    }
}

/// This machine's address as `meeting` would see it. To connect a datagram socket asks for the route and sends nothing.
fn source(meeting: &str) -> io::Result<IpAddr> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in meeting.to_socket_addrs()? {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match asked {
            Ok(ours) => return Ok(ours.ip()),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

/// Addresses of the interfaces that are up.
fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first = ptr::null_mut();
    // SAFETY: on success the system stores the head of a list that is ours until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: each entry of the list is valid until it is freed below, and the last one's successor is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the name is a C string, and the address null or of the size that its family says.
        let (name, address) = unsafe { (CStr::from_ptr(entry.ifa_name), address(entry.ifa_addr)) };
        if let Some(address) = address.filter(|_| entry.ifa_flags & libc::IFF_UP as u32 != 0) {
            found.push((name.to_string_lossy().into_owned(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the head that `getifaddrs` gave, freed once, and nothing of the list is borrowed any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `address` is null, or points to a socket address of the size that its family says.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one of these; the system aligns its own.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_routes_to_itself() {
        let found = addresses().unwrap();
        assert!(found.contains(&("lo".into(), Ipv4Addr::LOCALHOST.into())), "{found:?}");
        assert_eq!(source("127.0.0.1:29400").unwrap(), Ipv4Addr::LOCALHOST);
        assert!(source("255.255.255.255:1").is_err());
    }
}
