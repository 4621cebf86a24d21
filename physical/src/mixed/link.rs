//! What lies between this rank and another: a place among the ranks of one host, or sockets.

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerLink {
    /// Through shared memory, the peer having this place among the ranks of the host.
    Memory(usize),
    /// By TCP.
    Sockets,
}

/// The links of a rank by peer: memory to those at whose `places` there is some, sockets to all others.
pub(super) fn links(size: usize, places: &[usize], shares: impl Fn(usize) -> bool) -> Vec<PeerLink> {
    let mut links = vec![PeerLink::Sockets; size];
    for (place, rank) in places.iter().enumerate().filter(|(place, _)| shares(*place)) {
        links[*rank] = PeerLink::Memory(place);
    }
    links
}
