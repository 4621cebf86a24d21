//! Shapes of clusters: the switches between hosts, and how they are written.

use super::link::{LinkSpec, WrittenDuration, duration};
use super::statement::StatementWords;
use super::{Cluster, HostSpec};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Switches and links that connect the hosts of a cluster. The text form is as in the example:
///
/// ```
/// use hexagram_physical::sim::Shape;
/// use std::time::Duration;
///
/// for text in ["flat", "racks 4", "racks 4 oversubscription=2 latency=10us", "fat-tree 8", "sites 3 link=1gbit,20ms"] {
///     text.parse::<Shape>()?;
/// }
/// let racks: Shape = "racks 4".parse()?;
/// assert_eq!(racks, Shape::Racks { racks: 4, oversubscription: 1.0, latency: Duration::ZERO });
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// One switch, named `switch`, that is never full.
    Flat,
    /// A switch in each rack, named `rack0` and so on, and one above them, named `top`.
    Racks {
        /// Number of racks, among which the hosts are divided equally.
        racks: usize,
        /// Ratio of the bandwidth of all hosts of a rack to that of its uplink.
        oversubscription: f64,
        /// Additional latency between hosts of two racks.
        latency: Duration,
    },
    /// A tree of equal switches, in which every host can send at its full bandwidth (Al-Fares et al., "A scalable,
    /// commodity data center network architecture", 2008). With p ports there are p pods of p/2 switches at the edge
    /// (`edge0` and so on) and p/2 above them (`middle0`), and (p/2)² at the top (`core0`). Each edge switch has up
    /// to p/2 hosts, p³/4 in total. Its links have the bandwidth of the fastest host.
    FatTree {
        /// Number p of ports of a switch, even.
        ports: usize,
        /// Latency of each link between two switches.
        latency: Duration,
    },
    /// A switch in each site, named `site0` and so on, in a ring.
    Sites {
        /// Number of sites, among which the hosts are divided equally.
        sites: usize,
        /// Link between two sites that are next to each other.
        link: LinkSpec,
    },
}

/// Text forms of shapes, by their first words.
pub(crate) const FORMS: [(&str, &str); 4] = [
    ("flat", "flat"),
    ("racks", "racks NUMBER [oversubscription=FACTOR] [latency=TIME]"),
    ("fat-tree", "fat-tree PORTS [latency=TIME]"),
    ("sites", "sites NUMBER link=LINK"),
];

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = FORMS.iter().filter(|(word, _)| text.split_whitespace().next() == Some(word));
        let mut forms: Vec<&str> = named.map(|(_, form)| *form).collect();
        if forms.is_empty() {
            forms = FORMS.map(|(_, form)| form).to_vec();
        }
        let wrong =
            || Error::usage(format!("`{text}` is not a shape"), format!("write {}", forms.join(", or ")));
        Self::of(text).ok_or_else(wrong)
    }
}

/// Writes the text form.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Flat => f.write_str("flat"),
            Shape::Racks { racks, oversubscription, latency } => {
                write!(
                    f,
                    "racks {racks} oversubscription={oversubscription} latency={}",
                    WrittenDuration(*latency)
                )
            }
            Shape::FatTree { ports, latency } => {
                write!(f, "fat-tree {ports} latency={}", WrittenDuration(*latency))
            }
            Shape::Sites { sites, link } => write!(f, "sites {sites} link={link}"),
        }
    }
}

impl Shape {
    /// Decodes a text; returns `None` if it is malformed.
    fn of(text: &str) -> Option<Self> {
        let mut words = StatementWords::of(text);
        let shape = match words.next()? {
            "flat" => Shape::Flat,
            "racks" => Shape::Racks {
                racks: words.number()?,
                oversubscription: words.option("oversubscription", 1.0, |text| text.parse().ok())?,
                latency: words.option("latency", Duration::ZERO, duration)?,
            },
            "fat-tree" => Shape::FatTree {
                ports: words.number()?,
                latency: words.option("latency", Duration::ZERO, duration)?,
            },
            "sites" => {
                let sites = words.number()?;
                let link = words.option("link", None, |text| text.parse().ok().map(Some))??;
                Shape::Sites { sites, link }
            }
            _ => return None,
        };
        words.are_over().then_some(shape)
    }

