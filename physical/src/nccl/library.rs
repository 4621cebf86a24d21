//! libnccl: what of it is used here, found when the program first asks for it.
//!
//! On a communicator that does not block, which all of ours are, a function that begins something returns
//! [`Status::IN_PROGRESS`], and the communicator takes no other call until `ncclCommGetAsyncError` says that it is ready:
//! one that comes earlier fails, and so does the communicator. The first collective is in progress until all ranks have begun
//! it.
//!
//! `ncclCommAbort` ends NCCL's own work, and returns when the device has come to it: what is ahead of it on its stream has
//! to end by itself.

use crate::device::cuda::handle::StreamHandle;
use crate::dtype::{DType, ReduceOp};
use crate::environment::variable;
use crate::error::{Error, Result};
use crate::library::{Library, functions};
use crate::path::spell_nccl;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Oldest version of NCCL. In all before, the thread that aborts a communicator which does not block reads what another
/// thread has as its own, which may have ended; those up to 2.22 launch kernels within `ncclGroupEnd`, and wait for the
/// other ranks there; those up to 2.23 may have a GPU touch the memory of another one's user, which has to let it.
const OLDEST: Version = Version(22703);

/// Version of NCCL whose settings have the layout of [`Config`].
const LAYOUT: Version = Version(21801);

/// Instruction to whoever has no such NCCL.
const INSTALL: &str = "install NCCL 2.27.3 or newer (its Python package is nvidia-nccl-cu12) where the loader finds it: name its folder in LD_LIBRARY_PATH";

functions! {
    /// Functions of NCCL, by their names. Buffers are memory of the communicator's own device, and their lengths count
    /// elements. Types of elements and reductions are numbers: see [`data_type`] and [`reduction`].
    pub(super) struct Libnccl: Status;
    ncclGetVersion(*mut c_int);
    ncclGetErrorString(Status) -> *const c_char;
    ncclGetLastError(Comm) -> *const c_char;
    ncclGetUniqueId(*mut UniqueId);
    ncclCommInitRankConfig(*mut Comm, c_int, UniqueId, c_int, *mut Config);
    ncclCommFinalize(Comm);
    ncclCommDestroy(Comm);
    ncclCommAbort(Comm);
    ncclCommGetAsyncError(Comm, *mut Status);
    ncclAllReduce(*const c_void, *mut c_void, usize, DataType, Reduction, Comm, StreamHandle);
    ncclReduceScatter(*const c_void, *mut c_void, usize, DataType, Reduction, Comm, StreamHandle);
    ncclAllGather(*const c_void, *mut c_void, usize, DataType, Comm, StreamHandle);
    ncclBroadcast(*const c_void, *mut c_void, usize, DataType, c_int, Comm, StreamHandle);
}

/// Variables with values that let NCCL wait for other ranks within a call, at which nobody here is prepared for that.
const WAITING: [(&str, &str); 2] = [("NCCL_COMM_BLOCKING", "1"), ("NCCL_LAUNCH_MODE", "GROUP")];

/// Refuses a value of a variable of the environment, as NCCL reads it.
///
/// # Errors
/// [`Error::Setup`] if the variable has it.
fn refuse(name: &str, value: &str) -> Result<()> {
    let Some(found) = variable(name).filter(|found| found.trim().eq_ignore_ascii_case(value)) else {
        return Ok(());
    };
    let what = format!("{name} is {}, with which NCCL waits for other ranks within its calls", found.trim());
    Err(Error::setup(what, "unset it, or do without NCCL: HEXAGRAM_DEVICE_PATH=staging"))
}

/// NCCL as it was found.
struct Found {
    functions: Libnccl,
    version: Version,
}

impl Found {
    fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Found>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(Error::clone)
    }

    fn find() -> Result<Self> {
        WAITING.iter().try_for_each(|(name, value)| refuse(name, value))?;
        let library = Library::open(&["libnccl.so.2", "libnccl.so"], INSTALL)?;
        let functions = Libnccl::of(&library)?;
        let mut number = 0;
        // SAFETY: the place is there for one number.
        let status = unsafe { (functions.ncclGetVersion)(&mut number) };
        functions.expect(status, Comm::NONE, "ask NCCL for its version")?;
        let version = Version(number);
        if version < OLDEST {
            let what = format!("libnccl.so.2 is of version {version}, older than {OLDEST}");
            return Err(Error::setup(what, INSTALL));
        }
        Ok(Found { functions, version })
    }
}

