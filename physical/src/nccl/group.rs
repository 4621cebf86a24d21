//! Groups: which operations NCCL begins at a time. Open this to see why a group never holds up another rank's.
//!
//! Other ranks make up their groups as their own work comes, and so have others than this one. That is well as long as a
//! group waits for nothing but what each of its members would wait for by itself:
//!
//! - The first message of a *way*, from one rank to another, connects the two before anything of the group begins: NCCL
//!   visits all new peers of a group in an order of its own, and waits for each. So such a message is alone in its group
//!   on both sides, which have the same first message.
//! - NCCL has [`MOST_MESSAGES`] under way at once, whichever of them come first in the order.

use super::endpoint::{NcclOperation, NcclWork};

/// Messages of one group.
const MOST_MESSAGES: usize = 8;

/// Way of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    To(usize),
    From(usize),
}

/// An operation, as far as its company depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// A message with its way, and true if NCCL has something to send.
    Message(Way, bool),
    /// A collective, or what has been given up.
    Other,
}

impl Member {
    /// Returns an operation as a member.
    pub(super) fn of(operation: Option<&mut NcclOperation>) -> Self {
        let Some(NcclOperation { work, got, .. }) = operation else { return Member::Other };
        match work {
            Some(NcclWork::Send { to, .. }) => Member::Message(Way::To(*to), got.bytes > 0),
            Some(NcclWork::Receive { .. }) => Member::Message(Way::From(got.peer), got.bytes > 0),
            Some(NcclWork::Collective { .. }) | None => Member::Other,
        }
    }
}

/// Ways that NCCL has connected.
#[derive(Debug, Default)]
pub(super) struct Connected(Vec<Way>);

/// A group that is being made up.
#[derive(Debug)]
pub(super) struct Group<'a> {
    connected: &'a mut Connected,
    /// Ways of its messages.
    ways: Vec<Way>,
    /// True once nothing may be added.
    is_closed: bool,
}

impl<'a> Group<'a> {
    /// Begins a group.
    pub(super) fn new(connected: &'a mut Connected) -> Self {
        Group { connected, ways: Vec::new(), is_closed: false }
    }

    /// Adds an operation, unless the group has to go without. The first one it always takes.
    pub(super) fn add(&mut self, member: Member) -> bool {
        let Member::Message(way, is_sent) = member else {
            let is_first = self.ways.is_empty() && !self.is_closed;
            self.is_closed = true;
            return is_first;
        };
        let is_new = is_sent && !self.connected.0.contains(&way);
        let is_first = self.ways.is_empty() && !self.is_closed;
        let goes_along =
            !self.is_closed && !is_new && self.ways.len() < MOST_MESSAGES && !self.ways.contains(&way);
        if !is_first && !goes_along {
            return false;
        }
        self.is_closed = is_new;
        self.ways.push(way);
        self.connected.0.extend(is_new.then_some(way));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Member = Member::Message(Way::To(1), true);
    const FROM: Member = Member::Message(Way::From(1), true);
    const NOTHING: Member = Member::Message(Way::To(2), false);

    /// Returns how many of these go as one group.
    fn taken(connected: &mut Connected, members: &[Member]) -> usize {
        let mut group = Group::new(connected);
        members.iter().take_while(|member| group.add(**member)).count()
    }

    #[test]
    fn the_first_message_of_a_way_is_alone() {
        let connected = &mut Connected::default();
        assert_eq!(taken(connected, &[TO, FROM]), 1);
        assert_eq!(taken(connected, &[TO, FROM]), 1, "the way back is another one");
        assert_eq!(taken(connected, &[FROM, TO]), 1);
        assert_eq!(taken(connected, &[FROM, TO, TO]), 2);
        assert_eq!(taken(connected, &[NOTHING, TO, FROM]), 3, "nothing is sent, which connects nobody");
        assert_eq!(taken(connected, &[TO, Member::Message(Way::To(2), true)]), 1);
    }

    #[test]
    fn a_collective_is_alone() {
        let connected = &mut Connected(vec![Way::To(1)]);
        assert_eq!(taken(connected, &[Member::Other, Member::Other]), 1);
        assert_eq!(taken(connected, &[Member::Other, TO]), 1);
        assert_eq!(taken(connected, &[TO, Member::Other]), 1);
    }
}
