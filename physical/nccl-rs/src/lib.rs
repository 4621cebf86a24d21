//! [NCCL](https://docs.nvidia.com/deeplearning/nccl/), NVIDIA's library of collectives between GPUs.
//!
//! - **Loaded at run time.** A program builds without NCCL and without CUDA, and runs without them until it asks for NCCL:
//!   [`version`] and [`UniqueId::new`] return an [`Error`] that says what is missing.
//! - **No call waits for another rank.** Communicators are created with NCCL's option `blocking = 0`. A call begins an
//!   operation, and [`Communicator::is_ready`] or [`Communicator::wait`] reports its completion. So a late or dead rank never
//!   blocks a thread, and a communicator can be ended with [`Communicator::abort`].
//! - **Errors are values.** Nothing panics. An error contains the result of NCCL, its description and the last warning.
//! - **Bring your own CUDA.** Memory is a device address as `u64`, and a stream is a pointer as `*mut c_void`: CUDA's
//!   `CUdeviceptr` and `CUstream`, as cudarc, cust and other libraries define them. So this crate works with each of them, and
//!   depends on none.
//!
//! NCCL has to be version 2.27.3 or newer ([`Version::OLDEST`] says why).
//!
//! # Example
//! Rank `rank` of `ranks`, on a thread with the context of its GPU. One rank draws the id, and the others get its bytes, for
//! example by a file or a socket. `examples/all_reduce.rs` is a whole program.
//!
//! ```no_run
//! use nccl_rs::{Communicator, DataType, Reduction, UniqueId};
//! use std::ffi::c_void;
//! use std::time::Duration;
//!
//! /// Sums `count` floats at a device address over all ranks, in place.
//! ///
//! /// # Safety
//! /// The address is that of `count` floats on the GPU of the thread's context, and the stream is of that GPU. Both live
//! /// until the stream is done.
//! unsafe fn sum(
//!     id: UniqueId,
//!     (rank, ranks): (usize, usize),
//!     (address, count): (u64, usize),
//!     stream: *mut c_void,
//! ) -> Result<(), nccl_rs::Error> {
//!     let limit = Duration::from_secs(60);
//!     let communicator = Communicator::new(id, rank, ranks)?;
//!     communicator.wait(limit)?;
//!     // SAFETY: as the caller says.
//!     unsafe {
//!         let on = communicator.on(stream);
//!         on.all_reduce(address, address, count, DataType::Float32, Reduction::Sum)?;
//!     }
//!     // Until the sum is on the stream. The program waits for the stream itself, before it reads the memory.
//!     communicator.wait(limit)?;
//!     communicator.finalize()?;
//!     communicator.wait(limit)?;
//!     communicator.destroy()
//! }
//! ```
//!
//! # Rules of NCCL that types do not show
//! - The context of its GPU must be current on a thread that calls a communicator. Otherwise NCCL creates a context on the
//!   first GPU.
//! - A communicator that is not ready accepts only [`is_ready`](Communicator::is_ready), [`wait`](Communicator::wait) and
//!   [`abort`](Communicator::abort). NCCL refuses others, and the communicator has failed.
//! - All ranks call the same collectives in the same order. Where they do not, they wait for each other until they are
//!   aborted.
//! - A collective runs on a stream. NCCL does not report when the stream reaches it; query the stream.

mod collectives;
mod communicator;
mod error;
mod group;
mod id;
mod library;
mod version;

pub use collectives::{DataType, OnStream, Reduction};
pub use communicator::{Communicator, Split};
pub use error::{Error, Result, Status};
pub use group::group;
pub use id::UniqueId;
pub use library::version;
pub use version::Version;
