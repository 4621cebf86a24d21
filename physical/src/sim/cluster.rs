//! Clusters: which ranks are on which hosts, and what links lie between them. Open this to make a cluster of another shape.

use super::link::LinkSpec;
use crate::error::{Error, Result};
use crate::launch::MAX_RANKS;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A place of a cluster: a rank, a host, or a switch.
pub(super) type Vertex = u32;

/// A cluster to simulate: ranks on hosts, and the links between them.
///
/// ```
/// use hexagram_physical::sim::{Cluster, LinkSpec};
/// use std::time::Duration;
///
/// let between: LinkSpec = "10gbit,50us".parse()?;
/// let within: LinkSpec = "300gbit,2us".parse()?;
/// let cluster = Cluster::flat(16, 4, between, within)?;
/// assert_eq!(cluster.hosts()[5], 1);
/// assert_eq!(cluster.latency(0, 1), Duration::from_micros(2));
/// assert_eq!(cluster.latency(0, 15), Duration::from_micros(50));
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Host of each rank.
    hosts: Vec<usize>,
    /// Number of places.
    places: usize,
    /// Links, each of which leads both ways.
    links: Vec<(Vertex, Vertex, LinkSpec)>,
}

/// Way that messages take from one rank to another.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Route {
    /// Links, and true for one that is followed against its direction.
    pub(super) links: Vec<(usize, bool)>,
}

impl Cluster {
    /// Returns ranks that are spread evenly over hosts, all of which hang on one switch that is never full. Each rank has
    /// a link of `within` to its host, and each host one of `between` to the switch; what they say is what a message
    /// between two ranks of a host, or of two hosts, meets.
    ///
    /// # Errors
    /// [`Error::Usage`] unless there are from 1 to [`MAX_RANKS`] ranks, and as many on every host.
    pub fn flat(ranks: usize, hosts: usize, between: LinkSpec, within: LinkSpec) -> Result<Self> {
        let mut cluster = Self::on_hosts(ranks, hosts, within)?;
        let switch = cluster.add_place();
        for host in 0..hosts {
            cluster.links.push((cluster.host(host), switch, between.half()));
        }
        Ok(cluster)
    }

    /// Returns the same with a switch in each rack of so many hosts, and one above them, which a rack reaches with the
    /// bandwidth of its hosts divided by `oversubscription`; two racks are `latency` farther apart than two hosts of one.
    ///
    /// # Errors
    /// As [`Cluster::flat`]; [`Error::Usage`] unless the racks are full and share at least as much as one host has.
    pub fn racks(
        ranks: usize,
        hosts: usize,
        (between, within): (LinkSpec, LinkSpec),
        hosts_per_rack: usize,
        oversubscription: f64,
        latency: Duration,
    ) -> Result<Self> {
        let mut cluster = Self::on_hosts(ranks, hosts, within)?;
        let fits = hosts_per_rack > 0 && hosts.is_multiple_of(hosts_per_rack);
        if !fits || !(1.0..=hosts_per_rack as f64).contains(&oversubscription) {
            let what = format!(
                "{hosts} hosts do not fill racks of {hosts_per_rack} with oversubscription {oversubscription}"
            );
            return Err(Error::usage(
                what,
                "use full racks, and an oversubscription from 1 to the hosts of a rack",
            ));
        }
        let top = cluster.add_place();
        let uplink = between.bandwidth * hosts_per_rack as f64 / oversubscription;
        for rack in 0..hosts / hosts_per_rack {
            let switch = cluster.add_place();
            cluster.links.push((switch, top, LinkSpec::new(uplink, latency / 2)));
            for host in rack * hosts_per_rack..(rack + 1) * hosts_per_rack {
                cluster.links.push((cluster.host(host), switch, between.half()));
            }
        }
        Ok(cluster)
    }

    /// Returns sites of as many hosts each, in a ring of links `wide`; a site's hosts hang on one switch.
    ///
    /// # Errors
    /// As [`Cluster::flat`]; [`Error::Usage`] unless each site has as many hosts.
    pub fn sites(
        ranks: usize,
        hosts: usize,
        (between, within): (LinkSpec, LinkSpec),
        sites: usize,
        wide: LinkSpec,
    ) -> Result<Self> {
        let mut cluster = Self::on_hosts(ranks, hosts, within)?;
        if sites == 0 || !hosts.is_multiple_of(sites) {
            let what = format!("{hosts} hosts cannot be spread evenly over {sites} sites");
            return Err(Error::usage(what, "use a number of sites that divides that of hosts"));
        }
        let switches: Vec<Vertex> = (0..sites).map(|_| cluster.add_place()).collect();
        for host in 0..hosts {
            let switch = switches[host * sites / hosts];
            cluster.links.push((cluster.host(host), switch, between.half()));
        }
        // Two sites have one link, and one has none.
        for site in 0..if sites > 2 { sites } else { sites - 1 } {
            cluster.links.push((switches[site], switches[(site + 1) % sites], wide));
        }
        Ok(cluster)
    }

    /// Returns ranks on hosts that have no links yet.
    fn on_hosts(ranks: usize, hosts: usize, within: LinkSpec) -> Result<Self> {
        if !(1..=MAX_RANKS).contains(&ranks) || hosts == 0 || !ranks.is_multiple_of(hosts) {
            let what = format!("{ranks} ranks cannot be spread evenly over {hosts} hosts");
            return Err(Error::usage(
                what,
                format!("ask for 1 to {MAX_RANKS} ranks, and as many for every host"),
            ));
        }
        let of_ranks: Vec<usize> = (0..ranks).map(|rank| rank * hosts / ranks).collect();
        let to_host =
            |(rank, host): (usize, &usize)| (rank as Vertex, (ranks + host) as Vertex, within.half());
        let links = of_ranks.iter().enumerate().map(to_host).collect();
        Ok(Cluster { hosts: of_ranks, places: ranks + hosts, links })
    }

