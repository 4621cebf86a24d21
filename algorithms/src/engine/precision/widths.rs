//! Conversions between parameters of 16 bits and their buckets of 32.

use hexagram_logical::codec::{Half, NotFinite};
use hexagram_logical::{Buffer, DType, Error, ReadView, ReduceOp, Result, WriteView};
use std::ops::Range;

fn half(dtype: DType) -> Half {
    let half = if dtype == DType::F16 { Half::F16 } else { Half::BF16 };
    half.with_not_finite(NotFinite::Propagate)
}

/// Stores `to ← from`, or `to ← to + from`, converted if `from` has 16 bits and `to` 32.
pub(crate) fn widen(from: &ReadView, to: &mut WriteView, add: bool) -> Result<()> {
    if from.dtype() == to.dtype() {
        return if add { to.reduce(ReduceOp::Sum, from) } else { to.copy_from(from) };
    }
    let converted = to.decode(&half(from.dtype()), from, add.then_some(1.0))?;
    converted.map_err(|refusal| Error::usage(refusal.to_string(), "pass the announced number of elements"))
}

/// Returns some elements of a bucket as a parameter of type `dtype`, rounded if `dtype` has 16 bits.
pub(crate) fn narrow(from: &Buffer, range: Range<usize>, dtype: DType) -> Result<ReadView> {
    let wide = from.read(range)?;
    if wide.dtype() == dtype {
        return Ok(wide);
    }
    let narrow = from.zeroed_same_device(dtype, wide.len())?;
    let converted = narrow.write_all()?.encode(&half(dtype), &wide, 0)?;
    converted.map_err(|refusal| {
        Error::usage(refusal.to_string(), "report it as a bug: 16 bits hold any number")
    })?;
    narrow.read_all()
}
