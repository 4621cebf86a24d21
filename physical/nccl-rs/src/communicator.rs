//! Communicators: how they begin, when they are ready, and how they end.

use crate::collectives::OnStream;
use crate::error::{Error, Result, Status};
use crate::id::UniqueId;
use crate::library::{CommHandle, Config, Functions, functions, integer};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// Time between two polls of an operation in NCCL.
const TICK: Duration = Duration::from_millis(1);

/// Color of a rank that joins no new communicator.
const NO_COLOR: c_int = -1;

impl UniqueId {
    /// Draws a new id. The process that draws the id serves the ranks while they connect, and must run until then.
    ///
    /// # Errors
    /// Those of [`version`](crate::version) without a suitable NCCL; [`Error::Refused`](crate::Error::Refused) if the machine
    /// has no network interface that NCCL can use.
    pub fn new() -> Result<Self> {
        let nccl = functions()?;
        let mut id = UniqueId([0; Self::SIZE]);
        // SAFETY: the pointer is valid for a write of one id.
        let status = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
        nccl.expect(status)?;
        Ok(id)
    }
}

/// One rank of a communicator: a GPU that communicates with those of the other ranks.
///
/// No call waits for another rank. Each call begins an operation, and the communicator accepts the next call once it [is
/// ready](Self::is_ready). One thread at a time may use it, and the context of the GPU must be current on that thread.
///
/// End it with [`finalize`](Self::finalize) and [`destroy`](Self::destroy) after its work, or with
/// [`abort`](Self::abort). Dropping it aborts it.
#[derive(Debug)]
pub struct Communicator {
    nccl: &'static Functions,
    handle: CommHandle,
    /// Error of the call that created it, if NCCL refused the call but returned a communicator.
    refused: Option<Error>,
}

