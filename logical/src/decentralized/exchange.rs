//! Exchange with neighbours: each gets a different message, whereas in gossip all get the same. For relays over a
//! tree.

use crate::centralized::{free_to_read, free_to_write};
use crate::{Buffer, Communicator, DType, Error, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Sends `outgoing[k]` to rank `neighbours[k]` and receives into `incoming[k]` from it, all at the same time. A
    /// collective call; neighbours must list each other.
    ///
    /// One step; a message of S to every neighbour. Memory: none. A rank waits for its neighbours only.
    ///
    /// # Errors
    /// [`Error::Usage`] unless the numbers of messages and neighbours are equal, and all messages have one type and
    /// length; [`Error::Mismatch`] if ranks differ in these and their messages meet, otherwise [`Error::Deadline`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # spawn(TransportKind::Thread, 2, |comm| {
    /// let said = [Buffer::from_slice(&[comm.rank() as f32])?];
    /// let heard = [Buffer::from_slice(&[9f32])?];
    /// comm.block_on(comm.neighbour_exchange(&[1 - comm.rank()], &said, &heard))?;
    /// assert_eq!(*heard[0].host::<f32>()?, [1.0 - comm.rank() as f32]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn neighbour_exchange<'a>(
        &'a self,
        neighbours: &'a [usize],
        outgoing: &'a [Buffer],
        incoming: &'a [Buffer],
    ) -> Primitive<'a> {
        Box::pin(async move {
            let all = || outgoing.iter().chain(incoming);
            let dtype = outgoing.first().map_or(DType::U8, Buffer::dtype);
            let len = outgoing.first().map_or(0, Buffer::len);
            let alike = all().all(|buffer| (buffer.dtype(), buffer.len()) == (dtype, len));
            if (outgoing.len(), incoming.len()) != (neighbours.len(), neighbours.len()) || !alike {
                let what = "messages of an exchange with neighbours are missing or of different lengths";
                return Err(Error::usage(
                    what,
                    "pass one outgoing and one incoming buffer for each neighbour, of one length",
                ));
            }
            neighbours.iter().try_for_each(|rank| self.check_rank(*rank))?;
            outgoing.iter().try_for_each(free_to_read)?;
            incoming.iter().try_for_each(free_to_write)?;
            self.operate(Fingerprint::new(OperationKind::Gossip, dtype, len), async |call| {
                let sends = neighbours.iter().zip(outgoing);
                let sends: Vec<_> =
                    sends.map(|(to, buffer)| call.send(*to, 0, buffer, 0..len)).collect::<Result<_>>()?;
                let receives = neighbours.iter().zip(incoming);
                let receives: Vec<_> = receives
                    .map(|(from, buffer)| call.recv(*from, 0, buffer, 0..len, ReceiveMode::Copy))
                    .collect::<Result<_>>()?;
                for message in receives.into_iter().chain(sends) {
                    message.await?;
                }
                Ok(())
            })
            .await
        })
    }
}
