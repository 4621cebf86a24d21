//! MPI in this process: started once, and finalized when the process exits.
//!
//! MPI cannot be started a second time, so it outlives every world. When the process exits, MPI is finalized if all
//! worlds have ended without failure, which waits for the other ranks to do the same. Otherwise it is left running:
//! `mpirun` takes a process that exits so for a failure and ends the whole job, which is right, and the failure has
//! been reported before.

use crate::error::{Error, Result};
use mpi::ffi;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;

/// Number of worlds that have not ended.
static WORLDS: AtomicUsize = AtomicUsize::new(0);
/// Set while ranks may have lost each other: after a world failed, and while one has not been joined.
static PEERS_UNCERTAIN: AtomicBool = AtomicBool::new(false);

/// MPI's answers at start-up.
pub(super) struct MpiStartup {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Rank and number of ranks among those that can share memory.
    pub(super) local: (usize, usize),
    /// Largest tag that MPI allows.
    pub(super) largest_tag: c_int,
    /// Value of `MPI_IN_PLACE`, which marks an in-place collective; `None` if it is unknown for this MPI.
    pub(super) in_place: Option<*const c_void>,
    /// The only thread that may call MPI; `None` if all may.
    thread: Option<ThreadId>,
}

// SAFETY: the pointer is a constant that is never dereferenced.
unsafe impl Send for MpiStartup {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for MpiStartup {}

impl MpiStartup {
    /// Returns MPI for the calling thread, and starts it if necessary.
    ///
    /// # Errors
    /// [`Error::Setup`] if MPI does not start, was finalized, or allows calls only from a different thread.
    pub(super) fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<Result<MpiStartup>> = OnceLock::new();
        let library = LIBRARY.get_or_init(Self::start).as_ref().map_err(Error::clone)?;
        let own = library.thread.is_none_or(|thread| thread == std::thread::current().id());
        let what = "this MPI allows only the thread that started it to communicate";
        let remedy = "open all channels on that thread, or use an MPI built with MPI_THREAD_MULTIPLE";
        if own { Ok(library) } else { Err(Error::setup(what, remedy)) }
    }

    /// Starts MPI and queries the values of [`MpiStartup`].
    fn start() -> Result<Self> {
        let provided = initialize()?;
        // SAFETY: constants of the library.
        let (multiple, world) = unsafe { (ffi::RSMPI_THREAD_MULTIPLE, ffi::RSMPI_COMM_WORLD) };
        let (rank, size) = place(world)?;
        Ok(MpiStartup {
            rank,
            size,
            local: place(on_this_host(world)?)?,
            largest_tag: largest_tag(world),
            in_place: in_place(),
            thread: (provided < multiple).then(|| std::thread::current().id()),
        })
    }
}

/// Starts MPI unless the program has, and returns the thread level that it grants.
fn initialize() -> Result<c_int> {
    let mut started = 0;
    let mut ended = 0;
    let mut provided = 0;
    // SAFETY: may be called at any time.
    unsafe {
        ffi::MPI_Initialized(&raw mut started);
        ffi::MPI_Finalized(&raw mut ended);
    }
    if ended != 0 {
        return Err(Error::setup("MPI was finalized in this process", "join before MPI_Finalize"));
    }
    if started != 0 {
        // SAFETY: MPI runs.
        check("ask MPI for its thread level", unsafe { ffi::MPI_Query_thread(&raw mut provided) })?;
        return Ok(provided);
    }
    // SAFETY: MPI has not been started; it may be given no arguments.
    let code = unsafe {
        let wanted = ffi::RSMPI_THREAD_MULTIPLE;
        ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &raw mut provided)
    };
    check("start MPI", code)?;
    // SAFETY: a function that may be called when the process exits.
    unsafe { libc::atexit(finalize) };
    Ok(provided)
}

