//! `--sweep`: the clusters for which there are figures, where bandwidth, latency or the number of ranks varies.

use super::job::ClusterPoint;
use hexagram::physical::sim::{bandwidth, duration};
use hexagram::{Error, Result};

/// Property of a cluster that varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SweptProperty {
    Bandwidth,
    Latency,
    Ranks,
}

impl SweptProperty {
    const ALL: [(&'static str, SweptProperty); 3] = [
        ("bandwidth", SweptProperty::Bandwidth),
        ("latency", SweptProperty::Latency),
        ("ranks", SweptProperty::Ranks),
    ];

    /// Returns the label of its axis in pictures.
    pub(super) fn axis(self) -> &'static str {
        match self {
            SweptProperty::Bandwidth => "bandwidth in Mbit/s",
            SweptProperty::Latency => "latency in ms",
            SweptProperty::Ranks => "ranks",
        }
    }

    /// Returns its value of a cluster, as pictures show it.
    pub(super) fn of(self, point: &ClusterPoint) -> f64 {
        match self {
            SweptProperty::Bandwidth => point.link.bandwidth * 8.0 / 1e6,
            SweptProperty::Latency => point.link.latency.as_secs_f64() * 1e3,
            SweptProperty::Ranks => point.ranks as f64,
        }
    }

    /// Returns the cluster with a different value; `None` if the text is not a value.
    fn with(self, here: &ClusterPoint, value: &str) -> Option<ClusterPoint> {
        let mut point = here.clone();
        match self {
            SweptProperty::Bandwidth => point.link.bandwidth = bandwidth(value)?,
            SweptProperty::Latency => point.link.latency = duration(value)?,
            SweptProperty::Ranks => {
                point.ranks = value.parse().ok().filter(|ranks| *ranks > 0)?;
                point.hosts = point.ranks.div_ceil(a_host(here));
            }
        }
        Some(point)
    }
}

/// Returns the ranks of a host.
fn a_host(point: &ClusterPoint) -> usize {
    (point.ranks / point.hosts.max(1)).max(1)
}

/// Fails unless this number of ranks fills whole hosts of the cluster, or a part of one host.
fn check_ranks(text: &str, here: &ClusterPoint, ranks: usize) -> Result<()> {
    let each = a_host(here);
    if ranks < each || ranks.is_multiple_of(each) {
        return Ok(());
    }
    let what = format!("--sweep {text}: {ranks} ranks do not fill hosts of {each} ranks");
    Err(Error::usage(what, format!("use fewer ranks than {each}, or multiples of {each}")))
}

/// Clusters that differ in one property.
pub(super) struct Sweep {
    pub(super) swept: SweptProperty,
    pub(super) points: Vec<ClusterPoint>,
}

/// Returns the clusters that a text such as `ranks=8,16,32` makes of one.
///
/// # Errors
/// The invalid value and the valid forms, in one line.
pub(super) fn sweep(text: &str, here: &ClusterPoint) -> Result<Sweep> {
    let wrong = |what: String| {
        Error::usage(what, "write bandwidth=1gbit,10gbit, latency=50us,5ms or ranks=8,16,32, with its units")
    };
    let (name, values) = text.split_once('=').unwrap_or((text, ""));
    let (_, swept) = SweptProperty::ALL
        .into_iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| wrong(format!("--sweep {text}: unknown property `{name}`")))?;
    if swept == SweptProperty::Ranks && here.topology.is_some() {
        return Err(wrong(format!("--sweep {text}: --topology fixes the ranks")));
    }
    let point = |value: &str| {
        let point = swept.with(here, value.trim());
        let point =
            point.ok_or_else(|| wrong(format!("--sweep {text}: `{value}` is not a value of {name}")))?;
        check_ranks(text, here, point.ranks)?;
        Ok(point)
    };
    let points = values.split(',').map(point).collect::<Result<_>>()?;
    Ok(Sweep { swept, points })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(text: &str, here: &ClusterPoint) -> Result<Vec<ClusterPoint>> {
        sweep(text, here).map(|sweep| sweep.points)
    }

    fn here() -> ClusterPoint {
        ClusterPoint { ranks: 8, hosts: 2, link: "10gbit,50us".parse().unwrap(), topology: None }
    }

    #[test]
    fn other_values_leave_the_rest_as_it_is() {
        let links: Vec<String> = ["bandwidth=1gbit, 100gbit", "latency=5ms"]
            .iter()
            .flat_map(|text| points(text, &here()).unwrap())
            .map(|point| format!("{} on {}, {}", point.ranks, point.hosts, point.link))
            .collect();
        assert_eq!(links, ["8 on 2, 1gbit,50us", "8 on 2, 100gbit,50us", "8 on 2, 10gbit,5ms"]);
        let hosts: Vec<(usize, usize)> =
            points("ranks=2,4,16", &here()).unwrap().iter().map(|point| (point.ranks, point.hosts)).collect();
        assert_eq!(hosts, [(2, 1), (4, 1), (16, 4)]);
    }

    #[test]
    fn ranks_that_fill_no_whole_hosts_are_refused() {
        for (ranks, expected) in [(3, Some(1)), (4, Some(1)), (5, None), (10, None), (12, Some(3))] {
            let found = points(&format!("ranks={ranks}"), &here());
            match expected {
                Some(hosts) => assert_eq!(found.unwrap()[0].hosts, hosts, "{ranks}"),
                None => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(&format!("{ranks} ranks do not fill hosts of 4")), "{error}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_value_is_named() {
        for (text, word) in [
            ("speed=1", "unknown property `speed`"),
            ("latency", "`` is not a value of latency"),
            ("latency=5ms,50", "`50` is not a value of latency"),
            ("bandwidth=10", "`10` is not a value of bandwidth"),
            ("ranks=0", "`0` is not a value of ranks"),
            ("ranks=8,", "`` is not a value of ranks"),
        ] {
            let error = points(text, &here()).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("latency=50us,5ms"), "{error}");
        }
    }
}
