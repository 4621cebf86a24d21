//! libnccl: its functions, found when the program first asks for one, and its version.

use crate::error::{Error, Result, Status};
use crate::id::UniqueId;
use crate::version::Version;
use libloading::Library;
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Variables with values that make NCCL wait for other ranks within a call.
const WAITING: [(&str, &str); 2] = [("NCCL_COMM_BLOCKING", "1"), ("NCCL_LAUNCH_MODE", "GROUP")];

/// Version of NCCL whose settings have the layout of [`Config`].
const LAYOUT: c_uint = 21801;

/// Returns a number in the type that NCCL expects.
///
/// # Errors
/// [`Error::OutOfRange`].
pub(crate) fn integer(number: usize) -> Result<c_int> {
    c_int::try_from(number).map_err(|_| Error::OutOfRange { number })
}

/// Communicator handle of NCCL.
pub(crate) type CommHandle = *mut c_void;

/// Declares the table of NCCL's functions by their names, with the types of their parameters, and its lookup.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// Functions of NCCL. Buffers are memory of the communicator's own device, and their lengths count elements.
        #[allow(non_snake_case, reason = "these are the names in the library")]
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Keeps the functions.
            _library: Library,
        }

        impl Functions {
            /// Looks up every function.
            fn of(library: Library) -> Result<Self> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the library's function of this name has these parameters and this result.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0")) };
                        *found.map_err(|_| Error::Lacking { function: stringify!($name) })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    ncclGetVersion(*mut c_int) -> Status;
    ncclGetErrorString(Status) -> *const c_char;
    ncclGetLastError(CommHandle) -> *const c_char;
    ncclGetUniqueId(*mut UniqueId) -> Status;
    ncclCommInitRankConfig(*mut CommHandle, c_int, UniqueId, c_int, *mut Config) -> Status;
    ncclCommSplit(CommHandle, c_int, c_int, *mut CommHandle, *mut Config) -> Status;
    ncclCommFinalize(CommHandle) -> Status;
    ncclCommDestroy(CommHandle) -> Status;
    ncclCommAbort(CommHandle) -> Status;
    ncclCommGetAsyncError(CommHandle, *mut Status) -> Status;
    ncclCommCount(CommHandle, *mut c_int) -> Status;
    ncclCommUserRank(CommHandle, *mut c_int) -> Status;
    ncclAllReduce(u64, u64, usize, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclReduce(u64, u64, usize, c_int, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclReduceScatter(u64, u64, usize, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclAllGather(u64, u64, usize, c_int, CommHandle, *mut c_void) -> Status;
    ncclBroadcast(u64, u64, usize, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclSend(u64, usize, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclRecv(u64, usize, c_int, c_int, CommHandle, *mut c_void) -> Status;
    ncclGroupStart() -> Status;
    ncclGroupEnd() -> Status;
}

// Device addresses are passed as numbers in place of pointers.
const _: () = assert!(size_of::<u64>() == size_of::<*mut c_void>());

/// The loaded NCCL library.
struct LoadedNccl {
    functions: Functions,
    version: Version,
}

fn found() -> Result<&'static LoadedNccl> {
    static FOUND: OnceLock<Result<LoadedNccl>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Error::clone)
}

fn find() -> Result<LoadedNccl> {
    WAITING.iter().try_for_each(|(name, value)| refuse(name, value))?;
    let functions = Functions::of(load()?)?;
    let mut number = 0;
    // SAFETY: the pointer is valid for a write of one number.
    functions.expect(unsafe { (functions.ncclGetVersion)(&mut number) })?;
    let version = Version(number);
    if version < Version::OLDEST {
        return Err(Error::TooOld { found: version });
    }
    Ok(LoadedNccl { functions, version })
}

/// Refuses a value of a variable of the environment, as NCCL reads it.
fn refuse(name: &'static str, value: &str) -> Result<()> {
    let found = std::env::var(name).ok().map(|found| found.trim().to_owned());
    match found.filter(|found| found.eq_ignore_ascii_case(value)) {
        Some(value) => Err(Error::Blocking { name, value }),
        None => Ok(()),
    }
}

fn load() -> Result<Library> {
    let first = "libnccl.so.2";
    // SAFETY: the initialisation code of the library is beyond our control.
    let load = |name: &str| unsafe { Library::new(name) };
    load(first).or_else(|error| load("libnccl.so").map_err(|_| error)).map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // The loader's reason begins with the name.
        let reason = reason.strip_prefix(&format!("{first}: ")).unwrap_or(&reason).to_owned();
        Error::Missing { reason }
    })
}

/// Returns NCCL's functions.
///
/// # Errors
/// As [`version`].
pub(crate) fn functions() -> Result<&'static Functions> {
    found().map(|found| &found.functions)
}

impl Functions {
    /// Passes success and progress on, and turns anything else into an error.
    ///
    /// # Errors
    /// [`Error::Refused`] unless the status is success or progress.
    pub(crate) fn expect(&self, status: Status) -> Result<()> {
        if status.is_well() {
            return Ok(());
        }
        // SAFETY: it takes a number.
        let description = unsafe { text((self.ncclGetErrorString)(status)) };
        // SAFETY: NCCL does not access the communicator for this.
        let last = unsafe { text((self.ncclGetLastError)(null_mut())) };
        let last = last.map(|last| format!("last warning: {last}"));
        let details: Vec<String> = description.into_iter().chain(last).collect();
        Err(Error::Refused { status, details: details.join(", ") })
    }
}

/// Returns a text that the library owns. `None` if the address is null, or the text is empty.
///
/// # Safety
/// The address is null, or that of a text that ends with 0.
unsafe fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(at) }.to_string_lossy();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the version of NCCL on this machine, which is loaded for that. It needs no GPU.
///
/// # Errors
/// [`Error::Missing`], [`Error::Lacking`] or [`Error::TooOld`] without a suitable NCCL; [`Error::Blocking`] if a variable makes
/// it wait.
pub fn version() -> Result<Version> {
    found().map(|found| found.version)
}

/// Settings of a new communicator, in the layout of NCCL 2.18: newer versions read its size and its version, and use their own
/// defaults for the settings that it lacks.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Padding in 2.18, which later versions use.
    traffic_class: c_int,
}

impl Config {
    /// Value of a setting that NCCL chooses.
    const UNDEFINED: c_int = c_int::MIN;

    /// Returns the settings of a communicator that does not block, with the other settings left to NCCL.
    pub(crate) fn without_blocking() -> Self {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: LAYOUT,
            blocking: 0,
            cga_cluster_size: Self::UNDEFINED,
            min_ctas: Self::UNDEFINED,
            max_ctas: Self::UNDEFINED,
            net_name: null(),
            split_share: Self::UNDEFINED,
            traffic_class: Self::UNDEFINED,
        }
    }
}

// As a C compiler lays them out, by the header of NCCL 2.18.1; that of 2.32.3 has its first ten fields there, too.
const _: () = assert!(size_of::<Config>() == 48 && align_of::<Config>() == 8);
const _: () =
    assert!(std::mem::offset_of!(Config, magic) == 8 && std::mem::offset_of!(Config, version) == 12);
const _: () =
    assert!(std::mem::offset_of!(Config, blocking) == 16 && std::mem::offset_of!(Config, max_ctas) == 28);
const _: () = assert!(std::mem::offset_of!(Config, net_name) == 32);
const _: () = assert!(std::mem::offset_of!(Config, split_share) == 40);
const _: () = assert!(std::mem::offset_of!(Config, traffic_class) == 44);