    fn add_place(&mut self) -> Vertex {
        self.places += 1;
        (self.places - 1) as Vertex
    }

    fn host(&self, host: usize) -> Vertex {
        (self.hosts.len() + host) as Vertex
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the host of each rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Returns the numbers of the links of a host to what are not its ranks.
    pub(super) fn links_of(&self, host: usize) -> Vec<usize> {
        let place = self.host(host);
        let others = |(a, b): (Vertex, Vertex)| if a == place { b } else { a };
        let leads_out = |(a, b, _): &(Vertex, Vertex, LinkSpec)| {
            (*a == place || *b == place) && others((*a, *b)) as usize >= self.ranks()
        };
        (0..self.links.len()).filter(|link| leads_out(&self.links[*link])).collect()
    }

    /// Returns the links, without the places that they connect.
    pub(super) fn links(&self) -> impl Iterator<Item = &LinkSpec> {
        self.links.iter().map(|(_, _, link)| link)
    }

    /// Returns the latency of a message from one rank to another, without jitter.
    ///
    /// # Panics
    /// If there are no such ranks.
    pub fn latency(&self, from: usize, to: usize) -> Duration {
        let route = Routes::new(self).route(from, to);
        route.links.iter().map(|(link, _)| self.links[*link].2.latency).sum()
    }
}

/// Finder of routes, which remembers them between hosts.
pub(super) struct Routes {
    hosts: Vec<usize>,
    /// For each place: links from it, whether they are followed against their direction, and where they lead.
    from: Vec<Vec<(usize, bool, Vertex)>>,
    between: HashMap<(usize, usize), Route>,
}

impl Routes {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let mut from = vec![Vec::new(); cluster.places];
        for (number, (a, b, _)) in cluster.links.iter().enumerate() {
            from[*a as usize].push((number, false, *b));
            from[*b as usize].push((number, true, *a));
        }
        Routes { hosts: cluster.hosts.clone(), from, between: HashMap::new() }
    }

    /// Returns the way from one rank to another: none to itself; by the host's links on one host; otherwise the shortest
    /// from host to host, as the links of ranks are their host's affair.
    pub(super) fn route(&mut self, from: usize, to: usize) -> Route {
        let ranks = self.hosts.len();
        let here = self.hosts[from];
        let there = self.hosts[to];
        if from == to {
            return Route::default();
        }
        if here == there {
            return self.shortest(from as Vertex, to as Vertex);
        }
        if let Some(route) = self.between.get(&(here, there)) {
            return route.clone();
        }
        let route = self.shortest((ranks + here) as Vertex, (ranks + there) as Vertex);
        self.between.insert((here, there), route.clone());
        route
    }

    /// Returns the way with fewest links; of several, the one whose links come first.
    fn shortest(&self, from: Vertex, to: Vertex) -> Route {
        let mut way: Vec<Option<(usize, bool, Vertex)>> = vec![None; self.from.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(place) = queue.pop_front() {
            if place == to {
                break;
            }
            for (link, back, next) in &self.from[place as usize] {
                if *next != from && way[*next as usize].is_none() {
                    way[*next as usize] = Some((*link, *back, place));
                    queue.push_back(*next);
                }
            }
        }
        let mut links = Vec::new();
        let mut place = to;
        while let Some((link, back, before)) = way[place as usize] {
            links.push((link, back));
            place = before;
        }
        links.reverse();
        Route { links }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> LinkSpec {
        text.parse().unwrap()
    }

    #[test]
    fn routes_are_short_and_the_same_both_ways() {
        let between = link("10gbit,50us");
        let within = link("300gbit,2us");
        let millis = Duration::from_millis;
        let racks = Cluster::racks(16, 8, (between, within), 4, 4.0, millis(1)).unwrap();
        let sites = Cluster::sites(8, 8, (between, within), 4, link("1gbit,20ms")).unwrap();
        for (cluster, farthest) in [(&racks, millis(1)), (&sites, millis(40))] {
            let last = cluster.ranks() - 1;
            let mut routes = Routes::new(cluster);
            for (a, b) in [(0, 1), (0, last), (1, last / 2), (0, last / 2 + 1)] {
                let turned = routes.route(b, a).links.into_iter().rev().map(|(link, back)| (link, !back));
                assert_eq!(routes.route(a, b).links, turned.collect::<Vec<_>>());
            }
            let most = (0..=last).map(|rank| cluster.latency(0, rank)).max().unwrap();
            assert_eq!(most, farthest + Duration::from_micros(50));
        }
        assert!(Routes::new(&racks).route(3, 3).links.is_empty());
    }

    #[test]
    fn what_is_no_cluster_is_refused() {
        let between = link("10gbit,50us");
        let within = link("300gbit,2us");
        assert!(Cluster::flat(10, 4, between, within).is_err());
        assert!(Cluster::flat(0, 1, between, within).is_err());
        assert!(Cluster::racks(8, 8, (between, within), 3, 1.0, Duration::ZERO).is_err());
        assert!(Cluster::racks(8, 8, (between, within), 4, 8.0, Duration::ZERO).is_err());
        assert!(Cluster::sites(8, 8, (between, within), 3, between).is_err());
    }
}
