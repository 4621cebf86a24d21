//! Clusters: the ranks of each host, and the links between them.

pub(super) mod fault;
pub(super) mod link;
pub(super) mod shape;
pub(super) mod statement;
pub(super) mod topology;

use super::network::routes::Routes;
use crate::error::{Error, Result};
use link::LinkSpec;
use shape::Shape;
use std::time::Duration;

/// A place of a cluster: a rank, a host, or a switch.
pub(super) type Vertex = u32;

/// Largest number of ranks that a cluster has.
pub const MAX_RANKS: usize = 1 << 15;

/// A host to simulate: its ranks, and its links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostSpec {
    /// Number of ranks.
    pub ranks: usize,
    /// Link to other hosts: bandwidth and latency of a message between two such hosts on a switch; each host has half
    /// of the latency.
    pub between: LinkSpec,
    /// Link between its ranks: bandwidth and latency of a message between two of them.
    pub within: LinkSpec,
}

/// A cluster to simulate: ranks on hosts, and the links between them.
///
/// ```
/// use hexagram_physical::sim::{Cluster, HostSpec, LinkSpec, Shape};
/// use std::time::Duration;
///
/// let between: LinkSpec = "10gbit,50us".parse()?;
/// let within: LinkSpec = "300gbit,2us".parse()?;
/// let cluster = Cluster::flat(16, 4, between, within)?;
/// assert_eq!(cluster.hosts()[5], 1);
/// assert_eq!(cluster.latency(0, 1), Duration::from_micros(2));
/// assert_eq!(cluster.latency(0, 15), Duration::from_micros(50));
///
/// let hosts = [HostSpec { ranks: 4, between, within }; 6];
/// let racks: Shape = "racks 2 oversubscription=3 latency=10us".parse()?;
/// assert_eq!(Cluster::new(&hosts, racks)?.latency(0, 23), Duration::from_micros(60));
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Host of each rank.
    hosts: Vec<usize>,
    /// Number of hosts.
    host_count: usize,
    /// Names of the switches, which are the places after the ranks and the hosts.
    switches: Vec<String>,
    /// Links, each of which is bidirectional.
    links: Vec<(Vertex, Vertex, LinkSpec)>,
}

impl Cluster {
    /// Returns ranks that are spread evenly over hosts, all of which are connected to one switch without congestion.
    /// Each rank has a link of `within` to its host, and each host one of `between` to the switch; their values are
    /// those of a message between two ranks of a host, or of two hosts.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are from 1 to [`MAX_RANKS`] ranks, and the same number on every host.
    pub fn flat(ranks: usize, hosts: usize, between: LinkSpec, within: LinkSpec) -> Result<Self> {
        Self::new(&HostSpec::even(ranks, hosts, between, within)?, Shape::Flat)
    }

    /// Returns hosts that a shape connects.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are from 1 to [`MAX_RANKS`] ranks, at least one on every host, and the shape
    /// supports the number of hosts.
    pub fn new(hosts: &[HostSpec], shape: Shape) -> Result<Self> {
        let mut cluster = Self::unlinked(hosts)?;
        shape.connect(hosts, &mut cluster)?;
        Ok(cluster)
    }

    /// Returns ranks on hosts that have no links to each other.
    pub(super) fn unlinked(hosts: &[HostSpec]) -> Result<Self> {
        let ranks: usize = hosts.iter().map(|host| host.ranks).sum();
        if !(1..=MAX_RANKS).contains(&ranks) || hosts.iter().any(|host| host.ranks == 0) {
            let what = format!("{} hosts have {ranks} ranks together", hosts.len());
            let remedy = format!("use 1 to {MAX_RANKS} ranks, and one or more for every host");
            return Err(Error::usage(what, remedy));
        }
        let of_host = |(number, host): (usize, &HostSpec)| vec![number; host.ranks];
        let of_ranks: Vec<usize> = hosts.iter().enumerate().flat_map(of_host).collect();
        let to_host = |(rank, host): (usize, &usize)| {
            (rank as Vertex, (ranks + host) as Vertex, hosts[*host].within.half())
        };
        let links = of_ranks.iter().enumerate().map(to_host).collect();
        Ok(Cluster { hosts: of_ranks, host_count: hosts.len(), switches: Vec::new(), links })
    }

