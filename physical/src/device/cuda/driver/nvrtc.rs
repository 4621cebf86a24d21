//! CUDA C++ of your own codec, compiled on first use.
//!
//! This needs NVRTC, a library of CUDA's toolkit, on the machine. All code of this library itself is PTX, and does
//! not need it.

use crate::error::{Error, Result};
use crate::system::library::Library;
use cudarc::driver::sys::CUDA_VERSION;
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Remedy if NVRTC is missing.
const INSTALL: &str =
    "install NVRTC of CUDA 12 or newer (a Python package is nvidia-cuda-nvrtc-cu12), or bring PTX";

/// Names of the library that cudarc tries, too: it panics if it finds none. It prefers the last one, and then the one of
/// its own version.
const NAMES: &[&str] = match CUDA_VERSION {
    13000.. => &["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"],
    _ => &["libnvrtc.so.12", "libnvrtc.so"],
};

/// Header that every source may include. A symbolic link, because a package may contain only its own files.
const HEADER: &str = include_str!("../../../../cuda/device.cuh");

/// Checks that NVRTC is installed. The first call of cudarc comes after this one.
///
/// # Errors
/// [`Error::Setup`] if NVRTC is missing.
fn check() -> Result<()> {
    static FOUND: OnceLock<Result<()>> = OnceLock::new();
    FOUND.get_or_init(|| Library::open(NAMES, INSTALL).map(drop)).clone()
}

/// Function that writes the size of a text.
type SizeOf = unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult;
/// Function that writes the text.
type TextOf = unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

/// Returns one of the texts that a compilation leaves.
fn text(program: nvrtcProgram, size: SizeOf, text: TextOf) -> Option<String> {
    let mut bytes = 0;
    // SAFETY: the pointer is valid for a write of one number.
    if unsafe { size(program, &mut bytes) } != nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    let mut room = vec![0u8; bytes + 1];
    // SAFETY: the buffer has the size that NVRTC returned.
    if unsafe { text(program, room.as_mut_ptr().cast()) } != nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    CStr::from_bytes_until_nul(&room).ok().map(|text| text.to_string_lossy().into_owned())
}

/// Returns the PTX of CUDA C++ for a device of this compute capability.
///
/// # Errors
/// [`Error::Setup`] if NVRTC is missing; [`Error::Usage`] with the compiler's first line if the source does not
/// compile.
pub(crate) fn compile(name: &str, source: &str, capability: (u32, u32)) -> Result<String> {
    check().map_err(|error| match error {
        Error::Setup { what, remedy } => Error::setup(format!("{name} is CUDA C++, but {what}"), remedy),
        other => other,
    })?;
    let source = format!("{source}\0");
    let name_of_file = format!("{name}.cu\0");
    let header = format!("{HEADER}\0");
    let headers = [header.as_ptr().cast()];
    let names = [c"device.cuh".as_ptr()];
    let mut program = null_mut();
    // SAFETY: all texts end with 0 and outlive the call, as does the place for one handle.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr().cast(),
            name_of_file.as_ptr().cast(),
            1,
            headers.as_ptr(),
            names.as_ptr(),
        )
    };
    if created != nvrtcResult::NVRTC_SUCCESS {
        return Err(Error::usage(
            format!("{name} cannot be compiled: NVRTC's error {}", created as u32),
            "supply PTX instead",
        ));
    }
    let ptx = compile_created(program, name, capability);
    // SAFETY: it was created above, and it is no longer in use.
    unsafe { sys::nvrtcDestroyProgram(&mut program) };
    ptx
}

fn compile_created(program: nvrtcProgram, name: &str, (major, minor): (u32, u32)) -> Result<String> {
    let target = format!("--gpu-architecture=compute_{major}{minor}\0");
    let rest = [c"-fmad=false", c"-default-device", c"--std=c++17"].map(CStr::as_ptr);
    let options: Vec<*const c_char> = std::iter::once(target.as_ptr().cast()).chain(rest).collect();
    // SAFETY: the program was created, and all texts end with 0 and outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program, options.len() as c_int, options.as_ptr()) };
    if compiled == nvrtcResult::NVRTC_SUCCESS
        && let Some(ptx) = text(program, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
    {
        return Ok(ptx);
    }
    let log = text(program, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog).unwrap_or_default();
    let first = log.lines().find(|line| line.contains("error")).unwrap_or("no reason given").to_owned();
    Err(Error::usage(format!("{name} cannot be compiled: {first}"), "correct its source"))
}
