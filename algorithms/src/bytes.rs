//! Bytes of model data on the host, wherever the data is: for what files, comparisons and messages of mixed types need.
//! On another device they are copied down, and back.

use hexagram_logical::{Buffer, DType, Error, ReadView, Result, WriteView};
use std::borrow::Cow;

/// Returns the bytes of a view: the view's own on the host, a copy from elsewhere.
pub(crate) fn bytes_of(view: &ReadView) -> Result<Cow<'_, [u8]>> {
    match view.host_bytes() {
        Some(bytes) => Ok(Cow::Borrowed(bytes)),
        None => {
            let copy = on_host(view)?.read_all()?;
            Ok(Cow::Owned(copy.host_bytes().ok_or_else(unreachable)?.to_vec()))
        }
    }
}

/// Writes bytes into a view of as many.
pub(crate) fn write_bytes(view: &mut WriteView, bytes: &[u8]) -> Result<()> {
    match view.host_bytes_mut() {
        Some(to) => to.copy_from_slice(bytes),
        None => view.copy_from(&from_bytes(view.dtype(), bytes)?.read_all()?)?,
    }
    Ok(())
}

/// Returns elements of type `dtype` in host memory, with these bytes.
pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Buffer> {
    let buffer = Buffer::zeroed(dtype, bytes.len() / dtype.size())?;
    buffer.write_all()?.host_bytes_mut().ok_or_else(unreachable)?.copy_from_slice(bytes);
    Ok(buffer)
}

/// Returns a copy of a view in host memory.
pub(crate) fn on_host(view: &ReadView) -> Result<Buffer> {
    let copy = Buffer::zeroed(view.dtype(), view.len())?;
    copy.write_all()?.copy_from(view)?;
    Ok(copy)
}

fn unreachable() -> Error {
    Error::usage("a buffer of the host has no bytes there", "report this: its bytes are on the host")
}
