//! PMIx, through the library on the machine of the launcher: Open MPI's mpirun, PRRTE, and Slurm under `--mpi=pmix`.
//!
//! Calls of the library wait without a limit, so each runs on a separate thread. The thread of a call that does not
//! return stays until the process ends.

use super::Manager;
use crate::error::{Error, Result};
use crate::runtime;
use crate::system::environment::variable;
use crate::system::library::{Library, functions};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, ErrorKind};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Remedy for a missing library.
const REMEDY: &str = "install libpmix2 on every host, or set HEXAGRAM_ADDR=host:port for all ranks, naming the host of rank \
                      0 and a free port there";

/// Status of success.
const SUCCESS: c_int = 0;
/// Scope of a value that every process of the job can read.
const GLOBAL: u8 = 3;
/// Type of a value that is a text.
const STRING: u16 = 3;

/// Process of a job, in the layout of the library.
#[repr(C)]
#[derive(Clone, Copy)]
struct PmixProcess {
    space: [c_char; 256],
    rank: u32,
}

/// Value, in the layout of the library: a type, and a union of forms, whose largest is smaller than these bytes.
#[repr(C)]
struct PmixValue {
    kind: u16,
    text: *mut c_char,
    rest: [u64; 8],
}

functions! {
    /// Functions of the library that the store needs.
    struct Libpmix: c_int;
    PMIx_Init(*mut PmixProcess, *mut c_void, usize);
    PMIx_Put(u8, *const c_char, *mut PmixValue);
    PMIx_Commit();
    PMIx_Fence(*const PmixProcess, usize, *const c_void, usize);
    PMIx_Get(*const PmixProcess, *const c_char, *const c_void, usize, *mut *mut PmixValue);
    PMIx_Finalize(*const c_void, usize);
}

/// Returns true if a launcher with PMIx started this process.
pub(super) fn is_offered() -> bool {
    variable("PMIX_NAMESPACE").is_some() && variable("PMIX_RANK").is_some()
}

/// Store of a launcher with PMIx.
pub(super) struct Pmix {
    functions: Arc<Libpmix>,
    own: PmixProcess,
    /// A fence that not all ranks have reached.
    fence: Option<Receiver<io::Result<()>>>,
    /// True if another call has not returned.
    is_stuck: bool,
}

impl Pmix {
    /// Loads the library, and connects with the launcher.
    ///
    /// # Errors
    /// [`Error::Setup`] if the library is missing or cannot connect.
    pub(super) fn open(limit: Duration) -> Result<Self> {
        let functions = Arc::new(Libpmix::of(&Library::open(&["libpmix.so.2", "libpmix.so"], REMEDY)?)?);
        let library = Arc::clone(&functions);
        let connected = within(limit, "PMIx_Init", move || {
            let mut own = PmixProcess { space: [0; 256], rank: 0 };
            // SAFETY: the library writes one process, and takes no further information.
            let status = unsafe { (library.PMIx_Init)(&mut own, null_mut(), 0) };
            checked("PMIx_Init", status).map(|()| own)
        });
        let own = connected.map_err(|cause| Error::setup(format!("PMIx cannot be used: {cause}"), REMEDY))?;
        Ok(Pmix { functions, own, fence: None, is_stuck: false })
    }
}

impl Manager for Pmix {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        let (key, text) = (CString::new(key)?, CString::new(value)?);
        let mut value = PmixValue { kind: STRING, text: text.as_ptr().cast_mut(), rest: [0; 8] };
        // SAFETY: the texts end with 0 and outlive the calls; the library copies them.
        let status = unsafe { (self.functions.PMIx_Put)(GLOBAL, key.as_ptr(), &mut value) };
        checked("PMIx_Put", status)?;
        // SAFETY: it takes nothing.
        checked("PMIx_Commit", unsafe { (self.functions.PMIx_Commit)() })
    }

    fn fence(&mut self, limit: Duration) -> io::Result<()> {
        let fence = match self.fence.take() {
            Some(fence) => fence,
            None => {
                let functions = Arc::clone(&self.functions);
                begin(move || {
                    // SAFETY: the null list of processes stands for all processes of this job, and there is no
                    // further information.
                    checked("PMIx_Fence", unsafe { (functions.PMIx_Fence)(null(), 0, null(), 0) })
                })?
            }
        };
        runtime::receive_within(&fence, limit).unwrap_or_else(|| {
            self.fence = Some(fence);
            Err(late("PMIx_Fence"))
        })
    }

    fn get(&mut self, owner: usize, key: &str, limit: Duration) -> io::Result<String> {
        let functions = Arc::clone(&self.functions);
        let rank = u32::try_from(owner).map_err(io::Error::other)?;
        let (process, key) = (PmixProcess { rank, ..self.own }, CString::new(key)?);
        let outcome = within(limit, "PMIx_Get", move || {
            let mut found: *mut PmixValue = null_mut();
            // SAFETY: the library reads the process and the key, and writes the address of a value that it owns.
            let status = unsafe { (functions.PMIx_Get)(&process, key.as_ptr(), null(), 0, &mut found) };
            checked("PMIx_Get", status)?;
            // SAFETY: after success there is a value, which is never freed: it is a hundred bytes.
            let value =
                unsafe { found.as_ref() }.filter(|value| value.kind == STRING && !value.text.is_null());
            let value =
                value.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "PMIx has no text there"))?;
            // SAFETY: a text of the library, which ends with 0.
            Ok(unsafe { CStr::from_ptr(value.text) }.to_string_lossy().into_owned())
        });
        self.is_stuck |= outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
        outcome
    }
}

impl Drop for Pmix {
    /// Ends the connection: for Open MPI, a process that ends with one has failed.
    fn drop(&mut self) {
        if self.is_stuck || self.fence.is_some() {
            return;
        }
        // SAFETY: initialized, and there is no further information.
        unsafe { (self.functions.PMIx_Finalize)(null(), 0) };
    }
}

fn checked(function: &str, status: c_int) -> io::Result<()> {
    if status == SUCCESS { Ok(()) } else { Err(io::Error::other(format!("{function} returned {status}"))) }
}

/// Makes a call on a separate thread, and waits for it at most `limit`.
fn within<R: Send + 'static>(
    limit: Duration,
    function: &'static str,
    call: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    runtime::receive_within(&begin(call)?, limit).unwrap_or_else(|| Err(late(function)))
}

/// Begins a call on a separate thread.
fn begin<R: Send + 'static>(
    call: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<Receiver<io::Result<R>>> {
    let (sender, receiver) = channel();
    let thread = runtime::spawn("hexagram-pmix", move || {
        // The caller may have given up.
        let _ = sender.send(call());
    });
    thread.map(|_| receiver).map_err(|error| io::Error::other(error.to_string()))
}

fn late(function: &str) -> io::Error {
    let what = format!("{function} has not returned: some rank is late (PMIx does not say which)");
    io::Error::new(ErrorKind::TimedOut, what)
}