impl Libnccl {
    /// Returns NCCL's functions.
    ///
    /// # Errors
    /// [`Error::Setup`] that names the library, what is missing of it, or its version, if there is none or it is too
    /// old.
    pub(super) fn get() -> Result<&'static Self> {
        Found::get().map(|found| &found.functions)
    }

    /// Passes success and progress on, and turns anything else into an error of what was attempted.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success or progress.
    pub(super) fn expect(&self, status: Status, comm: Comm, doing: &str) -> Result<()> {
        if status.is_well() {
            return Ok(());
        }
        Err(Error::system(doing, self.cause(status, comm), status.remedy()))
    }

    /// Returns true once a communicator has done what it has begun, false while it is at it.
    ///
    /// # Errors
    /// [`Error::System`] if that has failed.
    pub(super) fn is_ready(&self, comm: Comm, doing: &str) -> Result<bool> {
        let mut status = Status::SUCCESS;
        // SAFETY: the communicator is there, and the place for one number.
        let asked = unsafe { (self.ncclCommGetAsyncError)(comm, &mut status) };
        self.expect(asked, comm, doing)?;
        self.expect(status, comm, doing)?;
        Ok(status == Status::SUCCESS)
    }

    /// Returns NCCL's name and description of a status, and its last warning: that of any communicator of the process, be
    /// it long ago.
    pub(super) fn cause(&self, status: Status, comm: Comm) -> io::Error {
        // SAFETY: it takes a number.
        let description = unsafe { text((self.ncclGetErrorString)(status)) };
        // SAFETY: NCCL looks at no communicator for this.
        let last = unsafe { text((self.ncclGetLastError)(comm)) };
        let last = last.map(|last| format!("last warning: {}", last.trim()));
        let parts = [Some(status.to_string()), description, last];
        let parts: Vec<String> = parts.into_iter().flatten().map(|part| part.trim().to_owned()).collect();
        io::Error::other(parts.join(", "))
    }
}

/// Returns a text of the library's own. `None` if there is none, or it is empty.
///
/// # Safety
/// The address is null, or that of a text that ends with 0.
unsafe fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Version of NCCL, ordered by age: 20,000 + 100 × minor + patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(c_int);

impl Version {
    /// Returns the version as NCCL numbers it.
    pub(crate) fn number(self) -> u32 {
        self.0.unsigned_abs()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&spell_nccl(self.number()))
    }
}

/// Returns the version of NCCL on this machine, which is loaded for that. It needs no GPU.
///
/// # Errors
/// [`Error::Setup`] that names the library, what is missing of it, or its version, if there is none or it is too old.
pub fn version() -> Result<Version> {
    Found::get().map(|found| found.version)
}

/// Communicator of NCCL's, which one thread at a time may use.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comm(*mut c_void);

impl Comm {
    /// No communicator: what a place for one holds at first.
    pub(super) const NONE: Self = Comm(null_mut());
}

// SAFETY: NCCL's communicators may be used by any thread, one at a time.
unsafe impl Send for Comm {}
// SAFETY: as above; whoever shares one takes turns, which NCCL demands of its callers.
unsafe impl Sync for Comm {}

/// Name of a communicator that is to be, which one rank draws and all others are told.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

impl UniqueId {
    /// No name: what a place for one holds at first.
    pub(super) const UNKNOWN: Self = UniqueId([0; 128]);
    /// Numbers that it takes in mail.
    pub(super) const NUMBERS: usize = 128 / size_of::<u64>();

    pub(super) fn to_numbers(self) -> [u64; Self::NUMBERS] {
        bytemuck::cast(self.0)
    }

    pub(super) fn from_numbers(numbers: [u64; Self::NUMBERS]) -> Self {
        UniqueId(bytemuck::cast(numbers))
    }
}

