//! The collectives of a communicator, on a stream.

use crate::error::Result;
use crate::library::{CommHandle, Functions, integer};
use std::ffi::{c_int, c_void};

/// Type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    /// `i8`.
    Int8 = 0,
    /// `u8`.
    Uint8 = 1,
    /// `i32`.
    Int32 = 2,
    /// `u32`.
    Uint32 = 3,
    /// `i64`.
    Int64 = 4,
    /// `u64`.
    Uint64 = 5,
    /// Float of 16 bits, IEEE's binary16.
    Float16 = 6,
    /// `f32`.
    Float32 = 7,
    /// `f64`.
    Float64 = 8,
    /// Float of 16 bits with the exponent of `f32`.
    Bfloat16 = 9,
}

impl DataType {
    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }
}

/// Way to combine the elements of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Reduction {
    /// Sum.
    Sum = 0,
    /// Product.
    Product = 1,
    /// Greatest; of floats, NaN counts as missing.
    Max = 2,
    /// Least; of floats, NaN counts as missing.
    Min = 3,
    /// Mean. Floats are multiplied by 1/n, rounded to the type, before they are summed; integers are divided after it.
    Average = 4,
}

/// The collectives of a communicator, on one stream.
///
/// A collective returns when NCCL has begun to enqueue it; the communicator [is ready](crate::Communicator::is_ready) when it
/// is on the stream. The first collective is not ready until all ranks have called it. The result is in memory when the stream
/// has passed the collective. A collective of no elements does nothing.
///
/// # Safety
/// For all functions: the stream is of the communicator's GPU. Addresses point to memory of this GPU that NCCL may use, with
/// the number of elements stated at each function. Stream and memory live until the stream is past the collective, or the
/// communicator is aborted. Until then, only work on the same stream may write the memory, or read the result. All ranks call
/// it with the same count, type, reduction and root. The communicator of a call within a [`group`](crate::group) lives until
/// the group has ended.
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'a> {
    pub(crate) nccl: &'a Functions,
    pub(crate) handle: CommHandle,
    pub(crate) stream: *mut c_void,
}

impl OnStream<'_> {
    /// Combines `count` elements of all ranks at `from` into `to`, on every rank. The two may be the same.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), as all functions here.
    ///
    /// # Safety
    /// As [`OnStream`] says.
    pub unsafe fn all_reduce(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: DataType,
        op: Reduction,
    ) -> Result<()> {
        let (dtype, op) = (dtype as c_int, op as c_int);
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.nccl.ncclAllReduce)(from, to, count, dtype, op, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Combines `count` elements of all ranks at `from` into `to`, on rank `root` only.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Error::OutOfRange`](crate::Error::OutOfRange) for the root.
    ///
    /// # Safety
    /// As [`OnStream`] says. Only the root has memory at `to`.
    pub unsafe fn reduce(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: DataType,
        op: Reduction,
        root: usize,
    ) -> Result<()> {
        let (dtype, op, root) = (dtype as c_int, op as c_int, integer(root)?);
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.nccl.ncclReduce)(from, to, count, dtype, op, root, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Combines the elements of all ranks at `from`, and gives each rank its part of `count` elements at `to`. There are
    /// `count` elements for every rank at `from`; `to` may be this rank's part of them.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As [`OnStream`] says.
    pub unsafe fn reduce_scatter(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: DataType,
        op: Reduction,
    ) -> Result<()> {
        let (dtype, op) = (dtype as c_int, op as c_int);
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.nccl.ncclReduceScatter)(from, to, count, dtype, op, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Concatenates `count` elements of every rank at `from` into `to`, in the order of ranks, on every rank. `from` may be
    /// this rank's part of `to`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As [`OnStream`] says.
    pub unsafe fn all_gather(&self, from: u64, to: u64, count: usize, dtype: DataType) -> Result<()> {
        let dtype = dtype as c_int;
        // SAFETY: as the caller says.
        let status = unsafe { (self.nccl.ncclAllGather)(from, to, count, dtype, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Copies `count` elements of rank `root` at `from` to `to`, on every rank. The two may be the same.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Safety
    /// As [`OnStream`] says. Only the root has memory at `from`.
    pub unsafe fn broadcast(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: DataType,
        root: usize,
    ) -> Result<()> {
        let (dtype, root) = (dtype as c_int, integer(root)?);
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.nccl.ncclBroadcast)(from, to, count, dtype, root, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Sends `count` elements at `from` to a rank, which calls [`recv`](Self::recv). The stream waits until it does. Ranks
    /// that send and receive at the same time call both in one [`group`](crate::group).
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), for the peer.
    ///
    /// # Safety
    /// As [`OnStream`] says. The peer receives the same number of elements of the same type.
    pub unsafe fn send(&self, from: u64, count: usize, dtype: DataType, peer: usize) -> Result<()> {
        let (dtype, peer) = (dtype as c_int, integer(peer)?);
        // SAFETY: as the caller says.
        let status = unsafe { (self.nccl.ncclSend)(from, count, dtype, peer, self.handle, self.stream) };
        self.nccl.expect(status)
    }

    /// Receives `count` elements at `to` from a rank, which calls [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Safety
    /// As [`OnStream`] says. The peer sends the same number of elements of the same type.
    pub unsafe fn recv(&self, to: u64, count: usize, dtype: DataType, peer: usize) -> Result<()> {
        let (dtype, peer) = (dtype as c_int, integer(peer)?);
        // SAFETY: as the caller says.
        let status = unsafe { (self.nccl.ncclRecv)(to, count, dtype, peer, self.handle, self.stream) };
        self.nccl.expect(status)
    }
}