    /// Adds a switch.
    pub(super) fn add_switch(&mut self, name: String) -> Vertex {
        self.switches.push(name);
        (self.places() - 1) as Vertex
    }

    /// Adds a link.
    pub(super) fn add_link(&mut self, from: Vertex, to: Vertex, link: LinkSpec) {
        self.links.push((from, to, link));
    }

    /// Changes the link between two places, or adds it.
    pub(super) fn set_link(&mut self, from: Vertex, to: Vertex, link: LinkSpec) {
        let between =
            |(a, b, _): &&mut (Vertex, Vertex, LinkSpec)| [(from, to), (to, from)].contains(&(*a, *b));
        match self.links.iter_mut().find(between) {
            Some((_, _, present)) => *present = link,
            None => self.add_link(from, to, link),
        }
    }

    /// Returns a place by its name: `rank3`, `host0`, or the name of a switch.
    pub(super) fn place(&self, name: &str) -> Option<Vertex> {
        let numbered = |word: &str, count: usize| {
            let number: usize = name.strip_prefix(word)?.parse().ok()?;
            (number < count).then_some(number)
        };
        let switch = || self.switches.iter().position(|switch| switch == name);
        numbered("rank", self.ranks())
            .or_else(|| numbered("host", self.host_count).map(|host| self.ranks() + host))
            .or_else(|| switch().map(|switch| self.ranks() + self.host_count + switch))
            .map(|place| place as Vertex)
    }

    /// Returns the names of the switches.
    pub(super) fn switches(&self) -> &[String] {
        &self.switches
    }

    /// Returns the place of a host.
    pub(super) fn host(&self, host: usize) -> Vertex {
        (self.hosts.len() + host) as Vertex
    }

    /// Returns the number of places.
    pub(super) fn places(&self) -> usize {
        self.hosts.len() + self.host_count + self.switches.len()
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the host of each rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.host_count
    }

    /// Returns the numbers of the links of a host, except those to its ranks.
    pub(super) fn links_of(&self, host: usize) -> Vec<usize> {
        let place = self.host(host);
        let others = |(a, b): (Vertex, Vertex)| if a == place { b } else { a };
        let leads_out = |(a, b, _): &(Vertex, Vertex, LinkSpec)| {
            (*a == place || *b == place) && others((*a, *b)) as usize >= self.ranks()
        };
        (0..self.links.len()).filter(|link| leads_out(&self.links[*link])).collect()
    }

    /// Returns the links with the places that they connect.
    pub(super) fn ends(&self) -> &[(Vertex, Vertex, LinkSpec)] {
        &self.links
    }

    /// Returns the links, without the places that they connect.
    pub(super) fn links(&self) -> impl Iterator<Item = &LinkSpec> {
        self.links.iter().map(|(_, _, link)| link)
    }

    /// Returns the latency of a message from one rank to another, without jitter.
    ///
    /// # Panics
    /// If a rank is out of range.
    pub fn latency(&self, from: usize, to: usize) -> Duration {
        let route = Routes::new(self).route(from, to);
        route.links.iter().map(|(link, _)| self.links[*link].2.latency).sum()
    }
}

impl HostSpec {
    /// Returns hosts over which ranks are spread evenly.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are from 1 to [`MAX_RANKS`] ranks, and the same number for every host.
    pub fn even(ranks: usize, hosts: usize, between: LinkSpec, within: LinkSpec) -> Result<Vec<Self>> {
        if !(1..=MAX_RANKS).contains(&ranks) || hosts == 0 || !ranks.is_multiple_of(hosts) {
            let what = format!("{ranks} ranks cannot be spread evenly over {hosts} hosts");
            return Err(Error::usage(
                what,
                format!("use 1 to {MAX_RANKS} ranks, and the same number for every host"),
            ));
        }
        Ok(vec![HostSpec { ranks: ranks / hosts, between, within }; hosts])
    }
}