/// Finalizes MPI at exit if all worlds have ended without failure.
extern "C" fn finalize() {
    let mut ended = 0;
    if WORLDS.load(Ordering::Acquire) == 0 && !PEERS_UNCERTAIN.load(Ordering::Acquire) {
        // SAFETY: MPI was started by this module; the program may have finalized it itself.
        unsafe {
            ffi::MPI_Finalized(&raw mut ended);
            if ended == 0 {
                ffi::MPI_Finalize();
            }
        }
    }
}

/// Records that a world is being joined: until it has been, or if it never is, this process must not wait in
/// `MPI_Finalize`.
pub(super) fn world_starting() {
    PEERS_UNCERTAIN.store(true, Ordering::Release);
}

/// Records that a world has been joined: proof that all ranks exist.
pub(super) fn world_joined() {
    WORLDS.fetch_add(1, Ordering::AcqRel);
    PEERS_UNCERTAIN.store(false, Ordering::Release);
}

/// Records that a world has ended.
pub(super) fn world_left(well: bool) {
    if !well {
        PEERS_UNCERTAIN.store(true, Ordering::Release);
    }
    WORLDS.fetch_sub(1, Ordering::AcqRel);
}

/// Converts MPI's return code into a result; `doing` is an infinitive.
pub(super) fn check(doing: &str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer has the length that MPI requires.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length) };
    let text = text.iter().take(usize::try_from(length).unwrap_or(0)).map(|byte| *byte as u8).collect();
    let text = String::from_utf8(text).unwrap_or_else(|_| format!("MPI error {code}"));
    Err(Error::system(
        doing,
        io::Error::other(text),
        "see the messages of mpirun about that rank or the network",
    ))
}

/// Returns rank and size in a communicator.
pub(super) fn place(comm: ffi::MPI_Comm) -> Result<(usize, usize)> {
    let mut rank = 0;
    let mut size = 0;
    // SAFETY: a valid communicator.
    let codes = unsafe { (ffi::MPI_Comm_rank(comm, &raw mut rank), ffi::MPI_Comm_size(comm, &raw mut size)) };
    check("ask MPI for this rank", codes.0)?;
    check("ask MPI for the number of ranks", codes.1)?;
    Ok((usize::try_from(rank).unwrap_or(0), usize::try_from(size).unwrap_or(1)))
}

/// Creates the communicator of the ranks that can share memory.
fn on_this_host(world: ffi::MPI_Comm) -> Result<ffi::MPI_Comm> {
    let mut host = world;
    // SAFETY: all ranks call this, right after they have started MPI.
    let code = unsafe {
        let kind = ffi::RSMPI_COMM_TYPE_SHARED;
        ffi::MPI_Comm_split_type(world, kind, 0, ffi::RSMPI_INFO_NULL, &raw mut host)
    };
    check("ask MPI for the ranks of this host", code).map(|()| host)
}

/// Returns the largest tag that MPI allows.
fn largest_tag(world: ffi::MPI_Comm) -> c_int {
    /// Largest tag that every MPI allows.
    const LEAST: c_int = 32_767;
    let mut value: *const c_int = ptr::null();
    let mut found = 0;
    // SAFETY: for this key MPI stores the address of an int that lives as long as MPI.
    unsafe {
        ffi::MPI_Comm_get_attr(world, ffi::MPI_TAG_UB as c_int, (&raw mut value).cast(), &raw mut found);
        if found != 0 && !value.is_null() { (*value).max(LEAST) } else { LEAST }
    }
}

/// Returns `MPI_IN_PLACE`, which is a cast in C and therefore not among the bindings.
fn in_place() -> Option<*const c_void> {
    let mut text = [0; 8192];
    let mut length = 0;
    // SAFETY: no MPI's text is longer than that.
    unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr(), &raw mut length) };
    let text: Vec<u8> = text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text);
    match () {
        () if text.contains("Open MPI") => Some(ptr::without_provenance(1)),
        () if ["MPICH", "MVAPICH", "Intel"].iter().any(|name| text.contains(name)) => {
            Some(ptr::without_provenance(usize::MAX))
        }
        () => None,
    }
}
