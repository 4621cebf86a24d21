//! Groups: which operations NCCL begins at a time.
//!
//! Other ranks make up their groups as their own work comes, and so have others than this one. That is well as long as a
//! group waits for nothing but what each of its members would wait for by itself:
//!
//! - The first message of a *way*, from one rank to another, connects the two before anything of the group begins: NCCL
//!   visits all new peers of a group in an order of its own, and waits for each. So such a message is alone in its group
//!   on both sides, which have the same first message.
//! - NCCL has a schedule of rounds, by how far the peer's rank is from one's own. It begins a group's messages in that
//!   order, [`ROUNDS`] at once, and the others when those are over. So where there are more ranks than rounds, a message
//!   is alone: a later one could run ahead of an earlier one, and two such ranks wait for each other.
//!
//! A message to oneself needs no connection, but both of its sides in one group. They follow each other in the order: they
//! have one stamp but for the side, and the receiver's proposal holds the sender's turn up until it is settled, too.

use super::operation::{NcclOperation, NcclWork};

/// Rounds of NCCL's schedule whose messages are under way at once.
const ROUNDS: usize = 8;

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
    /// A message to oneself, to send it and to receive it.
    ToOneself,
    FromOneself,
    /// A collective, or what has been given up.
    Other,
}

impl Member {
    /// Returns an operation of a rank as a member.
    pub(super) fn of(operation: Option<&mut NcclOperation>, rank: usize) -> Self {
        let Some(NcclOperation { work, got, .. }) = operation else { return Member::Other };
        match work {
            Some(NcclWork::Send { to, .. }) if *to == rank => Member::ToOneself,
            Some(NcclWork::Receive { .. }) if got.peer == rank => Member::FromOneself,
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
    ranks: usize,
    /// Ways of its messages.
    ways: Vec<Way>,
    room: Room,
}

/// Operations that a group has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    All,
    Messages,
    /// The other side of a message to oneself.
    FromOneself,
    Nothing,
}

impl<'a> Group<'a> {
    /// Begins a group of a communicator of so many ranks.
    pub(super) fn new(connected: &'a mut Connected, ranks: usize) -> Self {
        Group { connected, ranks, ways: Vec::new(), room: Room::All }
    }

    /// Adds an operation, unless the group has to go without. The first one it always takes.
    pub(super) fn add(&mut self, member: Member) -> bool {
        let is_first = self.room == Room::All;
        let (goes_along, room) = match member {
            Member::Message(way, is_sent) => {
                let is_new = is_sent && !self.connected.0.contains(&way);
                let is_alone = is_new || self.ranks > ROUNDS;
                let goes_along = self.room == Room::Messages && !is_alone && !self.ways.contains(&way);
                if is_first || goes_along {
                    self.ways.push(way);
                    self.connected.0.extend(is_new.then_some(way));
                }
                (goes_along, if is_alone { Room::Nothing } else { Room::Messages })
            }
            Member::ToOneself => (false, Room::FromOneself),
            Member::FromOneself => (self.room == Room::FromOneself, Room::Nothing),
            Member::Other => (false, Room::Nothing),
        };
        if is_first || goes_along {
            self.room = room;
        }
        is_first || goes_along
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Member = Member::Message(Way::To(1), true);
    const FROM: Member = Member::Message(Way::From(1), true);
    const NOTHING: Member = Member::Message(Way::To(2), false);

    /// Returns how many of these go as one group.
    fn taken(connected: &mut Connected, ranks: usize, members: &[Member]) -> usize {
        let mut group = Group::new(connected, ranks);
        members.iter().take_while(|member| group.add(**member)).count()
    }

    #[test]
    fn the_first_message_of_a_way_is_alone() {
        let connected = &mut Connected::default();
        assert_eq!(taken(connected, 3, &[TO, FROM]), 1);
        assert_eq!(taken(connected, 3, &[TO, FROM]), 1, "the way back is another one");
        assert_eq!(taken(connected, 3, &[FROM, TO]), 1);
        assert_eq!(taken(connected, 3, &[FROM, TO, TO]), 2);
        assert_eq!(taken(connected, 3, &[NOTHING, TO, FROM]), 3, "nothing is sent, which connects nobody");
        assert_eq!(taken(connected, 3, &[TO, Member::Message(Way::To(2), true)]), 1);
    }

    #[test]
    fn a_collective_is_alone() {
        let connected = &mut Connected(vec![Way::To(1)]);
        assert_eq!(taken(connected, 3, &[Member::Other, Member::Other]), 1);
        assert_eq!(taken(connected, 3, &[Member::Other, TO]), 1);
        assert_eq!(taken(connected, 3, &[TO, Member::Other]), 1);
    }

    #[test]
    fn a_message_is_alone_where_nccl_has_more_rounds_than_it_begins_at_once() {
        let connected = &mut Connected(vec![Way::To(1), Way::From(1)]);
        assert_eq!(taken(connected, ROUNDS, &[TO, FROM]), 2);
        assert_eq!(taken(connected, ROUNDS + 1, &[TO, FROM]), 1);
    }

    #[test]
    fn both_sides_of_a_message_to_oneself_go_together() {
        let connected = &mut Connected(vec![Way::To(1), Way::From(1)]);
        let to = Member::ToOneself;
        let from = Member::FromOneself;
        for ranks in [ROUNDS, ROUNDS + 1] {
            assert_eq!(taken(connected, ranks, &[to, from, to]), 2);
            assert_eq!(taken(connected, ranks, &[to, TO]), 1);
            assert_eq!(taken(connected, ranks, &[TO, to]), 1);
        }
    }
}
