//! Devices: memory plus the arithmetic on it. Open this to add a kernel or a kind of memory.
//!
//! A buffer belongs to one [`Queue`] of a device; the host's is the simplest. Arithmetic is asked of views
//! ([`WriteView::reduce`] and its like) and goes to the queue of what it writes. Kernels *enqueue*: they return once the
//! work is ordered behind earlier work on the same memory, which on the host means done. Collectives and algorithms are
//! written once against views, and never name a device.
//!
//! `arithmetic` has what can be asked and the host's way, `elsewhere` that of other devices, [`queue`] what such a device
//! implements, [`kernels`] and `host` the host's kernels. [`crate::testing::late`] is a whole device in two pages.

mod arithmetic;
mod elsewhere;
pub(crate) mod host;
pub mod kernels;
pub mod queue;
mod reduce;
mod weighted;

pub(crate) use queue::Order;
pub use queue::{Allocation, DeviceQueue, Event, Failure, Queue};

use crate::codec::{Codec, CodecError};
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::memory::{Buffer, ReadView, WriteView};

/// Arithmetic by name of a device; on its way out, as views do it.
#[allow(missing_docs, clippy::missing_errors_doc, reason = "gone when its last user is")]
pub trait Device: Send + Sync {
    fn name(&self) -> &str {
        "host"
    }
    fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed(dtype, len)
    }
    fn clear(&self, to: &mut WriteView) {
        to.clear();
    }
    fn copy(&self, from: &ReadView, to: &mut WriteView) -> Result<()> {
        to.copy_from(from)
    }
    fn reduce(&self, op: ReduceOp, from: &ReadView, to: &mut WriteView) -> Result<()> {
        to.reduce(op, from)
    }
    fn scale(&self, factor: f64, to: &mut WriteView) -> Result<()> {
        to.scale(factor)
    }
    fn add_scaled(&self, weight: f64, from: &ReadView, to: &mut WriteView) -> Result<()> {
        to.add_scaled(weight, from)
    }
    fn weighted_sum(&self, terms: &[(f64, Option<&ReadView>)], to: &mut WriteView) -> Result<()> {
        to.weighted_sum(terms)
    }
    fn encode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        to: &mut WriteView,
        seed: u64,
    ) -> Result<Result<usize, CodecError>> {
        to.encode(codec, from, seed)
    }
    fn decode(
        &self,
        codec: &dyn Codec,
        from: &ReadView,
        weight: Option<f32>,
        to: &mut WriteView,
    ) -> Result<Result<(), CodecError>> {
        to.decode(codec, from, weight)
    }
}

/// Host memory and the CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Device for Host {}

/// `to ← to × (1 ÷ ranks)`, for float types: what makes a sum a mean.
pub(crate) fn divide(ranks: usize, dtype: DType, to: &mut [u8]) {
    reduce::scale(dtype, 1.0 / ranks as f64, to);
}

/// Makes every NaN the one that reductions here give, after somebody else's reduction of f32 or f64.
#[cfg(feature = "mpi")]
pub(crate) fn canonicalize(dtype: DType, to: &mut [u8]) {
    reduce::canonicalize(dtype, to);
}

/// Adds f32 that another process may write meanwhile, equally many and aligned.
pub(crate) fn add_shared(from: kernels::SharedFloats<'_>, to: &mut [u8]) {
    kernels::add_shared(from, bytemuck::cast_slice_mut(to));
}

/// Accumulates bytes that arrive from a transport; whole elements only, `from` at any alignment.
pub(crate) fn land(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    reduce::reduce(op, dtype, from, to);
}
