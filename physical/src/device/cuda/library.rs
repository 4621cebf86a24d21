//! libcuda, the driver's library: the functions that this crate needs, looked up when a program first opens a GPU.
//!
//! One lookup finds them all. Those of [`Sharing`] may be missing; only the callers that need them fail.

use super::status::{INSTALL, Status};
use super::types::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUhostFn, CUipcMemHandle, CUmemPoolProps,
    CUmemoryPool, CUmodule, CUstream, CUuuid,
};
use crate::error::{Error, Result};
use crate::library::{Library, functions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ops::Deref;
use std::ptr::null;
use std::sync::OnceLock;

/// Oldest CUDA that the driver must support, in CUDA's numbering of versions.
const OLDEST: c_int = 12_000;

functions! {
    /// Names of the driver's functions that every device needs.
    pub(crate) struct Functions: Status;
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(Status, *mut *const c_char);
    cuGetErrorString(Status, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxSetCurrent(CUcontext);
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    cuMemFreeAsync(CUdeviceptr, CUstream);
    cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
    cuMemPoolDestroy(CUmemoryPool);
    cuMemPoolSetAttribute(CUmemoryPool, c_uint, *mut c_void);
    cuMemPoolTrimTo(CUmemoryPool, usize);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamIsCapturing(CUstream, *mut c_uint);
    cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void
    );
}

functions! {
    /// Functions on memory that other processes, devices or libraries share, and on streams that wait for them.
    pub(crate) struct Sharing: Status;
    cuCtxEnablePeerAccess(CUcontext, c_uint);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuIpcCloseMemHandle(CUdeviceptr);
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
}

/// The driver's library.
pub(crate) struct Libcuda {
    functions: Functions,
    sharing: Result<Sharing>,
}

impl Deref for Libcuda {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Libcuda {
    /// Returns the driver's functions, after its initialisation.
    ///
    /// # Errors
    /// [`Error::Setup`] if the library is missing or too old; it names the library, the missing function, or the
    /// version. [`Error::System`] if there is no device.
    pub(crate) fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Libcuda>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(Error::clone)
    }

    fn find() -> Result<Self> {
        let library = Library::open(&["libcuda.so.1", "libcuda.so"], INSTALL)?;
        let found = Libcuda { functions: Functions::of(&library)?, sharing: Sharing::of(&library) };
        let mut version = 0;
        // SAFETY: the place is there for one number.
        let status = unsafe { (found.cuDriverGetVersion)(&mut version) };
        found.expect(status, "ask the driver for its version")?;
        if version < OLDEST {
            let spelt = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
            let what = format!("libcuda.so.1 is of CUDA {}, older than {}", spelt(version), spelt(OLDEST));
            return Err(Error::setup(what, INSTALL));
        }
        // SAFETY: it takes no pointer.
        let status = unsafe { (found.cuInit)(0) };
        found.expect(status, "initialise CUDA")?;
        Ok(found)
    }

    /// Returns the functions on memory that is shared.
    ///
    /// # Errors
    /// [`Error::Setup`] that names the first one that is missing.
    pub(crate) fn sharing(&self) -> Result<&Sharing> {
        self.sharing.as_ref().map_err(Error::clone)
    }

    /// Passes success on, and turns anything else into an error about `what`.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success.
    pub(crate) fn expect(&self, status: Status, doing: &str) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        Err(Error::system(doing, self.cause(status), status.remedy()))
    }

    /// Returns the driver's own name and description of a status.
    pub(crate) fn cause(&self, status: Status) -> io::Error {
        let name = self.text(self.cuGetErrorName, status);
        let description = self.text(self.cuGetErrorString, status);
        let name = name.unwrap_or_else(|| format!("CUDA error {}", status.0));
        io::Error::other(description.map_or(name.clone(), |description| format!("{name}, {description}")))
    }

    fn text(
        &self,
        function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> Option<String> {
        let mut text = null();
        // SAFETY: the place is there for one pointer.
        let found = unsafe { function(status, &mut text) };
        let is_text = found == Status::SUCCESS && !text.is_null();
        // SAFETY: the driver returned a static text that ends with 0.
        is_text.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}
