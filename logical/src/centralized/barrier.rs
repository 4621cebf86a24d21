//! Barrier: no rank continues before all have arrived.

use crate::{Buffer, Communicator, DType, Primitive, ReceiveMode};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Waits until every rank has called it.
    ///
    /// Dissemination, ⌈log₂ n⌉ rounds: in round k every rank notifies the rank at distance 2ᵏ. Bytes sent per rank:
    /// ⌈log₂ n⌉ headers. Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if another rank calls a different operation.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{TransportKind};
    /// # use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    /// static BEFORE: AtomicUsize = AtomicUsize::new(0);
    /// # spawn(TransportKind::Thread, 3, |comm| {
    /// BEFORE.fetch_add(1, Relaxed);
    /// comm.block_on(comm.barrier())?;
    /// assert_eq!(BEFORE.load(Relaxed), 3);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn barrier<'a>(&'a self) -> Primitive<'a> {
        Box::pin(async move {
            let fingerprint = Fingerprint::new(OperationKind::Barrier, DType::U8, 0);
            if let Some(outcome) = self.at_once(fingerprint, &mut []) {
                return outcome;
            }
            let nothing = Buffer::zeroed(DType::U8, 0)?;
            let rank = self.rank();
            let size = self.size();
            self.operate(fingerprint, async |call| {
                if let Some(native) = call.native(None, nothing.write(0..0)?) {
                    return native.await.map(drop);
                }
                for round in 0.. {
                    let reach = 1 << round;
                    if reach >= size {
                        break;
                    }
                    let send = call.send((rank + reach) % size, round, &nothing, 0..0)?;
                    call.recv((rank + size - reach) % size, round, &nothing, 0..0, ReceiveMode::Copy)?
                        .await?;
                    send.await?;
                }
                Ok(())
            })
            .await
        })
    }
}
