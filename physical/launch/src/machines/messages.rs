//! Agreement between launchers: each start, each end, and the next action.

use super::wire::LineSender;
use crate::Node;
use crate::outcome::Outcome;
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Longest time until the machines have joined for the first time: launchers are started by hand, one after the other.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// One start of the ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Number of restarts before it.
    pub(crate) restart: u32,
    /// Part of this machine; `None` on a single machine.
    pub(crate) node: Option<Node>,
    /// Secret of its ranks; `None` to use that of the job.
    pub(crate) secret: Option<Vec<u8>>,
    /// Reason of the restart, if it is one.
    pub(crate) why: String,
}

/// End of the ranks of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MachineEnd {
    Success,
    Interrupted,
    /// The ranks were ended because of another machine.
    Elsewhere,
    Failed(String),
}

/// Returns the line of a launcher that got a signal.
pub(crate) fn interrupted() -> String {
    format!("ended {}", MachineEnd::Interrupted)
}

/// Connection of a launcher to the keeper of the membership of an elastic job, which is on node 0.
pub(crate) enum ElasticLink {
    /// The keeper is here, and gets these events of the other machines.
    Keeper(UnboundedReceiver<MachineEvent>),
    /// The keeper is there, and sends these orders.
    Member { keeper: LineSender, orders: UnboundedReceiver<String> },
}

/// Event of another machine of an elastic job, which has this number.
pub(crate) enum MachineEvent {
    /// It takes part from now on.
    Arrived(usize, LineSender),
    /// Its launcher has sent a message about a process.
    Message(usize, String),
    /// Its launcher has ended, or its connection.
    Gone(usize),
}

/// The next action after the end of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The job starts again, for this reason.
    Restart(String),
    /// The job has ended, without success on all machines if there is a reason.
    Stop(Option<String>),
}

impl MachineEnd {
    pub(super) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Success => MachineEnd::Success,
            Outcome::Elsewhere { .. } => MachineEnd::Elsewhere,
            Outcome::Interrupted { .. } => MachineEnd::Interrupted,
            Outcome::Failed(first) => MachineEnd::Failed(first.to_string()),
        }
    }

    /// Decodes the text of [`MachineEnd`]'s `Display`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            Some(("failed", how)) => Some(MachineEnd::Failed(how.to_owned())),
            _ if text == "success" => Some(MachineEnd::Success),
            _ if text == "interrupted" => Some(MachineEnd::Interrupted),
            _ if text == "elsewhere" => Some(MachineEnd::Elsewhere),
            _ => None,
        }
    }
}

impl fmt::Display for MachineEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MachineEnd::Success => f.write_str("success"),
            MachineEnd::Interrupted => f.write_str("interrupted"),
            MachineEnd::Elsewhere => f.write_str("elsewhere"),
            MachineEnd::Failed(how) => write!(f, "failed {how}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_it_was_written() {
        for end in [
            MachineEnd::Success,
            MachineEnd::Interrupted,
            MachineEnd::Elsewhere,
            MachineEnd::Failed("rank 3 (pid 7) exited with code 1".into()),
        ] {
            assert_eq!(MachineEnd::parse(&end.to_string()), Some(end));
        }
        assert_eq!(MachineEnd::parse("fine"), None);
    }
}
