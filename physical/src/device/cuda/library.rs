//! libcuda, the driver's library: what of it is used here, found when the program first asks for a GPU. Open this to
//! call one more of its functions.
//!
//! The types are cudarc's; the functions are looked up here, all at once, because cudarc's end the program where the
//! library or one of them is missing. What they return is a number, as newer drivers know errors that older types do
//! not.

use crate::error::{Error, Result};
use crate::library::{Library, functions};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUhostFn, CUjit_option,
    CUmemPool_attribute, CUmemoryPool, CUmodule, CUstream, CUuuid, cudaError_enum,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Oldest CUDA that the driver has to know, as it numbers its versions.
const OLDEST: c_int = 12_000;

/// Instruction to whoever has no such driver.
const INSTALL: &str = "install NVIDIA's driver, version 525 or newer";

functions! {
    /// Functions of the driver, by their names.
    pub(super) struct Libcuda: Status;
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(Status, *mut *const c_char);
    cuGetErrorString(Status, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
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
    cuMemPoolCreate(*mut CUmemoryPool, *const PoolProperties);
    cuMemPoolDestroy(CUmemoryPool);
    cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
}

impl Libcuda {
    /// Returns the driver's functions, once it has been initialised.
    ///
    /// # Errors
    /// [`Error::Setup`] that names the library, what is missing of it, or its version, if there is none or it is too
    /// old; [`Error::System`] if there is no device.
    pub(super) fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Libcuda>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(Error::clone)
    }

    fn find() -> Result<Self> {
        let found = Self::of(&Library::open(&["libcuda.so.1", "libcuda.so"], INSTALL)?)?;
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

    /// Passes success on, and turns anything else into an error of what was attempted.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success.
    pub(super) fn expect(&self, status: Status, doing: &str) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        Err(Error::system(doing, self.cause(status), status.remedy()))
    }

    /// Returns the driver's own name and description of a status.
    pub(super) fn cause(&self, status: Status) -> io::Error {
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
        // SAFETY: the driver has given a text of its own, which ends with 0 and stays.
        is_text.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Properties of a memory pool. The fields of cudarc's type depend on the version of CUDA that another crate asks for.
#[repr(C)]
pub(super) struct PoolProperties {
    allocation: c_uint,
    handles: c_uint,
    location: c_uint,
    device: c_int,
    security: *mut c_void,
    reserved: [u8; 64],
}

impl PoolProperties {
    /// Returns those of a pool in the memory of a device, which no other process shares.
    pub(super) fn of(device: CUdevice) -> Self {
        use cudarc::driver::sys::{CUmemAllocationType, CUmemLocationType};
        PoolProperties {
            allocation: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint,
            handles: 0,
            location: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint,
            device,
            security: null_mut(),
            reserved: [0; 64],
        }
    }
}

/// Result of a function of the driver.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(c_uint);

impl Status {
    pub(super) const SUCCESS: Self = Self::of(cudaError_enum::CUDA_SUCCESS);
    pub(super) const OUT_OF_MEMORY: Self = Self::of(cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY);
    pub(super) const NOT_READY: Self = Self::of(cudaError_enum::CUDA_ERROR_NOT_READY);

    const fn of(error: cudaError_enum) -> Self {
        Status(error as c_uint)
    }

    /// Returns true if nothing works on the device any more, in this process, after such an error.
    pub(super) fn is_final(self) -> bool {
        use cudaError_enum as Cuda;
        // Of newer drivers, CUDA_ERROR_CONTAINED and CUDA_ERROR_TENSOR_MEMORY_LEAK.
        [226, 721].map(Status).contains(&self)
            || [
                Cuda::CUDA_ERROR_DEINITIALIZED,
                Cuda::CUDA_ERROR_ECC_UNCORRECTABLE,
                Cuda::CUDA_ERROR_NVLINK_UNCORRECTABLE,
                Cuda::CUDA_ERROR_ILLEGAL_ADDRESS,
                Cuda::CUDA_ERROR_LAUNCH_TIMEOUT,
                Cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED,
                Cuda::CUDA_ERROR_ASSERT,
                Cuda::CUDA_ERROR_HARDWARE_STACK_ERROR,
                Cuda::CUDA_ERROR_ILLEGAL_INSTRUCTION,
                Cuda::CUDA_ERROR_MISALIGNED_ADDRESS,
                Cuda::CUDA_ERROR_INVALID_ADDRESS_SPACE,
                Cuda::CUDA_ERROR_INVALID_PC,
                Cuda::CUDA_ERROR_LAUNCH_FAILED,
                Cuda::CUDA_ERROR_MPS_CLIENT_TERMINATED,
                Cuda::CUDA_ERROR_EXTERNAL_DEVICE,
                Cuda::CUDA_ERROR_UNKNOWN,
            ]
            .map(Self::of)
            .contains(&self)
    }

    /// Returns what to do about it.
    fn remedy(self) -> &'static str {
        use cudaError_enum as Cuda;
        let is = |error| self == Self::of(error);
        match () {
            () if self == Self::OUT_OF_MEMORY => "use smaller buffers, or see who else uses the GPU",
            () if is(Cuda::CUDA_ERROR_NOT_INITIALIZED) => {
                "use no CUDA in a process that was forked from one that does"
            }
            () if is(Cuda::CUDA_ERROR_NO_DEVICE) => "see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            () if is(Cuda::CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => INSTALL,
            () if is(Cuda::CUDA_ERROR_NO_BINARY_FOR_GPU) => "use a GPU of compute capability 7.0 or more",
            () if self.is_final() => {
                "start the job again; `compute-sanitizer` names a kernel that is wrong, `dmesg` a GPU that is"
            }
            () => "see `nvidia-smi` and the driver's log, `dmesg`",
        }
    }
}
