//! The link between this rank and another: a place among the ranks of one host, or sockets.

/// Way of reaching a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerLink {
    /// Through shared memory; the peer has this place among the ranks of the host.
    Memory(usize),
    /// By TCP.
    Sockets,
}

/// Returns the links of a rank by peer: memory to the ranks at `places` for which `shares` is true, sockets to all
/// others.
pub(super) fn links(size: usize, places: &[usize], shares: impl Fn(usize) -> bool) -> Vec<PeerLink> {
    let mut links = vec![PeerLink::Sockets; size];
    for (place, rank) in places.iter().enumerate().filter(|(place, _)| shares(*place)) {
        links[*rank] = PeerLink::Memory(place);
    }
    links
}