// SAFETY: Any thread may use an NCCL communicator, one at a time.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to connect the GPU of this thread's context, as rank `rank` of `ranks`, with all callers that pass the same id.
    /// NCCL does this on its own thread.
    ///
    /// # Errors
    /// Those of [`version`](crate::version) without a suitable NCCL; [`Error::OutOfRange`]; [`Error::Refused`].
    /// [`is_ready`](Self::is_ready) returns later failures.
    pub fn new(id: UniqueId, rank: usize, ranks: usize) -> Result<Self> {
        let nccl = functions()?;
        let [rank, ranks] = [integer(rank)?, integer(ranks)?];
        let mut handle: CommHandle = null_mut();
        let mut config = Config::without_blocking();
        // SAFETY: the pointer is valid for a write of one communicator, and the settings outlive the call.
        let status = unsafe { (nccl.ncclCommInitRankConfig)(&mut handle, ranks, id, rank, &mut config) };
        let refused = nccl.expect(status).err();
        match refused {
            Some(error) if handle.is_null() => Err(error),
            refused => Ok(Communicator { nccl, handle, refused }),
        }
    }

    /// Returns true once NCCL has completed the last call, and false while the call is in progress.
    ///
    /// # Errors
    /// [`Error::Refused`] if that has failed. Then the only call left is [`abort`](Self::abort).
    pub fn is_ready(&self) -> Result<bool> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let mut status = Status::SUCCESS;
        // SAFETY: the communicator is valid, and so is the pointer for a write of one number.
        self.nccl.expect(unsafe { (self.nccl.ncclCommGetAsyncError)(self.handle, &mut status) })?;
        self.nccl.expect(status)?;
        Ok(status == Status::SUCCESS)
    }

    /// Waits until NCCL has completed the last call, for at most `limit`. The thread polls every millisecond.
    ///
    /// # Errors
    /// As [`is_ready`](Self::is_ready); [`Error::Late`].
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.is_ready()? {
            if begun.elapsed() > limit {
                return Err(Error::Late { after: limit });
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Returns the number of this rank.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn rank(&self) -> Result<usize> {
        self.number(self.nccl.ncclCommUserRank)
    }

    /// Returns the number of ranks.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ranks(&self) -> Result<usize> {
        self.number(self.nccl.ncclCommCount)
    }

    fn number(&self, ask: unsafe extern "C" fn(CommHandle, *mut c_int) -> Status) -> Result<usize> {
        let mut number = 0;
        // SAFETY: the communicator is valid, and so is the pointer for a write of one number.
        self.nccl.expect(unsafe { ask(self.handle, &mut number) })?;
        Ok(usize::try_from(number).unwrap_or(0))
    }

    /// Returns the collectives of this communicator on a stream: CUDA's `CUstream` or `cudaStream_t`, of the communicator's
    /// GPU.
    pub fn on(&self, stream: *mut c_void) -> OnStream<'_> {
        OnStream { nccl: self.nccl, handle: self.handle, stream }
    }

    /// Begins to divide the ranks by their colors: the ranks of one color get a communicator, ordered by their keys, and then
    /// by their ranks here. A rank without a color gets none. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::OutOfRange`] for a color above 2³¹ − 1.
    pub fn split(&self, color: Option<usize>, key: i32) -> Result<Split<'_>> {
        let color = color.map_or(Ok(NO_COLOR), integer)?;
        let place = Box::into_raw(Box::new(AtomicPtr::new(null_mut())));
        // Until NCCL is done, it may write this memory.
        let split = Split { parent: self, place, is_over: false };
        // SAFETY: the communicator and the pointer are valid. Without settings, those of this communicator hold.
        let status =
            unsafe { (self.nccl.ncclCommSplit)(self.handle, color, key, (*place).as_ptr(), null_mut()) };
        self.nccl.expect(status)?;
        Ok(split)
    }

    /// Begins to end the communicator: NCCL waits for the work on its streams. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn finalize(&self) -> Result<()> {
        // SAFETY: the communicator is valid.
        self.nccl.expect(unsafe { (self.nccl.ncclCommFinalize)(self.handle) })
    }

    /// Frees a communicator that is finalized and ready. Waits until no rank of this host has a connection to this one, so call
    /// it on a separate thread if another rank may be late. A communicator that is not finalized waits for its work, too.
    ///
    /// # Errors
    /// [`Error::Refused`], such as for a communicator that is not ready. NCCL then keeps it until the process ends.
    pub fn destroy(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the communicator is valid, and is not used after this.
        this.nccl.expect(unsafe { (this.nccl.ncclCommDestroy)(this.handle) })
    }

    /// Ends the communicator with its pending calls and its work on streams, whatever the other ranks do. Waits until the GPU
    /// has reached that work, so earlier work on the stream must end by itself.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn abort(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the communicator is valid, and is not used after this.
        this.nccl.expect(unsafe { (this.nccl.ncclCommAbort)(this.handle) })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: the communicator is valid, and is not used after this. The result of NCCL is no longer needed.
        unsafe { (self.nccl.ncclCommAbort)(self.handle) };
    }
}

/// A communicator that NCCL is splitting off its parent.
///
/// A split that is dropped before NCCL is done leaves the new communicator to NCCL until the process ends.
#[derive(Debug)]
pub struct Split<'a> {
    parent: &'a Communicator,
    /// Memory to which NCCL writes the handle of the new communicator.
    place: *mut AtomicPtr<c_void>,
    /// True once NCCL no longer writes there.
    is_over: bool,
}

impl Split<'_> {
    /// Waits until NCCL has connected the ranks, for at most `limit`, and returns the new communicator; `None` for a rank
    /// without a color. The parent then takes calls again.
    ///
    /// # Errors
    /// As [`Communicator::wait`].
    pub fn wait(mut self, limit: Duration) -> Result<Option<Communicator>> {
        self.parent.wait(limit)?;
        self.is_over = true;
        // SAFETY: the pointer is valid until this is dropped.
        let handle = unsafe { &*self.place }.load(Ordering::Acquire);
        let nccl = self.parent.nccl;
        Ok((!handle.is_null()).then(|| Communicator { nccl, handle, refused: None }))
    }
}

impl Drop for Split<'_> {
    fn drop(&mut self) {
        if self.is_over {
            // SAFETY: it is from `Box::into_raw`, and NCCL is done with it.
            drop(unsafe { Box::from_raw(self.place) });
        }
    }
}
