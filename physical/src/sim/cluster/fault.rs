//! Faults of a simulated cluster: failures and their times.

use super::link::{WrittenDuration, duration};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A failure that happens at a given time, or the end of a failure.
///
/// The text form is a time, and an event:
///
/// | text | meaning |
/// |---|---|
/// | `3s rank 2 dies` | the process ends, and the system closes its connections |
/// | `3s rank 2 stops` | the process does nothing until it resumes; its connections stay open |
/// | `7s rank 2 resumes` | it continues |
/// | `3s host 1 dies` | all ranks of the host disappear, and their connections are not closed |
/// | `3s cut 0,1 -> 2` | no message gets from hosts 0 and 1 to host 2; `<->` cuts both ways |
/// | `7s heal` | all cuts end, and pending messages continue |
/// | `3s slow 1 to 0.1` | the links of host 1 have a tenth of their bandwidth; `to 1` ends it |
///
/// ```
/// use hexagram_physical::sim::{Fault, FaultKind};
/// use std::time::Duration;
///
/// let fault: Fault = "3.5s rank 2 dies".parse()?;
/// assert_eq!(fault, Fault { at: Duration::from_millis(3500), kind: FaultKind::RankDies(2) });
/// assert_eq!(fault.to_string(), "3.5s rank 2 dies");
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// Virtual time at which it happens.
    pub at: Duration,
    /// Kind of it.
    pub kind: FaultKind,
}

/// Kind of a fault.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// The process of a rank ends, and the system closes its connections.
    RankDies(usize),
    /// The process of a rank does nothing from now on; its connections stay open.
    RankStops(usize),
    /// A process that was stopped continues.
    RankResumes(usize),
    /// A host disappears with all its ranks, without notification.
    HostDies(usize),
    /// Messages from some hosts to others are blocked.
    Cut(Cut),
    /// All cuts end.
    Heal,
    /// The links of a host have this share of their bandwidth.
    Slow {
        /// The host.
        host: usize,
        /// Share of the original bandwidth of the links.
        share: f64,
    },
}

/// Hosts between which nothing passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Hosts that cannot send.
    pub from: Vec<usize>,
    /// Hosts that they cannot send to.
    pub to: Vec<usize>,
    /// True if the second group cannot send to the first either.
    pub both_ways: bool,
}

impl Cut {
    /// Returns true if messages of one host to another are blocked.
    pub fn holds(&self, from: usize, to: usize) -> bool {
        let forth = self.from.contains(&from) && self.to.contains(&to);
        forth || (self.both_ways && self.from.contains(&to) && self.to.contains(&from))
    }
}

impl Fault {
    /// Fails unless ranks and hosts of a fault are those of a cluster, and a cut is between different ones.
    ///
    /// # Errors
    /// [`Error::Usage`] with the rank or host that does not exist, or that is on both sides.
    pub fn check(&self, ranks: usize, hosts: usize) -> Result<()> {
        let missing = |what: &str, number: usize, count: usize| {
            let missing = format!("`{self}`: {what} {number} does not exist");
            Err(Error::usage(missing, format!("use a number from 0 to {}", count.saturating_sub(1))))
        };
        match &self.kind {
            FaultKind::RankDies(rank) | FaultKind::RankStops(rank) | FaultKind::RankResumes(rank)
                if *rank >= ranks =>
            {
                missing("rank", *rank, ranks)
            }
            FaultKind::HostDies(host) | FaultKind::Slow { host, .. } if *host >= hosts => {
                missing("host", *host, hosts)
            }
            FaultKind::Cut(cut) => match cut.from.iter().chain(&cut.to).find(|host| **host >= hosts) {
                Some(host) => missing("host", *host, hosts),
                None => self.check_sides(cut),
            },
            _ => Ok(()),
        }
    }
}

