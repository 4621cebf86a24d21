//! Topologies: clusters as they are written in a file, line by line.

use super::link::LinkSpec;
use super::shape::Shape;
use super::statement::{StatementWords, check_first};
use super::{Cluster, HostSpec, MAX_RANKS, Vertex, shape};
use crate::error::{Error, Result};
use crate::sim::network::routes::Routes;
use crate::system::input;
use crate::system::input::in_line;
use std::collections::HashMap;
use std::str::FromStr;

/// A cluster in text form: hosts, their connections, and single links that differ from those.
///
/// Each line is one statement, and `#` begins a comment. Hosts are numbered from 0, in the order of their lines, and
/// so are the ranks on them.
///
/// | line | meaning |
/// |---|---|
/// | `hosts NUMBER [ranks=NUMBER] [link=LINK] [intra=LINK]` | hosts with this number of ranks each (default 1), and these links to other hosts and between ranks |
/// | `flat`, `racks …`, `fat-tree …`, `sites …` | [`Shape`] that connects them, one line at most |
/// | `switch NAME` | a further switch; with switches and no shape, only single links connect hosts |
/// | `link PLACE PLACE LINK` | a link between two hosts or switches (as `host0`), or between `rank0` and its host for messages within the host, with its own latency; replaces an existing one |
///
/// ```
/// use hexagram_physical::sim::{LinkSpec, Topology};
/// use std::time::Duration;
///
/// let text = "\
/// hosts 6 ranks=4
/// hosts 2 ranks=2 link=1gbit,80us     # two older ones
/// racks 2 oversubscription=2
/// link host3 rack0 10gbit,25us,stall=0.01:200ms
/// ";
/// let topology: Topology = text.parse()?;
/// let between: LinkSpec = "10gbit,50us".parse()?;
/// let cluster = topology.cluster(between, "300gbit,2us".parse()?)?;
/// assert_eq!(cluster.ranks(), 28);
/// assert_eq!(cluster.latency(0, 27), Duration::from_micros(65));
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Topology {
    hosts: Vec<EqualHosts>,
    shape: Option<(usize, Shape)>,
    /// Lines of the switches, and their names.
    switches: Vec<(usize, String)>,
    links: Vec<SingleLink>,
}

/// Equal hosts, with the links that are not those of the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
struct EqualHosts {
    number: usize,
    ranks: usize,
    between: Option<LinkSpec>,
    within: Option<LinkSpec>,
}

/// A single link, and the line that has it.
#[derive(Debug, Clone, PartialEq)]
struct SingleLink {
    line: usize,
    ends: [String; 2],
    link: LinkSpec,
}

/// Text forms of the statements other than shapes.
const FORMS: [(&str, &str); 3] = [
    ("hosts", "hosts NUMBER [ranks=NUMBER] [link=LINK] [intra=LINK]"),
    ("switch", "switch NAME"),
    ("link", "link PLACE PLACE LINK"),
];

impl FromStr for Topology {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut topology = Topology::default();
        for (at, line) in input::statements(text) {
            check_first(line, topology.earlier(line)).map_err(|error| in_line(at, error))?;
            topology.add(at, line).ok_or_else(|| in_line(at, wrong(line)))?;
        }
        if topology.hosts.is_empty() {
            return Err(Error::usage("it has no hosts", format!("add a line `{}`", FORMS[0].1)));
        }
        Ok(topology)
    }
}

/// Returns the error for a malformed line.
fn wrong(line: &str) -> Error {
    let all = || FORMS.into_iter().chain(shape::FORMS);
    let word = line.split_whitespace().next().unwrap_or_default();
    let named: Vec<&str> = all().filter(|(name, _)| *name == word).map(|(_, form)| form).collect();
    let forms = if named.is_empty() { all().map(|(_, form)| form).collect() } else { named };
    let what = format!("`{line}` is not a statement of a topology");
    let remedy = format!("write {}, with links as in 10gbit,50us and times as in 5us", forms.join(", or "));
    Error::usage(what, remedy)
}

