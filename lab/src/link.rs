//! Time that a training would take over a network: a model charges for the traffic, and no rank waits.

use std::fmt;

/// Network between ranks that each have their own device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NetworkLink {
    /// Latency α of a message, in seconds.
    pub latency: f64,
    /// Bandwidth β of a rank, in bytes a second.
    pub bandwidth: f64,
    /// Time of a forward and a backward pass, in seconds.
    pub compute: f64,
    /// Slowdown of the slowest rank of a step, 1 if all ranks are equally fast.
    pub slowest: f64,
}

/// Work of one rank up to a point of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankWork {
    /// Number of steps.
    pub steps: u64,
    /// Bytes sent, with message headers.
    pub bytes: u64,
    /// Messages sent.
    pub messages: u64,
    /// True if ranks wait for each other in every step.
    pub synchronous: bool,
}

impl NetworkLink {
    /// Creates a link with this bandwidth in Mbit/s, a latency of 50 µs and passes of 1 ms.
    pub fn of_megabits(megabits: f64) -> Self {
        NetworkLink { latency: 50e-6, bandwidth: megabits * 1e6 / 8.0, compute: 1e-3, slowest: 1.0 }
    }

    /// Returns the seconds for some work: messages · α + bytes / β, one message after the other, and the passes.
    /// Synchronous algorithms pay for both, and wait for the slowest rank in every step. Asynchronous ones pay for
    /// the longer of the two, since their messages travel during the passes and no rank waits for them. The model
    /// leaves out that a slow rank then makes fewer steps than the others.
    pub fn seconds(&self, work: RankWork) -> f64 {
        let communication = work.messages as f64 * self.latency + work.bytes as f64 / self.bandwidth;
        let computation = work.steps as f64 * self.compute;
        match work.synchronous {
            true => computation * self.slowest + communication,
            false => computation.max(communication),
        }
    }
}

impl fmt::Display for NetworkLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NetworkLink { latency, bandwidth, compute, slowest } = self;
        let megabits = bandwidth * 8e-6;
        let message = latency * 1e3;
        let pass = compute * 1e3;
        write!(f, "{megabits} Mbit/s, {message} ms a message, {pass} ms a pass")?;
        match *slowest == 1.0 {
            true => Ok(()),
            false => write!(f, ", {} ms on the slowest rank", pass * slowest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_messages_are_charged() {
        let link = NetworkLink { latency: 0.01, bandwidth: 1e6, compute: 0.5, slowest: 1.0 };
        let work = RankWork { steps: 10, bytes: 2_000_000, messages: 20, synchronous: true };
        assert!((link.seconds(work) - (5.0 + 2.2)).abs() < 1e-12);
        assert!((link.seconds(RankWork { synchronous: false, ..work }) - 5.0).abs() < 1e-12);
        let uneven = NetworkLink { slowest: 3.0, ..link };
        assert!((uneven.seconds(work) - (15.0 + 2.2)).abs() < 1e-12);
        assert!((uneven.seconds(RankWork { synchronous: false, ..work }) - 5.0).abs() < 1e-12);
    }

    #[test]
    fn a_link_is_shown_in_usual_units() {
        let link = NetworkLink { latency: 5e-3, bandwidth: 125e3, compute: 1e-3, slowest: 1.0 };
        assert_eq!(link.to_string(), "1 Mbit/s, 5 ms a message, 1 ms a pass");
        let uneven = NetworkLink { latency: 50e-6, bandwidth: 1.25e9, compute: 10e-3, slowest: 4.0 };
        let shown = "10000 Mbit/s, 0.05 ms a message, 10 ms a pass, 40 ms on the slowest rank";
        assert_eq!(uneven.to_string(), shown);
    }
}
