//! Channels for further threads: the ranks of a group agree on a number, and a thread of each opens a communicator
//! there.

use super::group::Group;
use crate::asynchronous::Activity;
use crate::{Buffer, Communicator, Primitive, ReduceOp, Result, World};
use std::sync::Arc;

/// Channel that the ranks of a group have agreed on, for one more communicator of the same ranks. It moves between
/// threads; the communicator stays on the thread that opens it.
///
/// ```
/// # use hexagram_logical::testing::spawn;
/// # use hexagram_logical::{Result, TransportKind};
/// # spawn(TransportKind::Thread, 2, |comm| {
/// let channel = comm.block_on(comm.channel())?;
/// let other_thread = std::thread::spawn(move || -> Result<usize> {
///     let comm = channel.open()?;
///     comm.blocking().barrier()?;
///     Ok(comm.size())
/// });
/// assert_eq!(other_thread.join().unwrap()?, 2);
/// # Ok(())
/// # }).unwrap();
/// ```
pub struct Channel {
    world: World,
    number: u16,
    /// Ranks in the world, in the group's order.
    ranks: Arc<[usize]>,
}

impl Communicator {
    /// Agrees with the other ranks of this group on a channel that none of them uses. All of them call this. Two
    /// all-reduces of 4 bytes, and again if another thread takes the same number meanwhile.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Error::Usage`](crate::Error::Usage) after 2¹⁵ channels.
    pub fn channel<'a>(&'a self) -> Primitive<'a, Channel> {
        Box::pin(async move {
            loop {
                let proposal = self.world().propose_channel().inspect_err(|error| self.give_up(error))?;
                let number = self.extreme(proposal, ReduceOp::Max).await?;
                let is_free = self.world().take_channel(number);
                if self.extreme(is_free.into(), ReduceOp::Min).await? == 1 {
                    let ranks = Arc::clone(self.group().members());
                    return Ok(Channel { world: self.world().clone(), number, ranks });
                }
            }
        })
    }

    /// Returns the largest or smallest of all ranks' numbers.
    async fn extreme(&self, mine: u16, op: ReduceOp) -> Result<u16> {
        let mut number = Buffer::from_slice(&[i32::from(mine)])?;
        self.all_reduce(&mut number, op).await?;
        // All ranks contribute numbers of 16 bits.
        Ok(number.host::<i32>()?[0] as u16)
    }
}

impl Channel {
    /// Opens the communicator, on the calling thread. A thread of every rank of the group does so.
    ///
    /// # Errors
    /// As [`World::open_among`].
    pub fn open(self) -> Result<Communicator> {
        self.open_beside(Arc::default())
    }

    /// Returns the transport of the ranks.
    #[cfg(feature = "executor")]
    pub(crate) fn transport(&self) -> crate::TransportKind {
        self.world.transport()
    }

    /// Opens it for a thread that is reported together with the thread of this `activity`.
    pub(crate) fn open_beside(self, activity: Arc<Activity>) -> Result<Communicator> {
        let endpoint = self.world.open_among(self.number, &self.ranks)?;
        let group = Group::over(&*endpoint, self.ranks);
        Ok(Communicator::on_endpoint(self.world, endpoint, group, activity))
    }
}
