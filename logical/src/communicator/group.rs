//! Groups: some ranks of the world, with new numbers, and separate messages.

use crate::{Error, Result};
use hexagram_physical::transport::Transport;
use std::sync::{Arc, Mutex, PoisonError};

/// Kind of operation. Each has its own tags and counters: not all ranks take part in the operations of other ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagKind {
    Collective = 0,
    /// Message between two ranks, in the order of their calls.
    Message = 1,
    /// Message under a user tag.
    Tagged = 2,
    /// Message between two ranks that create a group.
    Grouping = 3,
}

/// Number of kinds.
pub(crate) const KINDS: u32 = 4;

/// Ranks of a communicator on an endpoint.
pub(crate) struct Group {
    /// Number, unique among the groups that any two of its members share; 0 is the world, and 1 all ranks of an
    /// endpoint that connects only some.
    number: u32,
    rank: usize,
    /// Rank in the world of each rank of the group.
    members: Arc<[usize]>,
}

/// Returns the numbers below `size`, which the worlds of one process share.
fn all_below(size: usize) -> Arc<[usize]> {
    static LAST: Mutex<Option<Arc<[usize]>>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some(numbers) if numbers.len() == size => Arc::clone(numbers),
        _ => Arc::clone(last.insert((0..size).collect())),
    }
}

impl Group {
    /// First number that groups of an endpoint are given.
    pub(crate) const FIRST_FREE: u32 = 2;

    pub(crate) fn new(number: u32, rank: usize, members: Arc<[usize]>) -> Self {
        Group { number, rank, members }
    }

    pub(crate) fn world(rank: usize, size: usize) -> Self {
        Group { number: 0, rank, members: all_below(size) }
    }

    /// Returns the group of all ranks that an endpoint connects.
    pub(crate) fn over(endpoint: &dyn Transport, members: Arc<[usize]>) -> Self {
        let is_world = members.iter().copied().eq(0..endpoint.size());
        let group = Group { number: u32::from(!is_world), rank: 0, members };
        // An endpoint is open among ranks of which this one is one.
        let rank = group.rank_of(endpoint.rank()).unwrap_or_default();
        Group { rank, ..group }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the rank in the group of a rank of the world.
    pub(crate) fn rank_of(&self, world_rank: usize) -> Option<usize> {
        match self.members.get(world_rank) == Some(&world_rank) {
            true => Some(world_rank),
            false => self.members.iter().position(|member| *member == world_rank),
        }
    }

    pub(crate) fn members(&self) -> &Arc<[usize]> {
        &self.members
    }

    pub(crate) fn is_world(&self) -> bool {
        self.number == 0
    }

    /// Returns the number of the communicator in tags.
    pub(crate) fn communicator(&self, kind: TagKind) -> u32 {
        KINDS * self.number + kind as u32
    }

    /// Fails unless the rank exists.
    pub(crate) fn check(&self, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::usage(
            format!("rank {rank} does not exist among {} ranks", self.size()),
            "ranks count from 0 to size - 1",
        ))
    }
}
