//! The driver, which [cudarc](cudarc::driver) calls, and the checks that a program makes before its first call.
//!
//! cudarc panics where the library or a function is missing. So [`driver`] first loads the library, and compares its
//! version: a driver of CUDA 12.0 or newer has every function that this crate calls, with one exception. For the time
//! between two events, cudarc of CUDA 13 calls a function of drivers of 12.8 and newer. This crate looks up the older
//! name, which all drivers have.
//!
//! cudarc declares a result as an enum of the CUDA that it was built for. A newer driver may return other numbers. Rust
//! gives such a value no meaning, and no caller of cudarc can prevent it. So this crate never matches on a result: it
//! compares a result with constants, or converts it to its number.

use super::status::{INSTALL, remedy};
use crate::error::{Error, Result};
use crate::system::library::Library;
use cudarc::driver::sys::{self, CUevent, CUresult};
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::null;
use std::sync::OnceLock;

/// Oldest CUDA that the driver must support, in CUDA's numbering of versions.
const OLDEST: c_int = 12_000;

/// `cuEventElapsedTime`: writes the milliseconds from one event to another.
type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// A driver that is loaded and recent enough for all calls.
pub(crate) struct Driver {
    /// The function that cudarc calls by a newer name.
    pub(crate) elapsed: Elapsed,
}

/// Returns the driver, after its initialisation. The first call of cudarc comes after this one.
///
/// # Errors
/// [`Error::Setup`] if the library is missing or too old; it names the library, the missing function, or the version.
/// [`Error::System`] if there is no device.
pub(crate) fn driver() -> Result<&'static Driver> {
    static FOUND: OnceLock<Result<Driver>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Error::clone)
}

fn find() -> Result<Driver> {
    let library = Library::open(&["libcuda.so.1", "libcuda.so"], INSTALL)?;
    let elapsed = library.function("cuEventElapsedTime\0")?;
    // SAFETY: the driver's function of this name has these parameters and this result.
    let elapsed = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Elapsed>(elapsed) };
    let version = version()?;
    if version < OLDEST {
        let spelt = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
        let what = format!("libcuda.so.1 is of CUDA {}, older than {}", spelt(version), spelt(OLDEST));
        return Err(Error::setup(what, INSTALL));
    }
    // SAFETY: it takes no pointer.
    let status = unsafe { sys::cuInit(0) };
    expect(status, "initialise CUDA")?;
    Ok(Driver { elapsed })
}

/// Returns the version of CUDA that the driver is made for, in CUDA's numbering. The library must be loaded.
///
/// # Errors
/// [`Error::System`] if the driver refuses.
pub(crate) fn version() -> Result<c_int> {
    let mut version = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    expect(status, "ask the driver for its version")?;
    Ok(version)
}

/// Passes success on, and turns anything else into an error about `what`.
///
/// # Errors
/// [`Error::System`] unless the status is success.
pub(crate) fn expect(status: CUresult, doing: &str) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::system(doing, cause(status), remedy(status)))
}

/// Returns the driver's own name and description of a status.
pub(crate) fn cause(status: CUresult) -> io::Error {
    let name = text(sys::cuGetErrorName, status);
    let description = text(sys::cuGetErrorString, status);
    let name = name.unwrap_or_else(|| format!("CUDA error {}", status as u32));
    io::Error::other(description.map_or(name.clone(), |description| format!("{name}, {description}")))
}

fn text(function: unsafe fn(CUresult, *mut *const c_char) -> CUresult, status: CUresult) -> Option<String> {
    let mut text = null();
    // SAFETY: the pointer is valid for a write of one pointer.
    let found = unsafe { function(status, &mut text) };
    let is_text = found == CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: the driver returned a static text that ends with 0.
    is_text.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
