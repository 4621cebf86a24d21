//! The rendezvous: the meeting place, the sides of rank 0 and of a member, and what they send each other.

pub(crate) mod announcement;
pub(super) mod broadcast;
pub(crate) mod join;
pub(super) mod join_messages;
pub(crate) mod lead;
pub(super) mod occupant;
pub(crate) mod peer_info;
pub(crate) mod registered;
pub(super) mod registry;
pub(super) mod rendezvous;
pub(crate) mod report;
