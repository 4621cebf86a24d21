//! The rendezvous: the meeting place, the sides of rank 0 and of a member, and their messages.

pub(crate) mod announcement;
pub(crate) mod attendance_file;
pub(super) mod broadcast;
pub(super) mod join_messages;
pub(super) mod joined_ranks;
pub(crate) mod peer_info;
pub(super) mod port_conflict;
pub(super) mod rendezvous;
pub(crate) mod rendezvous_leader;
pub(crate) mod rendezvous_member;
pub(crate) mod report;
