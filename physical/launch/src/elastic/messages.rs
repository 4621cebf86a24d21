//! Messages between the keeper of the membership and the launchers, each about one process, and their lines on several
//! machines (`machines`).
//!
//! ```text
//! launcher → keeper   started PROCESS PID          the process runs
//!                     missing PROCESS              it cannot be started
//!                     request PROCESS HEX          message of the process
//!                     killing PROCESS              the order to kill it has arrived
//!                     ended PROCESS [HOW]          how it failed, unless it succeeded
//! keeper → launcher   start PROCESS PLACE NTH      start it at this place of the job, as newcomer NTH; 0 for none
//!                     send PROCESS HEX             message to the process
//!                     kill PROCESS
//!                     continued                    a generation has begun: earlier failures do not count
//!                     over                         the processes of all machines have ended, with success
//! ```

use hexagram_physical::launcher::{MemberNotice, MemberRequest, from_hex, hex};
use std::fmt;

/// Number of a process, in the order of starts.
pub(crate) type ProcessId = u64;

/// Event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemberReport {
    /// It has started, with this process id of the system.
    Started(ProcessId, i32),
    /// It cannot be started.
    Missing(ProcessId),
    /// It has sent a request.
    Request(ProcessId, MemberRequest),
    /// The system kills it, which may take a while.
    Killing(ProcessId),
    /// It has ended, with a description if it failed.
    Ended(ProcessId, Option<String>),
}

/// Action of a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberOrder {
    /// Start a process at a place of the job.
    Start {
        /// The process.
        process: ProcessId,
        /// Place of the process: the rank that it has if every machine and every process of the job starts.
        place: usize,
        /// How many processes, with this one, have started after the first generation; 0 before.
        newcomer: u32,
    },
    /// Send an encoded [`MemberNotice`] to a process.
    Send(ProcessId, Vec<u8>),
    /// Kill a process.
    Kill(ProcessId),
    /// Forget failures: the ranks have continued without the processes that failed.
    Continued,
    /// End, once the processes of this launcher have: the job is a success.
    Over,
}

impl MemberOrder {
    pub(super) fn send(process: ProcessId, notice: &MemberNotice) -> Self {
        MemberOrder::Send(process, notice.write())
    }

    /// Decodes the text of `Display`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let mut number = || words.next()?.parse::<ProcessId>().ok();
        Some(match kind {
            "continued" => MemberOrder::Continued,
            "over" => MemberOrder::Over,
            "kill" => MemberOrder::Kill(number()?),
            "start" => {
                let (process, place, newcomer) = (number()?, number()?, number()?);
                MemberOrder::Start { process, place: place as usize, newcomer: newcomer.try_into().ok()? }
            }
            "send" => MemberOrder::Send(number()?, from_hex(words.next()?).ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for MemberOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberOrder::Start { process, place, newcomer } => {
                write!(f, "start {process} {place} {newcomer}")
            }
            MemberOrder::Send(process, notice) => write!(f, "send {process} {}", hex(notice)),
            MemberOrder::Kill(process) => write!(f, "kill {process}"),
            MemberOrder::Continued => f.write_str("continued"),
            MemberOrder::Over => f.write_str("over"),
        }
    }
}

impl MemberReport {
    /// Decodes the text of `Display`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ')?;
        let (process, rest) =
            rest.split_once(' ').map_or((rest, None), |(process, rest)| (process, Some(rest)));
        let process = process.parse().ok()?;
        Some(match kind {
            "started" => MemberReport::Started(process, rest?.parse().ok()?),
            "missing" => MemberReport::Missing(process),
            "killing" => MemberReport::Killing(process),
            "request" => {
                MemberReport::Request(process, MemberRequest::split(&mut from_hex(rest?).ok()?).ok()??)
            }
            "ended" => MemberReport::Ended(process, rest.map(str::to_owned)),
            _ => return None,
        })
    }
}

impl fmt::Display for MemberReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberReport::Started(process, pid) => write!(f, "started {process} {pid}"),
            MemberReport::Missing(process) => write!(f, "missing {process}"),
            MemberReport::Killing(process) => write!(f, "killing {process}"),
            MemberReport::Request(process, request) => {
                write!(f, "request {process} {}", hex(&request.write()))
            }
            MemberReport::Ended(process, Some(how)) => write!(f, "ended {process} {how}"),
            MemberReport::Ended(process, None) => write!(f, "ended {process}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let request = MemberRequest::Put { generation: 3, key: "k".into(), value: vec![0, 10, 255] };
        let reports = [
            MemberReport::Started(3, 4711),
            MemberReport::Missing(4),
            MemberReport::Killing(4),
            MemberReport::Request(5, request),
            MemberReport::Ended(6, None),
            MemberReport::Ended(6, Some("exited with code 3".into())),
        ];
        for report in reports {
            assert_eq!(MemberReport::parse(&report.to_string()), Some(report));
        }
        let orders = [
            MemberOrder::Start { process: 7, place: 3, newcomer: 2 },
            MemberOrder::send(7, &MemberNotice::Ended("because".into())),
            MemberOrder::Kill(7),
            MemberOrder::Continued,
            MemberOrder::Over,
        ];
        for order in orders {
            assert_eq!(MemberOrder::parse(&order.to_string()), Some(order));
        }
        for broken in ["", "kill", "kill x", "send 3 0", "send 3", "start 3 4", "ends"] {
            assert_eq!(MemberOrder::parse(broken), None, "{broken}");
            assert_eq!(MemberReport::parse(broken), None, "{broken}");
        }
    }
}
