//! Links of a simulated cluster: how they are described.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A link between two places of a cluster, with this bandwidth in each direction.
///
/// The text form is bandwidth and latency, followed by options:
///
/// ```
/// use hexagram_physical::sim::LinkSpec;
/// use std::time::Duration;
///
/// let link: LinkSpec = "10gbit,50us,jitter=5us,stall=0.001:200ms".parse()?;
/// assert_eq!(link.bandwidth, 1.25e9);
/// assert_eq!(link.latency, Duration::from_micros(50));
/// assert_eq!(link.to_string(), "10gbit,50us,jitter=5us,stall=0.001:200ms");
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpec {
    /// Bytes a second, in each direction.
    pub bandwidth: f64,
    /// Time from the departure of a message's last byte to its arrival.
    pub latency: Duration,
    /// Maximum additional latency of a message; each message draws its own, uniformly.
    pub jitter: Duration,
    /// Share of messages that stall, like after a lost TCP packet.
    pub stalls: f64,
    /// Additional latency of a stalled message.
    pub stall: Duration,
    /// True if it is one of two links on one route, which delay a message only once.
    pub(crate) is_half: bool,
}

impl LinkSpec {
    /// Returns a link of this bandwidth, in bytes per second, and latency, without jitter and stalls.
    pub fn new(bandwidth: f64, latency: Duration) -> Self {
        let never = Duration::ZERO;
        LinkSpec { bandwidth, latency, jitter: never, stalls: 0.0, stall: never, is_half: false }
    }

    /// Returns true if message latencies are random.
    pub fn varies(&self) -> bool {
        !self.jitter.is_zero() || (self.stalls > 0.0 && !self.stall.is_zero())
    }

    /// Returns a link that is one of two on the same route, with half of the latency. Jitter and stalls are drawn
    /// once for both, with the larger values of the two.
    #[must_use]
    pub fn half(self) -> Self {
        LinkSpec { latency: self.latency / 2, is_half: true, ..self }
    }

    /// Returns the links of a route on which a message draws its delay: one of two halves.
    pub(crate) fn drawn(way: &[LinkSpec]) -> Vec<LinkSpec> {
        let (halves, whole): (Vec<LinkSpec>, Vec<LinkSpec>) = way.iter().partition(|link| link.is_half);
        let later = |one: LinkSpec, other: LinkSpec| {
            let stalling = if other.stalls > one.stalls { other } else { one };
            LinkSpec { jitter: one.jitter.max(other.jitter), ..stalling }
        };
        let once = halves.into_iter().reduce(later);
        whole.into_iter().chain(once).filter(LinkSpec::varies).collect()
    }
}

impl FromStr for LinkSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let what = format!("`{text}` is not a link");
            Error::usage(
                what,
                "write bandwidth (1kbit or more) and latency, as in 10gbit,50us or 1gbit,20ms,jitter=1ms,stall=0.01:200ms",
            )
        };
        let mut parts = text.split(',').map(str::trim);
        let bandwidth = parts.next().and_then(bandwidth).ok_or_else(wrong)?;
        let latency = parts.next().and_then(duration).ok_or_else(wrong)?;
        let mut link = LinkSpec::new(bandwidth, latency);
        for part in parts {
            match part.split_once('=').ok_or_else(wrong)? {
                ("jitter", value) => link.jitter = duration(value).ok_or_else(wrong)?,
                ("stall", value) => {
                    let (share, time) = value.split_once(':').ok_or_else(wrong)?;
                    let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                    link.stalls = share.ok_or_else(wrong)?;
                    link.stall = duration(time).ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(link)
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", Bandwidth(self.bandwidth), WrittenDuration(self.latency))?;
        if !self.jitter.is_zero() {
            write!(f, ",jitter={}", WrittenDuration(self.jitter))?;
        }
        if self.stalls > 0.0 {
            write!(f, ",stall={}:{}", self.stalls, WrittenDuration(self.stall))?;
        }
        Ok(())
    }
}

/// Text form of a bandwidth in bytes per second.
struct Bandwidth(f64);

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8.0;
        let unit = BITS.iter().rev().find(|(_, unit)| bits >= *unit).unwrap_or(&BITS[0]);
        write!(f, "{}{}", bits / unit.1, unit.0)
    }
}

/// Text form of a duration.
pub(crate) struct WrittenDuration(pub(crate) Duration);

impl fmt::Display for WrittenDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let unit = TIMES.iter().rev().find(|(_, unit)| seconds >= *unit).unwrap_or(&TIMES[0]);
        write!(f, "{}{}", (self.0.as_nanos() as f64) / (unit.1 * 1e9), unit.0)
    }
}

/// Units of bandwidth, in bits a second, the smallest first.
const BITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
/// Units of time, in seconds, the smallest first.
const TIMES: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// Returns the value of a number with a unit, in the base unit.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    Some(number * factor).filter(|value| value.is_finite())
}

/// Decodes a bandwidth, such as `10gbit` or `300mbit`, of `1kbit` or more; returns bytes a second.
pub fn bandwidth(text: &str) -> Option<f64> {
    measure(text, &BITS).filter(|bits| *bits >= 1e3).map(|bits| bits / 8.0)
}

/// Decodes a time, such as `50us` or `1.5ms`, of `1000000s` at most.
pub fn duration(text: &str) -> Option<Duration> {
    measure(text, &TIMES).filter(|seconds| *seconds <= 1e6).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_link_is_refused_with_one_that_is() {
        for text in [
            "",
            "10gbit",
            "10,50us",
            "50us,10gbit",
            "0gbit,1us",
            "10bit,1us",
            "1gbit,1000000000s",
            "1gbit,1us,jitter",
            "1gbit,1us,stall=2:1ms",
            "1gbit,1us,x=1",
        ] {
            let error = text.parse::<LinkSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("10gbit,50us"), "{error}");
        }
    }

    #[test]
    fn what_is_drawn_on_two_halves_is_drawn_once() {
        let link = |text: &str| text.parse::<LinkSpec>().unwrap();
        let even = link("1gbit,10us,jitter=2us,stall=1:1ms");
        let drawn = |way: &[LinkSpec]| -> Vec<String> {
            LinkSpec::drawn(way)
                .iter()
                .map(|link| format!("{link}").replace(",10us", "").replace(",5us", ""))
                .collect()
        };
        assert_eq!(drawn(&[even.half(), even.half()]), ["1gbit,jitter=2us,stall=1:1ms"]);
        assert_eq!(
            drawn(&[even.half(), even, even.half()]).len(),
            2,
            "a whole one between them is late for itself"
        );
        let bad = link("1gbit,10us,jitter=1us,stall=0.5:9ms").half();
        let good = link("1gbit,10us,jitter=3us,stall=0.1:1ms").half();
        for way in [[bad, good], [good, bad]] {
            assert_eq!(drawn(&way), ["1gbit,jitter=3us,stall=0.5:9ms"]);
        }
        assert!(drawn(&[link("1gbit,10us"); 2]).is_empty());
    }

    #[test]
    fn a_link_is_written_as_it_is_read() {
        for text in [
            "10gbit,50us",
            "300mbit,1.5ms",
            "400gbit,0ns",
            "1gbit,20ms,jitter=1ms",
            "1kbit,1s,stall=0.5:200ms",
        ] {
            let link = text.parse::<LinkSpec>().unwrap();
            assert_eq!(link.to_string(), text);
            assert_eq!(link.varies(), text.contains('='));
        }
    }
}