    /// Returns true if latencies on one of its own links are random.
    pub fn varies(&self) -> bool {
        matches!(self, Shape::Sites { link, .. } if link.varies())
    }

    /// Adds the switches and links of this shape.
    ///
    /// # Errors
    /// [`Error::Usage`] unless it supports this number of hosts.
    pub(crate) fn connect(self, hosts: &[HostSpec], cluster: &mut Cluster) -> Result<()> {
        match self {
            Shape::Flat => {
                let switch = cluster.add_switch("switch".to_owned());
                (0..hosts.len()).for_each(|host| hang(hosts, host, switch, cluster));
                Ok(())
            }
            Shape::Racks { racks, oversubscription, latency } => {
                connect_racks(hosts, racks, oversubscription, latency, cluster)
            }
            Shape::FatTree { ports, latency } => connect_fat_tree(hosts, ports, latency, cluster),
            Shape::Sites { sites, link } => connect_sites(hosts, sites, link, cluster),
        }
    }
}

/// Adds the link of a host to a switch.
fn hang(hosts: &[HostSpec], host: usize, switch: u32, cluster: &mut Cluster) {
    cluster.add_link(cluster.host(host), switch, hosts[host].between.half());
}

/// Returns the number of hosts in each of `parts` equal parts.
fn each(hosts: &[HostSpec], parts: usize, names: &str) -> Result<usize> {
    if parts > 0 && hosts.len().is_multiple_of(parts) {
        return Ok(hosts.len() / parts);
    }
    let what = format!("{} hosts cannot be divided equally among {parts} {names}", hosts.len());
    Err(Error::usage(what, format!("use a number of {names} that divides that of hosts")))
}

fn connect_racks(
    hosts: &[HostSpec],
    racks: usize,
    oversubscription: f64,
    latency: Duration,
    cluster: &mut Cluster,
) -> Result<()> {
    let size = each(hosts, racks, "racks")?;
    if !(1.0..=size as f64).contains(&oversubscription) {
        let what = format!("racks of {size} hosts cannot have an oversubscription of {oversubscription}");
        return Err(Error::usage(what, "use a number from 1 to the hosts of a rack"));
    }
    let top = cluster.add_switch("top".to_owned());
    for (rack, of_rack) in hosts.chunks(size).enumerate() {
        let switch = cluster.add_switch(format!("rack{rack}"));
        let bandwidth: f64 = of_rack.iter().map(|host| host.between.bandwidth).sum();
        cluster.add_link(switch, top, LinkSpec::new(bandwidth / oversubscription, latency / 2));
        (rack * size..(rack + 1) * size).for_each(|host| hang(hosts, host, switch, cluster));
    }
    Ok(())
}

fn connect_sites(hosts: &[HostSpec], sites: usize, link: LinkSpec, cluster: &mut Cluster) -> Result<()> {
    let size = each(hosts, sites, "sites")?;
    let switches: Vec<u32> = (0..sites).map(|site| cluster.add_switch(format!("site{site}"))).collect();
    (0..hosts.len()).for_each(|host| hang(hosts, host, switches[host / size], cluster));
    // Two sites have one link, and one has none.
    for site in 0..if sites > 2 { sites } else { sites - 1 } {
        cluster.add_link(switches[site], switches[(site + 1) % sites], link);
    }
    Ok(())
}

