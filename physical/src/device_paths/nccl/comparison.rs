//! Comparison: before a collective is enqueued, its ranks compare their calls by
//! [control messages](crate::device_paths::device_path::control_message) of the host's transport.
//!
//! Ranks that call different NCCL collectives hang. So, in rounds k = 0, 1, …, member m of a group writes to m + 2^k and reads
//! from m − 2^k, under the label of the collective. A rank that has completed all rounds knows that all ranks agree, and that
//! each of them has enqueued all that it called before. So no GPU waits for a rank that has not reached the collective. Ranks
//! that call their collectives in different orders wait only for control messages, until their deadline.
//!
//! If NCCL has not connected the ranks, the control messages carry the name of their communicator, which the first rank draws.

use super::communicator::{UNKNOWN, draw};
use super::endpoint::NcclPath;
use super::queue::NcclOperation;
use crate::device_paths::device_path::control_message;
use crate::device_paths::device_path::control_message::PendingNumbers;
use crate::error::Result;
use crate::transport::{Label, Source, Transport};
use nccl_rs::UniqueId;

/// First step of the comparison, beyond the steps of any operation.
const COMPARISON: usize = 0xff00;

/// Number of integers of a name in a control message.
const NUMBERS: usize = UniqueId::SIZE / size_of::<u64>();

fn to_numbers(name: &UniqueId) -> [u64; NUMBERS] {
    bytemuck::cast(*name.as_bytes())
}

fn of_numbers(numbers: [u64; NUMBERS]) -> UniqueId {
    UniqueId::from_bytes(bytemuck::cast(numbers))
}

/// A round in which this rank has sent its control message, but not received the other one.
pub(super) struct Comparison {
    round: u32,
    /// Name of the communicator, if this rank has received it; `None` if the ranks are connected.
    name: Option<UniqueId>,
    mail: PendingNumbers,
}

impl Comparison {
    /// Returns the number of the round.
    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// Returns the name that is known after the round; `None` until its control message has arrived.
    ///
    /// # Errors
    /// Those of the receive, such as a mismatch.
    pub(super) fn heard(&self, host: &dyn Transport) -> Result<Option<Option<UniqueId>>> {
        let Some(own) = self.name else { return Ok(self.mail.take::<0>(host)?.map(|_| None)) };
        let heard = self.mail.take(host)?.map(|(_, numbers)| of_numbers(numbers));
        Ok(heard.map(|heard| Some(if own == UNKNOWN { heard } else { own })))
    }

    /// Abandons the round.
    pub(super) fn cancel(&self, host: &dyn Transport) {
        self.mail.cancel(host);
    }
}

/// Progress of a comparison.
pub(super) enum Compared {
    /// The comparison continues with another round.
    Next(Comparison),
    /// All ranks agree. The name is that of their communicator, unless they are connected.
    Over(Option<UniqueId>),
}

impl NcclPath {
    /// Begins to compare the calls of the ranks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if memory runs out, or NCCL has no name.
    pub(super) fn compare(&self, operation: &mut NcclOperation, are_connected: bool) -> Result<Compared> {
        let name = match are_connected {
            true => None,
            false if operation.members.place() == 0 => Some(draw()?),
            false => Some(UNKNOWN),
        };
        self.compare_from(operation, 0, name)
    }

    /// Begins a round, or ends the comparison after the last one.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if memory runs out.
    pub(super) fn compare_from(
        &self,
        operation: &mut NcclOperation,
        round: u32,
        name: Option<UniqueId>,
    ) -> Result<Compared> {
        let NcclOperation { label, members, sent, .. } = operation;
        if round >= members.rounds() {
            return Ok(Compared::Over(name));
        }
        let label = Label { tag: label.tag.at_step(COMPARISON + round as usize)?, ..*label };
        let numbers = name.map_or_else(Vec::new, |name| to_numbers(&name).to_vec());
        sent.push(control_message::post(&*self.host, &self.tally, members.after(round), label, &numbers)?);
        let from = Source::Rank(members.before(round));
        let mail = PendingNumbers::expect(&*self.host, from, label, numbers.len())?;
        Ok(Compared::Next(Comparison { round, name, mail }))
    }
}
