//! The exchange of identities before a choice: each rank receives the identities of all, in one round for each binary digit of
//! the number of ranks.
//!
//! After round k a rank has the identities of 2^k ranks from itself on. It then receives those of the next 2^k ranks from the
//! rank 2^k ahead, and sends its own to the rank 2^k behind.

use super::choice::{BYTES, RankFacts};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source, Transport};
use crate::waiting::drive::block_on;
use std::time::Duration;

/// Number of the communicator in tags, which no group has.
const COMMUNICATOR: u32 = u32::MAX;

/// Sends the identity of this rank to all ranks, and returns theirs, by rank.
///
/// # Errors
/// Errors of messages; [`Error::Setup`] if this version cannot decode the identity of a rank.
pub(super) fn exchange(
    transport: &dyn Transport,
    mine: &RankFacts,
    limit: Duration,
) -> Result<Vec<RankFacts>> {
    let size = transport.size();
    let table = Buffer::zeroed(DType::U8, size * BYTES)?;
    table.write(0..BYTES)?.bytes_mut().copy_from_slice(&mine.to_bytes());
    let poison = Poison::default();
    let terms = OperationContext { transport, poison: &poison, deadline: limit };
    block_on(transport, gather(terms, &table))?;
    let table = table.read_all()?;
    let read = |rank: usize| {
        let place = (rank + size - transport.rank()) % size;
        RankFacts::from_bytes(&table.bytes()[place * BYTES..][..BYTES]).ok_or_else(|| {
            let what = format!("{} describes a device that is not known", transport.health().peers()[rank]);
            Error::setup(what, "use the same build on all ranks")
        })
    };
    (0..size).map(read).collect()
}

/// Fills a table of which this rank has the first row.
async fn gather(terms: OperationContext<'_>, table: &Buffer) -> Result<()> {
    let rank = terms.transport.rank();
    let size = terms.transport.size();
    let fingerprint = Fingerprint::new(OperationKind::Attach, DType::U8, size);
    let mut had = 1;
    for round in 0.. {
        if had >= size {
            break;
        }
        let label = Label { tag: Tag::new(COMMUNICATOR, 0, 0, round)?, fingerprint };
        let more = had.min(size - had);
        let from = Source::Rank((rank + had) % size);
        let to = (rank + size - had) % size;
        let view = table.write(had * BYTES..(had + more) * BYTES)?;
        let recv = Operation::new(
            terms,
            terms.transport.post_recv(from, label, view, ReceiveMode::Copy),
            from,
            label,
        );
        let view = table.read(0..more * BYTES)?;
        let send = Operation::new(terms, terms.transport.post_send(to, label, view), Source::Rank(to), label);
        recv.await?;
        send.await?;
        had += more;
    }
    Ok(())
}