fn connect_fat_tree(
    hosts: &[HostSpec],
    ports: usize,
    latency: Duration,
    cluster: &mut Cluster,
) -> Result<()> {
    /// Ports of the largest switch, far more than the largest cluster needs.
    const MOST: usize = 1024;
    let half = ports / 2;
    if !ports.is_multiple_of(2) || !(2..=MOST).contains(&ports) || hosts.len() > half * half * ports {
        let what =
            format!("a fat tree of switches with {ports} ports does not support {} hosts", hosts.len());
        return Err(Error::usage(what, "use an even number p of ports, for up to p³/4 hosts"));
    }
    let bandwidth = hosts.iter().map(|host| host.between.bandwidth).fold(0.0, f64::max);
    let link = LinkSpec::new(bandwidth, latency);
    let mut switches = |name: &str, count: usize| -> Vec<u32> {
        (0..count).map(|number| cluster.add_switch(format!("{name}{number}"))).collect()
    };
    // Pods without hosts are left out, and so is the top if there is a single pod.
    let pods = hosts.len().div_ceil(half * half);
    let edges = switches("edge", pods * half);
    let middles = switches("middle", pods * half);
    let cores = switches("core", if pods > 1 { half * half } else { 0 });
    (0..hosts.len()).for_each(|host| hang(hosts, host, edges[host / half], cluster));
    for (number, middle) in middles.iter().enumerate() {
        let pod = number / half;
        edges[pod * half..(pod + 1) * half].iter().for_each(|edge| cluster.add_link(*edge, *middle, link));
        let above = cores.iter().skip(number % half * half).take(half);
        above.for_each(|core| cluster.add_link(*middle, *core, link));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::network::routes::Routes;

    fn cluster(hosts: usize, shape: &str) -> Result<Cluster> {
        let between = "10gbit,50us".parse().unwrap();
        let within = "300gbit,2us".parse().unwrap();
        Cluster::new(&vec![HostSpec { ranks: 2, between, within }; hosts], shape.parse()?)
    }

    #[test]
    fn ways_are_as_long_as_the_shape_says() {
        let micros = Duration::from_micros;
        for (hosts, shape, near, far) in [
            (8, "flat", 50, 50),
            (8, "racks 2 oversubscription=4 latency=1ms", 50, 1_050),
            (8, "sites 4 link=1gbit,20ms", 50, 40_050),
            (16, "fat-tree 4 latency=1us", 50, 54),
            (4, "fat-tree 4 latency=1us", 50, 52),
        ] {
            let cluster = cluster(hosts, shape).unwrap();
            let latencies = |rank: usize| (0..2 * hosts).map(move |other| (rank, other));
            let pairs: Vec<(usize, usize)> = (0..2 * hosts).flat_map(latencies).collect();
            assert!(pairs.iter().all(|(a, b)| cluster.latency(*a, *b) == cluster.latency(*b, *a)), "{shape}");
            assert_eq!(cluster.latency(0, 1), micros(2), "{shape}");
            assert_eq!(cluster.latency(0, 2), micros(near), "{shape}");
            assert_eq!(
                pairs.iter().map(|(a, b)| cluster.latency(*a, *b)).max(),
                Some(micros(far)),
                "{shape}"
            );
        }
    }

    #[test]
    fn a_shape_is_written_as_it_is_read() {
        for text in [
            "flat",
            "racks 4 oversubscription=2.5 latency=10us",
            "fat-tree 8 latency=500ns",
            "sites 3 link=1gbit,20ms,jitter=1ms",
        ] {
            let shape = text.parse::<Shape>().unwrap();
            assert_eq!(shape.to_string(), text);
            assert_eq!(shape.varies(), text.contains("jitter"));
        }
    }

    #[test]
    fn no_link_of_a_fat_tree_has_two_flows_if_every_host_sends_to_the_one_so_many_further() {
        let hosts = 16;
        let cluster = cluster(hosts, "fat-tree 4").unwrap();
        let mut routes = Routes::new(&cluster);
        for shift in 1..hosts {
            let mut used = Vec::new();
            for host in 0..hosts {
                used.extend(routes.route(2 * host, 2 * ((host + shift) % hosts)).links);
            }
            let all = used.len();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len(), all, "by {shift}");
        }
    }

    #[test]
    fn what_is_no_shape_or_does_not_fit_is_refused() {
        for (shape, word) in [
            ("star", "write flat, or racks NUMBER"),
            ("racks", "write racks NUMBER [oversubscription=FACTOR]"),
            ("racks 2 latency=5", "`racks 2 latency=5` is not a shape"),
            ("racks 2 2", "`racks 2 2` is not a shape"),
            ("sites 2", "write sites NUMBER link=LINK"),
            ("racks 3", "8 hosts cannot be divided equally among 3 racks"),
            ("racks 2 oversubscription=5", "use a number from 1 to the hosts of a rack"),
            ("sites 0 link=1gbit,1ms", "8 hosts cannot be divided equally among 0 sites"),
            ("fat-tree 3", "use an even number p of ports"),
            ("fat-tree 2", "does not support 8 hosts"),
        ] {
            let error = cluster(8, shape).unwrap_err().to_string();
            assert!(error.contains(word), "{shape}: {error}");
        }
    }
}
