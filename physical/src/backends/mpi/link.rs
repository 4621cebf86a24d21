//! The link between two processes: MPI requests, each with the memory that it touches.

use super::library::check;
use crate::error::Result;
use mpi::ffi;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};

/// Communicator. It lives until the process ends: freeing one is collective, and a rank that closes its endpoint alone
/// must not wait.
#[derive(Clone, Copy)]
pub(super) struct MpiComm(pub(super) ffi::MPI_Comm);

// SAFETY: a handle; MPI is called from several threads only if it allows that.
unsafe impl Send for MpiComm {}
// SAFETY: as above.
unsafe impl Sync for MpiComm {}

/// A rank of the world, and its number in a communicator of some ranks.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) comm: MpiComm,
    pub(super) rank: usize,
    pub(super) place: usize,
}

/// Result of a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompletedRequest {
    pub(super) source: usize,
    pub(super) bytes: usize,
}

/// MPI requests, with the owner of the memory that they read and write. If it is dropped while a request is active,
/// it leaks the owner, since MPI may still write there.
pub(super) struct RequestSet<H> {
    held: ManuallyDrop<H>,
    requests: VecDeque<ffi::MPI_Request>,
}

impl<H> RequestSet<H> {
    /// Creates a set without requests that holds `held`.
    pub(super) fn new(held: H) -> Self {
        RequestSet { held: ManuallyDrop::new(held), requests: VecDeque::new() }
    }

    /// Returns the owner.
    pub(super) fn held(&mut self) -> &mut H {
        &mut self.held
    }

    /// Returns the number of active requests.
    pub(super) fn pending(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request that `start` makes; `doing` is an infinitive.
    ///
    /// # Safety
    /// The memory that the request uses stays valid, and has no conflicting use, while `H` lives and the request is
    /// active.
    pub(super) unsafe fn start(
        &mut self,
        doing: &str,
        start: impl FnOnce(&mut H, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(doing, start(&mut self.held, &raw mut request))?;
        self.requests.push_back(request);
        Ok(())
    }

    /// Returns the result of the oldest request if it is complete.
    pub(super) fn test(&mut self) -> Result<Option<CompletedRequest>> {
        let Some(request) = self.requests.front_mut() else { return Ok(None) };
        let mut flag = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: the request is active, and MPI fills the status when it is done.
        check("exchange bytes by MPI", unsafe {
            ffi::MPI_Test(request, &raw mut flag, status.as_mut_ptr())
        })?;
        if flag == 0 {
            return Ok(None);
        }
        self.requests.pop_front();
        let mut bytes = 0;
        // SAFETY: at least zeroed, and the request was for bytes.
        let status = unsafe {
            ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut bytes);
            status.assume_init()
        };
        let unsigned = |value: c_int| usize::try_from(value).unwrap_or(0);
        Ok(Some(CompletedRequest { source: unsigned(status.MPI_SOURCE), bytes: unsigned(bytes) }))
    }

    /// Removes the requests that are complete. Returns true if none is left.
    pub(super) fn settle(&mut self) -> bool {
        // A failed request may not have ended, so its memory is kept.
        while let Ok(Some(_)) = self.test() {}
        self.requests.is_empty()
    }

    /// Asks for receives to end early. They end with [`RequestSet::settle`].
    pub(super) fn cancel(&mut self) {
        for request in &mut self.requests {
            // SAFETY: an active request of a receive.
            unsafe { ffi::MPI_Cancel(request) };
        }
    }
}

impl<H> Drop for RequestSet<H> {
    fn drop(&mut self) {
        if self.requests.is_empty() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.held) }
        }
    }
}

/// Converts the length of a piece or an eager message to MPI's type.
fn count(bytes: usize) -> c_int {
    debug_assert!(c_int::try_from(bytes).is_ok(), "nothing is sent in pieces as large as that");
    bytes as c_int
}

impl MpiComm {
    /// Starts sending the bytes that `of` returns from the owner.
    ///
    /// # Safety
    /// As [`RequestSet::start`], for those bytes.
    pub(super) unsafe fn send<H>(
        self,
        to: usize,
        tag: c_int,
        requests: &mut RequestSet<H>,
        of: impl FnOnce(&mut H) -> (*const u8, usize),
    ) -> Result<()> {
        let post = |held: &mut H, request| {
            let (pointer, bytes) = of(held);
            // SAFETY: promised by the caller.
            unsafe {
                let kind = ffi::RSMPI_UINT8_T;
                ffi::MPI_Isend(
                    pointer.cast::<c_void>(),
                    count(bytes),
                    kind,
                    to as c_int,
                    tag,
                    self.0,
                    request,
                )
            }
        };
        // SAFETY: promised by the caller.
        unsafe { requests.start("send by MPI", post) }
    }

    /// Starts receiving into the bytes that `into` returns from the owner, from any rank if `from` is `None`.
    ///
    /// # Safety
    /// As [`RequestSet::start`], for those bytes.
    pub(super) unsafe fn receive<H>(
        self,
        from: Option<usize>,
        tag: c_int,
        requests: &mut RequestSet<H>,
        into: impl FnOnce(&mut H) -> (*mut u8, usize),
    ) -> Result<()> {
        let post = |held: &mut H, request| {
            let (pointer, bytes) = into(held);
            // SAFETY: promised by the caller.
            unsafe {
                let from = from.map_or(ffi::RSMPI_ANY_SOURCE, |from| from as c_int);
                let kind = ffi::RSMPI_UINT8_T;
                ffi::MPI_Irecv(pointer.cast::<c_void>(), count(bytes), kind, from, tag, self.0, request)
            }
        };
        // SAFETY: promised by the caller.
        unsafe { requests.start("receive by MPI", post) }
    }

    /// Creates another communicator of the same ranks. A collective call.
    pub(super) fn duplicate(self) -> Result<MpiComm> {
        let mut copy = self.0;
        // SAFETY: a valid communicator.
        check("duplicate an MPI communicator", unsafe { ffi::MPI_Comm_dup(self.0, &raw mut copy) })?;
        Ok(MpiComm(copy))
    }

    /// Creates a communicator of some of the ranks, all of which call this now. Several threads may do so at the same
    /// time; `tag` distinguishes them.
    pub(super) fn among(self, ranks: &[usize], tag: c_int) -> Result<MpiComm> {
        let mut copy = self.0;
        let ranks: Vec<c_int> = ranks.iter().map(|rank| *rank as c_int).collect();
        // SAFETY: a valid communicator, its own group, and a group of ranks of that.
        let code = unsafe {
            let mut all = ffi::RSMPI_GROUP_EMPTY;
            let mut group = ffi::RSMPI_GROUP_EMPTY;
            ffi::MPI_Comm_group(self.0, &raw mut all);
            ffi::MPI_Group_incl(all, ranks.len() as c_int, ranks.as_ptr(), &raw mut group);
            let code = ffi::MPI_Comm_create_group(self.0, group, tag, &raw mut copy);
            ffi::MPI_Group_free(&raw mut group);
            ffi::MPI_Group_free(&raw mut all);
            code
        };
        check("create an MPI communicator", code).map(|()| MpiComm(copy))
    }
}
