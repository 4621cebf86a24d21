//! Broadcast: every rank gets the buffer of one rank.

use crate::{Buffer, Call, Communicator, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Copies the buffer of rank `root` to every rank.
    ///
    /// Binomial tree, ⌈log₂ n⌉ rounds: in round k the ranks that have the data send it to the rank at distance 2ᵏ.
    /// Bytes sent: (n − 1) · S over all ranks, at most ⌈log₂ n⌉ · S by one. Memory: none. Determinism: bytes are
    /// copied.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the root is out of range; [`Error::Mismatch`](crate::Error::Mismatch)
    /// if ranks differ in root, element type or length.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// let mut x = Buffer::from_slice(&[10.0 + comm.rank() as f32])?;
    /// comm.block_on(comm.broadcast(&mut x, 2))?;
    /// assert_eq!(*x.host::<f32>()?, [12.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn broadcast<'a>(&'a self, buffer: &'a mut Buffer, root: usize) -> Primitive<'a> {
        Box::pin(async move {
            self.check_rank(root)?;
            let fingerprint = Fingerprint {
                root: Some(root as u32),
                ..Fingerprint::new(OperationKind::Broadcast, buffer.dtype(), buffer.len())
            };
            let outcome = buffer.idle_bytes().and_then(|bytes| self.at_once(fingerprint, bytes));
            if let Some(outcome) = outcome {
                return outcome;
            }
            let output = buffer.write_all()?;
            self.operate(fingerprint, async |call| {
                if let Some(native) = call.native(None, output) {
                    return native.await.map(drop);
                }
                self.spread(call, buffer, root).await
            })
            .await
        })
    }

    /// Sends and receives the messages of a broadcast, within an operation.
    pub(super) async fn spread(&self, call: &Call<'_>, buffer: &Buffer, root: usize) -> Result<()> {
        let size = self.size();
        let place = (self.rank() + size - root) % size;
        let at = |place: usize| (place + root) % size;
        let whole = 0..buffer.len();
        let mut sends = Vec::new();
        for round in 0.. {
            let reach = 1 << round;
            if reach >= size {
                break;
            }
            if place < reach && place + reach < size {
                sends.push(call.send(at(place + reach), round, buffer, whole.clone())?);
            } else if (reach..2 * reach).contains(&place) {
                call.recv(at(place - reach), round, buffer, whole.clone(), ReceiveMode::Copy)?.await?;
            }
        }
        for send in sends {
            send.await?;
        }
        Ok(())
    }
}
