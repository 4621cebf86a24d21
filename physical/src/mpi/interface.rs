//! Finds the address of rank 0's host that ranks of other hosts can reach: the one from which the kernel routes to
//! them.

use crate::bootstrap::interface::interfaces;
use crate::error::{Error, Result};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Most addresses that a rank announces for its host.
const MOST: usize = 8;
/// Bytes of one address: its kind (0, 4 or 6), and the address.
const RECORD: usize = 17;

/// Returns the addresses of this host that others may reach.
pub(super) fn own() -> Vec<IpAddr> {
    let reachable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let all = interfaces().unwrap_or_default();
    all.into_iter().map(|found| found.address).filter(reachable).take(MOST).collect()
}

/// Encodes the addresses of one host.
pub(super) fn to_bytes(addresses: &[IpAddr]) -> Vec<u8> {
    let mut bytes = vec![0; MOST * RECORD];
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
pub(super) fn from_bytes(bytes: &[u8]) -> Vec<IpAddr> {
    let parse = |record: &[u8]| match record {
        [4, a, b, c, d, ..] => Some(IpAddr::from([*a, *b, *c, *d])),
        [6, address @ ..] => <[u8; 16]>::try_from(address).ok().map(IpAddr::from),
        _ => None,
    };
    bytes.chunks_exact(RECORD).filter_map(parse).collect()
}

/// Returns the address from which this host reaches the first of `peers` that is not its own.
pub(super) fn towards(peers: &[IpAddr]) -> Result<IpAddr> {
    let own = own();
    // A bridge has the same address on every host that has one: it leads to no other host.
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
            "rank 0's host has no route to any address of the other hosts",
            "name the interface of rank 0's host that leads to the others: HEXAGRAM_INTERFACE=eth0",
        )
    })
}
