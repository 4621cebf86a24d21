//! CUDA C++ of your own codec, compiled on first use.
//!
//! This needs NVRTC, a library of CUDA's toolkit, on the machine. All code of this library itself is PTX, and does
//! not need it.

use crate::error::{Error, Result};
use crate::library::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Remedy if NVRTC is missing.
const INSTALL: &str =
    "install NVRTC of CUDA 12 or newer (a Python package is nvidia-cuda-nvrtc-cu12), or bring PTX";

/// Names of the library, oldest first: a driver loads only code from NVRTC of its own version or older.
const NAMES: [&str; 4] = ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.14", "libnvrtc.so"];

/// Header that every source may include. A link, as a package has its own files only.
const HEADER: &str = include_str!("device.cuh");

/// Program of NVRTC's.
type Handle = *mut c_void;

type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type TextOf = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;

/// Functions of NVRTC; each returns 0 if it has succeeded.
struct Nvrtc {
    create: Create,
    compile: Compile,
    ptx_size: SizeOf,
    ptx: TextOf,
    log_size: SizeOf,
    log: TextOf,
    destroy: Destroy,
}

impl Nvrtc {
    fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Nvrtc>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(Error::clone)
    }

    fn find() -> Result<Self> {
        use std::mem::transmute;
        let library = Library::open(&NAMES, INSTALL)?;
        // SAFETY: NVRTC's functions of these names have the parameters of the fields.
        unsafe {
            Ok(Nvrtc {
                create: transmute::<*mut c_void, Create>(library.function("nvrtcCreateProgram\0")?),
                compile: transmute::<*mut c_void, Compile>(library.function("nvrtcCompileProgram\0")?),
                ptx_size: transmute::<*mut c_void, SizeOf>(library.function("nvrtcGetPTXSize\0")?),
                ptx: transmute::<*mut c_void, TextOf>(library.function("nvrtcGetPTX\0")?),
                log_size: transmute::<*mut c_void, SizeOf>(library.function("nvrtcGetProgramLogSize\0")?),
                log: transmute::<*mut c_void, TextOf>(library.function("nvrtcGetProgramLog\0")?),
                destroy: transmute::<*mut c_void, Destroy>(library.function("nvrtcDestroyProgram\0")?),
            })
        }
    }

    /// Returns one of the texts that a compilation leaves.
    fn text(program: Handle, size: SizeOf, text: TextOf) -> Option<String> {
        let mut bytes = 0;
        // SAFETY: the place is there for one number.
        if unsafe { size(program, &mut bytes) } != 0 {
            return None;
        }
        let mut room = vec![0u8; bytes + 1];
        // SAFETY: the buffer has the size that NVRTC returned.
        if unsafe { text(program, room.as_mut_ptr().cast()) } != 0 {
            return None;
        }
        CStr::from_bytes_until_nul(&room).ok().map(|text| text.to_string_lossy().into_owned())
    }
}

/// Returns the PTX of CUDA C++ for a device of this compute capability.
///
/// # Errors
/// [`Error::Setup`] if NVRTC is missing; [`Error::Usage`] with the compiler's first line if the source does not
/// compile.
pub(super) fn compile(name: &str, source: &str, capability: (u32, u32)) -> Result<String> {
    let nvrtc = Nvrtc::get().map_err(|error| match error {
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
        (nvrtc.create)(
            &mut program,
            source.as_ptr().cast(),
            name_of_file.as_ptr().cast(),
            1,
            headers.as_ptr(),
            names.as_ptr(),
        )
    };
    if created != 0 {
        return Err(Error::usage(
            format!("{name} cannot be compiled: NVRTC's error {created}"),
            "supply PTX instead",
        ));
    }
    let ptx = compile_created(nvrtc, program, name, capability);
    // SAFETY: it was created above, and it is no longer in use.
    unsafe { (nvrtc.destroy)(&mut program) };
    ptx
}

fn compile_created(nvrtc: &Nvrtc, program: Handle, name: &str, (major, minor): (u32, u32)) -> Result<String> {
    let target = format!("--gpu-architecture=compute_{major}{minor}\0");
    let rest = [c"-fmad=false", c"-default-device", c"--std=c++17"].map(CStr::as_ptr);
    let options: Vec<*const c_char> = std::iter::once(target.as_ptr().cast()).chain(rest).collect();
    // SAFETY: the program was created, and all texts end with 0 and outlive the call.
    let compiled = unsafe { (nvrtc.compile)(program, options.len() as c_int, options.as_ptr()) };
    if compiled == 0
        && let Some(ptx) = Nvrtc::text(program, nvrtc.ptx_size, nvrtc.ptx)
    {
        return Ok(ptx);
    }
    let log = Nvrtc::text(program, nvrtc.log_size, nvrtc.log).unwrap_or_default();
    let first = log.lines().find(|line| line.contains("error")).unwrap_or("no reason given").to_owned();
    Err(Error::usage(format!("{name} cannot be compiled: {first}"), "correct its source"))
}