impl Topology {
    /// Returns an earlier line with the same unique statement: a switch, or the shape.
    fn earlier(&self, line: &str) -> Option<usize> {
        let mut words = line.split_whitespace();
        match words.next()? {
            "switch" => {
                let name = words.next()?;
                self.switches.iter().find(|(_, other)| other == name).map(|(at, _)| *at)
            }
            word if shape::FORMS.iter().any(|(name, _)| *name == word) => self.shape.map(|(at, _)| at),
            _ => None,
        }
    }

    /// Adds a line; returns `None` if it is malformed.
    fn add(&mut self, at: usize, line: &str) -> Option<()> {
        let mut words = StatementWords::of(line);
        let link = |text: &str| text.parse::<LinkSpec>().ok();
        match words.next()? {
            "hosts" => {
                let number = words.number().filter(|number| (1..=MAX_RANKS).contains(number))?;
                let count = |text: &str| text.parse().ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks));
                let ranks = words.option("ranks", 1, count)?;
                let between = words.option("link", None, |text| link(text).map(Some))?;
                let within = words.option("intra", None, |text| link(text).map(Some))?;
                self.hosts.push(EqualHosts { number, ranks, between, within });
            }
            "switch" => {
                self.switches.push((at, words.next()?.to_owned()));
            }
            "link" => {
                let ends = [words.next()?.to_owned(), words.next()?.to_owned()];
                // A link may have options, and is one word.
                let link = words.last().and_then(link).filter(|_| ends[0] != ends[1])?;
                self.links.push(SingleLink { line: at, ends, link });
            }
            _ => {
                self.shape = Some((at, line.parse().ok()?));
                return Some(());
            }
        }
        words.are_over().then_some(())
    }

    /// Returns the cluster, whose hosts have these links by default.
    ///
    /// # Errors
    /// [`Error::Usage`] with the line, for an unknown place, or a shape that does not support the number of hosts; or
    /// with two hosts that are not connected.
    pub fn cluster(&self, between: LinkSpec, within: LinkSpec) -> Result<Cluster> {
        let hosts: Vec<HostSpec> = self.hosts(between, within);
        let mut cluster = Cluster::unlinked(&hosts)?;
        match self.shape {
            Some((line, shape)) => {
                shape.connect(&hosts, &mut cluster).map_err(|error| in_line(line, error))?
            }
            None if self.switches.is_empty() => Shape::Flat.connect(&hosts, &mut cluster)?,
            None => {}
        }
        for (line, name) in &self.switches {
            if cluster.place(name).is_some() {
                let what = format!("line {line}: the place `{name}` exists already");
                return Err(Error::usage(what, "use a different name for each switch"));
            }
            cluster.add_switch(name.clone());
        }
        self.connect(&mut cluster)?;
        connected(&cluster)?;
        Ok(cluster)
    }

    /// Adds the single links.
    fn connect(&self, cluster: &mut Cluster) -> Result<()> {
        let mut lines = HashMap::new();
        for SingleLink { line, ends: [from, to], link } in &self.links {
            let place = |name: &String| cluster.place(name).ok_or_else(|| no_place(*line, name, cluster));
            let from_place = place(from)?;
            let to_place = place(to)?;
            check_rank(*line, cluster, from_place, to_place)?;
            let places = (from_place.min(to_place), from_place.max(to_place));
            let earlier = lines.insert(places, *line);
            check_first(&format!("link {from} {to}"), earlier).map_err(|error| in_line(*line, error))?;
            cluster.set_link(from_place, to_place, *link);
        }
        Ok(())
    }

    /// Returns true if any host uses the default link between hosts.
    pub fn takes_link(&self) -> bool {
        self.hosts.iter().any(|hosts| hosts.between.is_none())
    }

    /// Returns true if latencies on one of its links are random.
    pub fn varies(&self) -> bool {
        let of_hosts = self.hosts.iter().flat_map(|hosts| [hosts.between, hosts.within]).flatten();
        let mut links = of_hosts.chain(self.links.iter().map(|single| single.link));
        links.any(|link| link.varies()) || self.shape.is_some_and(|(_, shape)| shape.varies())
    }

    /// Returns the link of the hosts with the least bandwidth, with this default.
    pub fn narrowest(&self, between: LinkSpec) -> LinkSpec {
        let links = self.hosts.iter().map(|hosts| hosts.between.unwrap_or(between));
        links.min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth)).unwrap_or(between)
    }

    fn hosts(&self, between: LinkSpec, within: LinkSpec) -> Vec<HostSpec> {
        let spec = |hosts: &EqualHosts| {
            let spec = HostSpec {
                ranks: hosts.ranks,
                between: hosts.between.unwrap_or(between),
                within: hosts.within.unwrap_or(within),
            };
            vec![spec; hosts.number]
        };
        self.hosts.iter().flat_map(spec).collect()
    }
}