impl Fault {
    fn check_sides(&self, cut: &Cut) -> Result<()> {
        let Some(host) = cut.from.iter().find(|host| cut.to.contains(host)) else { return Ok(()) };
        let what = format!("`{self}`: host {host} is on both sides");
        Err(Error::usage(what, "list different hosts on each side, as in `3s cut 0,1 -> 2`"))
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let parsed = match words.split_first() {
            Some((at, what)) => duration(at).zip(kind(what)),
            None => None,
        };
        parsed.map(|(at, kind)| Fault { at, kind }).ok_or_else(|| {
            Error::usage(
                format!("`{}` is not a fault", text.trim()),
                "write a time and an event, as in `3s rank 2 dies`, `3s rank 2 stops`, `7s rank 2 resumes`, `3s \
                 host 1 dies`, `3s cut 0,1 -> 2`, `3s cut 0 <-> 1,2`, `7s heal` or `3s slow 1 to 0.1`",
            )
        })
    }
}

/// Decodes the event.
fn kind(words: &[&str]) -> Option<FaultKind> {
    let share = |text: &str| text.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 1.0);
    Some(match words {
        ["rank", rank, "dies"] => FaultKind::RankDies(rank.parse().ok()?),
        ["rank", rank, "stops"] => FaultKind::RankStops(rank.parse().ok()?),
        ["rank", rank, "resumes"] => FaultKind::RankResumes(rank.parse().ok()?),
        ["host", host, "dies"] => FaultKind::HostDies(host.parse().ok()?),
        ["cut", from, way @ ("->" | "<->"), to] => {
            FaultKind::Cut(Cut { from: numbers(from)?, to: numbers(to)?, both_ways: *way == "<->" })
        }
        ["heal"] => FaultKind::Heal,
        ["slow", host, "to", text] => FaultKind::Slow { host: host.parse().ok()?, share: share(text)? },
        _ => return None,
    })
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", WrittenDuration(self.at), self.kind)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[usize]| hosts.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        match self {
            FaultKind::RankDies(rank) => write!(f, "rank {rank} dies"),
            FaultKind::RankStops(rank) => write!(f, "rank {rank} stops"),
            FaultKind::RankResumes(rank) => write!(f, "rank {rank} resumes"),
            FaultKind::HostDies(host) => write!(f, "host {host} dies"),
            FaultKind::Cut(Cut { from, to, both_ways }) => {
                let way = if *both_ways { "<->" } else { "->" };
                write!(f, "cut {} {way} {}", list(from), list(to))
            }
            FaultKind::Heal => write!(f, "heal"),
            FaultKind::Slow { host, share } => write!(f, "slow {host} to {share}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in [
            "3.5s rank 2 dies",
            "1ms rank 0 stops",
            "7s rank 2 resumes",
            "3s host 1 dies",
            "3s cut 0,1 -> 2",
            "3s cut 0 <-> 1,2",
            "7s heal",
            "3s slow 1 to 0.1",
        ] {
            let fault: Fault = text.parse().unwrap();
            assert_eq!(fault.to_string(), text);
            assert!(fault.check(3, 3).is_ok());
            assert_eq!(fault.check(0, 0).is_err(), fault.kind != FaultKind::Heal, "{text}");
        }
        for (text, host) in [("3s cut 0 -> 0", 0), ("3s cut 0,1 <-> 2,1", 1)] {
            let error = text.parse::<Fault>().unwrap().check(3, 3).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`: host {host} is on both sides")), "{error}");
        }
        for text in
            ["", "3s", "rank 2 dies", "3s rank x dies", "3s cut 0 - 1", "3s slow 1 to 2", "3s slow 1 to 0"]
        {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("is not a fault") && error.contains("3s rank 2 dies"), "{error}");
        }
    }

    #[test]
    fn a_cut_holds_the_way_that_it_says() {
        let cut = |both_ways| Cut { from: vec![0, 1], to: vec![2], both_ways };
        assert!(cut(false).holds(1, 2) && !cut(false).holds(2, 1) && !cut(false).holds(0, 1));
        assert!(cut(true).holds(2, 1) && !cut(true).holds(1, 0));
    }
}
