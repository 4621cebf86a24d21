//! The launchers of a job on several machines that may restart, or is elastic: they agree on each start and each end.
//!
//! ```text
//! member → leader   join NODE RANKS [elastic]                    once
//! leader → member   welcome                                       this launcher takes part
//! leader → member   busy WHY                                     another launcher has its number; try again
//! leader → member   start RESTART POSITION NODES ADDRESS KEY WHY a start of the ranks
//! member → leader   ended success | interrupted | elsewhere | failed HOW   all ranks of that machine have ended
//! leader → member   end WHY                                      the ranks of another machine have not succeeded
//! leader → member   stop [WHY]                                   the job has ended
//! both              member MESSAGE                               about one process of an elastic job (`elastic`)
//! both              alive                                        this process runs
//! leader → member   refused WHY                                  this launcher cannot take part
//! ```
//!
//! The launcher of node 0 leads. It listens at the address of the job, as long as it runs, and a launcher that comes later
//! waits there for the next start, or starts its ranks now if the job is elastic. Both sides prove the secret of the job first. Each start has a rendezvous and a secret of
//! its own, which every launcher derives from the secret of the job and `KEY`, so that a process left from the last start
//! cannot join the ranks. Other jobs do not need this: their launchers do not communicate.

pub(super) mod budget;
mod leader;
mod member;
mod messages;
mod wire;

use crate::outcome::Outcome;
use crate::{Job, Node};
use budget::{Budget, Checkpointed};
use hexagram_physical::Result;
use leader::Leader;
use member::Member;
pub(super) use member::refusal;
use messages::MachineEnd;
pub(super) use messages::{Decision, ElasticLink, MachineEvent, Start, interrupted};
use tokio::sync::mpsc::unbounded_channel;
pub(super) use wire::LineSender;

/// The machines of a job, as its launcher sees them.
pub(super) enum Machines {
    /// One machine, or several whose launchers do not communicate.
    Alone { node: Option<Node>, restart: u32 },
    /// This is the launcher of node 0.
    Leader(Leader),
    /// This is another one.
    Member(Member),
}

impl Machines {
    /// Meets the other launchers, if the job has several machines and may restart or is elastic.
    ///
    /// # Errors
    /// [`Error::Setup`](hexagram_physical::Error::Setup) and [`Error::System`](hexagram_physical::Error::System) if the
    /// address cannot be used, or the launchers refuse each other.
    pub(super) async fn open(job: &Job) -> Result<Self> {
        match &job.node {
            Some(node) if job.agrees() && node.number == 0 => Ok(Machines::Leader(Leader::open(job, node)?)),
            Some(node) if job.agrees() => Ok(Machines::Member(Member::open(job, node).await?)),
            node => Ok(Machines::Alone { node: node.clone(), restart: 0 }),
        }
    }

    /// Returns the next start, once enough machines are here.
    ///
    /// # Errors
    /// [`Error::Setup`](hexagram_physical::Error::Setup) if machines are missing after [`Job::rejoin_wait`], or the job
    /// has ended; [`Error::System`](hexagram_physical::Error::System) if the leader is gone.
    pub(super) async fn next_start(&mut self, why: String) -> Result<Start> {
        match self {
            Machines::Alone { node, restart } => {
                Ok(Start { restart: *restart, node: node.clone(), secret: None, why })
            }
            Machines::Leader(leader) => leader.next_start(why).await,
            Machines::Member(member) => member.next_start().await,
        }
    }

    /// Connects the ranks of this machine, in an elastic job, with the keeper of its membership. Messages flow during
    /// [`Machines::trouble`].
    pub(super) fn elastic_link(&mut self) -> ElasticLink {
        match self {
            Machines::Alone { .. } => ElasticLink::Keeper(unbounded_channel().1),
            Machines::Leader(leader) => ElasticLink::Keeper(leader.follow_members()),
            Machines::Member(member) => member.follow_orders(),
        }
    }

    /// Returns the reason for the end of the ranks of this machine, once ranks of another machine have failed.
    pub(super) async fn trouble(&mut self) -> String {
        match self {
            Machines::Alone { .. } => std::future::pending().await,
            Machines::Leader(leader) => leader.trouble().await,
            Machines::Member(member) => member.trouble().await,
        }
    }

    /// Returns the next action after this outcome of the ranks of this machine. The budget of the leader counts.
    ///
    /// # Errors
    /// [`Error::System`](hexagram_physical::Error::System) if the leader is gone.
    pub(super) async fn decide(
        &mut self,
        outcome: &Outcome,
        budget: &mut Budget,
        checkpointed: Checkpointed,
    ) -> Result<Decision> {
        match self {
            Machines::Alone { restart, .. } => match MachineEnd::of(outcome) {
                MachineEnd::Failed(how) if budget.allows(&how, checkpointed) => {
                    *restart += 1;
                    Ok(Decision::Restart(format!("{how} first")))
                }
                _ => Ok(Decision::Stop(None)),
            },
            Machines::Leader(leader) => Ok(leader.decide(outcome, budget, checkpointed).await),
            Machines::Member(member) => member.decide(&MachineEnd::of(outcome)).await,
        }
    }

    /// Ends the job on all machines, because a signal came between two starts.
    pub(super) async fn stop(self) {
        match self {
            Machines::Alone { .. } => {}
            Machines::Leader(mut leader) => leader.stop(Some("the launcher of node 0 was interrupted")).await,
            Machines::Member(member) => member.interrupt().await,
        }
    }
}