/// Fails if a link connects a rank to a place other than its host: no message would use it.
fn check_rank(line: usize, cluster: &Cluster, from: Vertex, to: Vertex) -> Result<()> {
    // Ranks come first among the places.
    let rank = from.min(to);
    let other = from.max(to);
    let Some(host) = cluster.hosts().get(rank as usize).filter(|host| cluster.host(**host) != other) else {
        return Ok(());
    };
    let what = format!("line {line}: rank{rank} has a link to its own host only, which is host{host}");
    let remedy = format!("write `link rank{rank} host{host} LINK`, or use a link of host{host}");
    Err(Error::usage(what, remedy))
}

fn no_place(line: usize, name: &str, cluster: &Cluster) -> Error {
    let last_host = cluster.host_count().saturating_sub(1);
    let last_rank = cluster.ranks().saturating_sub(1);
    let switches = cluster.switches().join(", ");
    let what = format!("line {line}: unknown node `{name}`");
    Error::usage(what, format!("use one of host0 to host{last_host}, rank0 to rank{last_rank}, {switches}"))
}

/// Fails if messages from the first host cannot reach another.
fn connected(cluster: &Cluster) -> Result<()> {
    let mut routes = Routes::new(cluster);
    let hosts = cluster.hosts();
    let cut = (0..hosts.len()).find(|rank| hosts[*rank] != 0 && routes.route(0, *rank).links.is_empty());
    let Some(rank) = cut else { return Ok(()) };
    let what = format!("nothing connects host0 and host{}", hosts[rank]);
    Err(Error::usage(what, "add a line `link PLACE PLACE LINK`, or a shape such as `flat`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn cluster(text: &str) -> Result<Cluster> {
        text.parse::<Topology>()?.cluster("10gbit,50us".parse().unwrap(), "300gbit,2us".parse().unwrap())
    }

    #[test]
    fn hosts_have_the_ranks_and_links_of_their_lines() {
        let text = "hosts 2 ranks=2\n\n# slower\nhosts 1 ranks=3 link=1gbit,150us intra=10gbit,20us\n";
        let cluster = cluster(text).unwrap();
        assert_eq!(cluster.hosts(), [0, 0, 1, 1, 2, 2, 2]);
        let latencies = [(0, 1), (0, 2), (0, 6), (4, 6)].map(|(a, b)| cluster.latency(a, b));
        assert_eq!(latencies, [2, 50, 100, 20].map(Duration::from_micros));
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.narrowest("10gbit,50us".parse().unwrap()).to_string(), "1gbit,150us");
        assert!(topology.takes_link() && !topology.varies());
        for text in ["intra=1gbit,1us,jitter=1us", "\nsites 2 link=1gbit,1us,stall=1:1s"] {
            assert!(format!("hosts 2 {text}\n").parse::<Topology>().unwrap().varies(), "{text}");
        }
        assert!(!"hosts 2 link=1gbit,1us\n".parse::<Topology>().unwrap().takes_link());
    }

    #[test]
    fn single_links_take_the_place_of_others_or_are_all_that_there_is() {
        let flat =
            cluster("hosts 3\nlink host1 switch 1gbit,5ms,jitter=1ms\nlink host0 host2 1gbit,7us\n").unwrap();
        let latencies = [(0, 1), (0, 2)].map(|(a, b)| flat.latency(a, b));
        assert_eq!(latencies, [5025, 7].map(Duration::from_micros));
        let rank = cluster("hosts 2 ranks=2\nlink host0 rank1 1gbit,9us\n").unwrap();
        // Half of the 2 us of rank 0, and those of rank 1; other hosts have the same distance as before.
        assert_eq!([(0, 1), (1, 2)].map(|(a, b)| rank.latency(a, b)), [10, 50].map(Duration::from_micros));
        let own = "hosts 2\nswitch a\nswitch b\nlink host0 a 1gbit,1us\nlink b a 1gbit,2us\nlink host1 b 1gbit,4us\n";
        assert_eq!(cluster(own).unwrap().latency(0, 1), Duration::from_micros(7));
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_right() {
        for (text, words) in [
            ("", &["no hosts", "hosts NUMBER [ranks=NUMBER]"][..]),
            ("hosts 2\nhosts 0\n", &["line 2", "`hosts 0`", "hosts NUMBER"]),
            ("hosts 2 ranks=0\n", &["line 1", "`hosts 2 ranks=0`"]),
            ("hosts 2 link=10,5us\n", &["line 1", "links as in 10gbit,50us"]),
            ("hosts 2 speed=3\n", &["line 1", "`hosts 2 speed=3`"]),
            ("hosts 2\nracks\n", &["line 2", "racks NUMBER [oversubscription=FACTOR]"]),
            ("hosts 2\nflat\nflat\n", &["line 3", "`flat` repeats line 2"]),
            ("hosts 2\nracks 2\nflat\n", &["line 3", "`flat` repeats line 2", "remove one of the two"]),
            ("hosts 2\nswitch a\nswitch a\n", &["line 3", "`switch a` repeats line 2"]),
            (
                "hosts 2\nswitch a\nlink host0 a 1gbit,1us\nlink a host0 2gbit,1us\n",
                &["line 4", "`link a host0` repeats line 3"],
            ),
            ("hosts 3\nracks 2\n", &["line 2", "3 hosts cannot be divided equally among 2 racks"]),
            ("hosts 2\nstar\n", &["line 2", "`star`", "hosts NUMBER", "fat-tree PORTS", "link PLACE"]),
            ("hosts 2\nlink host0 host9 1gbit,1us\n", &["line 2", "`host9`", "host0 to host1", "switch"]),
            ("hosts 2\nlink host0 host0 1gbit,1us\n", &["line 2", "link PLACE PLACE LINK"]),
            ("hosts 2\nswitch a\nlink host0 a 1gbit,1us\n", &["nothing connects host0 and host1"]),
            ("hosts 2\nflat\nswitch switch\n", &["line 3", "the place `switch` exists already"]),
            ("hosts 2\nswitch host1\n", &["line 2", "the place `host1` exists already"]),
            (
                "hosts 2 ranks=2\nlink rank2 switch 1gbit,1us\n",
                &["line 2", "rank2", "which is host1", "link rank2 host1"],
            ),
            ("hosts 2\nlink rank0 rank1 1gbit,1us\n", &["line 2", "rank0", "which is host0"]),
            ("hosts 1024 ranks=1024\n", &["ranks together"]),
        ] {
            let error = cluster(text).unwrap_err().to_string();
            assert!(
                words.iter().all(|word| error.contains(word)) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }
}
