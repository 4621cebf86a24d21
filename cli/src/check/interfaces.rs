//! Network interfaces, and the interface by which this machine reaches the rendezvous address.

use super::report::CheckReport;
use hexagram::physical::bootstrap::interface::{Interface, interfaces};
use hexagram::{Placement, Rendezvous};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

pub(super) fn check(report: &mut CheckReport, placement: Option<&Placement>) {
    report.title("interfaces");
    let mut found = match interfaces() {
        Ok(found) => found,
        Err(error) => return report.bad(&error.to_string()),
    };
    found.retain(|found| found.is_up);
    let mut by_name = BTreeMap::<&str, Vec<String>>::new();
    for Interface { name, address, .. } in &found {
        by_name.entry(name).or_default().push(address.to_string());
    }
    for (name, addresses) in &by_name {
        report.good(&format!("{name}: {}", addresses.join(", ")));
    }
    if !found.iter().any(|found| found.address.is_loopback()) {
        report.bad("loopback is down, and ranks of one machine need it; run `ip link set lo up`");
    }
    let rendezvous = placement.map(|placement| &placement.rendezvous);
    if let Some(rendezvous @ (Rendezvous::Tcp { .. } | Rendezvous::Inherited(_))) = rendezvous {
        route(report, &rendezvous.to_string(), &found);
    }
}

/// Reports the interface of the route to `rendezvous`.
fn route(report: &mut CheckReport, rendezvous: &str, found: &[Interface]) {
    match source(rendezvous) {
        Ok(ours) => {
            let named = found.iter().find(|found| found.address == ours);
            let name = named.map_or("an interface without a name", |found| &found.name);
            report.good(&format!("{name}, {ours}: routes to the rendezvous address {rendezvous}"));
        }
        Err(cause) => report.bad(&format!(
            "no route to the rendezvous address {rendezvous}: {cause}; correct HEXAGRAM_ADDR or MASTER_ADDR, or the route"
        )),
    }
}

/// Returns the address of this machine as `rendezvous` would see it. Connecting a datagram socket looks up the route
/// and sends nothing.
fn source(rendezvous: &str) -> io::Result<IpAddr> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in rendezvous.to_socket_addrs()? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_routes_to_itself() {
        let found = interfaces().unwrap();
        let is_loopback = |found: &Interface| found.name == "lo" && found.address == Ipv4Addr::LOCALHOST;
        assert!(found.iter().any(is_loopback), "{found:?}");
        assert_eq!(source("127.0.0.1:29400").unwrap(), Ipv4Addr::LOCALHOST);
        assert!(source("255.255.255.255:1").is_err());
    }
}
