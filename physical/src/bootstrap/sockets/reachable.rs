//! Finds the address on the host of rank 0 that ranks of other hosts can reach: the one from which the kernel routes
//! to them.

#![allow(clippy::disallowed_methods, reason = "looks up the route to a host, and sends nothing")]

use super::interface::interfaces;
use crate::error::{Error, Result};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Maximum number of addresses that a rank announces for its host.
const MOST: usize = 8;
/// Bytes of one address: its kind (0, 4 or 6), and the address.
const RECORD: usize = 17;
/// Bytes of the addresses of one host.
pub(crate) const BYTES: usize = MOST * RECORD;

/// Returns the addresses of this host that other hosts may reach.
pub(crate) fn own() -> Vec<IpAddr> {
    let reachable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let all = interfaces().unwrap_or_default();
    all.into_iter().map(|found| found.address).filter(reachable).take(MOST).collect()
}

/// Encodes the addresses of one host.
pub(crate) fn to_bytes(addresses: &[IpAddr]) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    for (address, record) in addresses.iter().zip(bytes.chunks_exact_mut(RECORD)) {
        match address {
            IpAddr::V4(address) => {
                record[0] = 4;
                record[1..5].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                record[0] = 6;
                record[1..].copy_from_slice(&address.octets());
            }
        }
    }
    bytes
}

/// Decodes the addresses of any number of hosts.
pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<IpAddr> {
    let parse = |record: &[u8]| match record {
        [4, a, b, c, d, ..] => Some(IpAddr::from([*a, *b, *c, *d])),
        [6, address @ ..] => <[u8; 16]>::try_from(address).ok().map(IpAddr::from),
        _ => None,
    };
    bytes.chunks_exact(RECORD).filter_map(parse).collect()
}

/// Returns the address from which this host reaches the first of `peers` that is on a different host.
pub(crate) fn towards(peers: &[IpAddr]) -> Result<IpAddr> {
    let own = own();
    // A bridge has the same address on every host with a bridge, and leads to no other host.
    let others = peers.iter().filter(|peer| !own.contains(peer));
    let route = |peer: &IpAddr| -> io::Result<IpAddr> {
        let any =
            if peer.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        // Sends nothing: the kernel only chooses the route.
        socket.connect((*peer, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    others.filter_map(|peer| route(peer).ok()).find(|ip| own.contains(ip)).ok_or_else(|| {
        Error::setup(
            "the host of rank 0 has no route to any address of the other hosts",
            "on the host of rank 0, choose the interface to the other hosts: HEXAGRAM_INTERFACE=eth0",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        let addresses: Vec<IpAddr> = ["10.1.2.3", "2001:db8::7"].map(|text| text.parse().unwrap()).into();
        let two_hosts = [to_bytes(&addresses), to_bytes(&addresses[..1])].concat();
        assert_eq!(from_bytes(&two_hosts), [addresses[0], addresses[1], addresses[0]]);
        assert!(from_bytes(&to_bytes(&[])).is_empty());
    }

    #[test]
    fn nobody_meets_on_loopback_or_at_an_address_that_both_hosts_have() {
        assert!(own().iter().all(|address| !address.is_loopback()));
        let error = towards(&own()).unwrap_err();
        assert!(error.to_string().contains("HEXAGRAM_INTERFACE"), "{error}");
        let loopback = "127.0.0.1".parse().unwrap();
        assert!(towards(&[loopback]).is_err());
    }
}