/// Settings of a new communicator, in the layout of NCCL 2.18: newer versions read its size and its version, and take
/// their own default for all that it lacks.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Config {
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
    /// Value of a number that is left to NCCL.
    const UNDEFINED: c_int = c_int::MIN;

    /// Returns the settings of a communicator that does not block, with all else as NCCL has it.
    pub(super) fn without_blocking() -> Self {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: LAYOUT.0 as c_uint,
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
const _: () = assert!(size_of::<UniqueId>() == 128 && align_of::<UniqueId>() == 1);
const _: () = assert!(size_of::<Config>() == 48 && align_of::<Config>() == 8);
const _: () =
    assert!(std::mem::offset_of!(Config, magic) == 8 && std::mem::offset_of!(Config, version) == 12);
const _: () =
    assert!(std::mem::offset_of!(Config, blocking) == 16 && std::mem::offset_of!(Config, max_ctas) == 28);
const _: () = assert!(std::mem::offset_of!(Config, net_name) == 32);
const _: () = assert!(std::mem::offset_of!(Config, split_share) == 40);
const _: () = assert!(std::mem::offset_of!(Config, traffic_class) == 44);

/// Result of a function of NCCL's.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(c_int);

impl Status {
    pub(super) const SUCCESS: Self = Status(0);
    const UNHANDLED_CUDA_ERROR: Self = Status(1);
    const SYSTEM_ERROR: Self = Status(2);
    const INVALID_ARGUMENT: Self = Status(4);
    const INVALID_USAGE: Self = Status(5);
    /// Another rank has ended, or cannot be reached.
    pub(super) const REMOTE_ERROR: Self = Status(6);
    /// Progress of what was begun: the communicator is not ready for another call.
    pub(super) const IN_PROGRESS: Self = Status(7);

    /// Returns true if nothing has failed.
    pub(super) fn is_well(self) -> bool {
        [Self::SUCCESS, Self::IN_PROGRESS].contains(&self)
    }

    /// Returns what to do about it.
    fn remedy(self) -> &'static str {
        match self {
            Self::UNHANDLED_CUDA_ERROR => "see `nvidia-smi`, and run with NCCL_DEBUG=INFO for details",
            Self::SYSTEM_ERROR => {
                "see whether the ranks reach each other (NCCL_SOCKET_IFNAME), and run with NCCL_DEBUG=INFO for details"
            }
            Self::INVALID_ARGUMENT | Self::INVALID_USAGE => {
                "give each rank a GPU of its own and all ranks the same NCCL, and run with NCCL_DEBUG=WARN for details"
            }
            Self::REMOTE_ERROR => "see what has ended the other rank",
            _ => "run with NCCL_DEBUG=INFO for details, or without NCCL: HEXAGRAM_DEVICE_PATH=staging",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            other => return write!(f, "NCCL's error {other}"),
        })
    }
}

/// Type of elements, by NCCL's number.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataType(c_int);

/// Returns NCCL's number of a type, or of one of equal size where it has no such type: it moves bits as they are, and
/// [`reduction`] knows none of those.
pub(super) fn data_type(dtype: DType) -> DataType {
    DataType(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 | DType::I16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    })
}

/// Reduction, by NCCL's number.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reduction(c_int);

impl Reduction {
    pub(super) const SUM: Self = Reduction(0);
}

/// Returns NCCL's number of a reduction of a type. `None` where NCCL's is another one than ours: its least and greatest
/// float is a number where one contribution is NaN, it rounds means of integers, which we do not have, and it has
/// neither integers of 16 bits nor booleans nor bitwise reductions.
///
/// A mean multiplies every contribution by 1/n, rounded to the type, before it sums, and so differs from a sum divided
/// by n in the last bits unless n is a power of two. A NaN that comes out of a sum is the GPU's own.
pub(super) fn reduction(op: ReduceOp, dtype: DType) -> Option<Reduction> {
    if matches!(dtype, DType::I16 | DType::Bool) {
        return None;
    }
    match (op, dtype.is_float()) {
        (ReduceOp::Sum, _) => Some(Reduction(0)),
        (ReduceOp::Product, _) => Some(Reduction(1)),
        (ReduceOp::Max, false) => Some(Reduction(2)),
        (ReduceOp::Min, false) => Some(Reduction(3)),
        (ReduceOp::Mean, true) => Some(Reduction(4)),
        (ReduceOp::Min | ReduceOp::Max, true) | (ReduceOp::Mean, false) => None,
        (ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor, _) => None,
    }
}

#[cfg(test)]
mod tests;
