//! Elements of model data in host memory, wherever the data is: for files and for messages of mixed types.

use hexagram_logical::{Buffer, DType, ReadView, Result};

/// Returns elements of type `dtype` with these bytes, in host memory.
pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Buffer> {
    let buffer = Buffer::zeroed(dtype, bytes.len() / dtype.size())?;
    buffer.write_all()?.copy_from_bytes(bytes)?;
    Ok(buffer)
}

/// Returns a copy of a view in host memory.
pub(crate) fn on_host(view: &ReadView) -> Result<Buffer> {
    on_host_again(view, None)
}

/// Returns a copy of a view in host memory: that of an earlier copy, if type and length are equal.
pub(crate) fn on_host_again(view: &ReadView, earlier: Option<Buffer>) -> Result<Buffer> {
    let copy = match earlier {
        Some(earlier) if (earlier.dtype(), earlier.len()) == (view.dtype(), view.len()) => earlier,
        _ => Buffer::zeroed(view.dtype(), view.len())?,
    };
    copy.write_all()?.copy_from(view)?;
    Ok(copy)
}
