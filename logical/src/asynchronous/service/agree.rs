//! Agreement of the ranks before they create a primitive on a service.

use super::Service;
use crate::encoding::Encoding;
use crate::{Buffer, Communicator, DType, Error, ReceiveMode, Result};
use hexagram_physical::fingerprint::Fingerprint;

/// Fails unless the ranks of a service can average values like this one, with this encoding.
pub(crate) fn check(
    comm: &Communicator,
    service: &Service,
    value: &Buffer,
    encoding: Option<&Encoding>,
) -> Result<()> {
    service.check_ranks(comm)?;
    let dtype = value.dtype();
    if !dtype.is_float() {
        return Err(Error::usage(format!("{dtype} cannot be weighted"), "use a float type"));
    }
    if encoding.is_some() && dtype != DType::F32 {
        return Err(Error::usage(format!("codecs encode f32, not {dtype}"), "convert to f32 first"));
    }
    Ok(())
}

/// Sends byte r of `out` to every other rank r. Returns the received bytes: byte r comes from rank r.
pub(crate) async fn tell_everyone(
    comm: &Communicator,
    fingerprint: Fingerprint,
    out: &[u8],
) -> Result<Vec<u8>> {
    let n = comm.size();
    let rank = comm.rank();
    let out = Buffer::from_slice(out)?;
    let back = Buffer::zeroed(DType::U8, n)?;
    comm.operate(fingerprint, async |call| {
        for step in 1..n {
            let to = (rank + step) % n;
            let from = (rank + n - step) % n;
            let send = call.send(to, 0, &out, to..to + 1)?;
            call.recv(from, 0, &back, from..from + 1, ReceiveMode::Copy)?.await?;
            send.await?;
        }
        Ok(())
    })
    .await?;
    let back = back.host::<u8>()?;
    Ok(back.to_vec())
}

/// Returns once all ranks have called this, if all have the fingerprint `mine`.
///
/// # Errors
/// [`Error::Mismatch`] if fingerprints differ.
pub(crate) async fn agree(comm: &Communicator, mine: Fingerprint) -> Result<()> {
    tell_everyone(comm, mine, &vec![0; comm.size()]).await.map(drop)
}
