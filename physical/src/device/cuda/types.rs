//! Types and constants of the driver's interface, under NVIDIA's names, as in the documentation of CUDA 12.0.
//!
//! Later drivers keep them: a changed one gets a new name, such as one with the suffix `_v2`. A crate for them would
//! fix one version of CUDA for a whole program.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// Number of a GPU in this process.
pub(crate) type CUdevice = c_int;

/// Address in the memory of a device, or in pinned memory of the host, as devices have it.
pub(crate) type CUdeviceptr = u64;

/// Function of the program that a stream calls.
pub(crate) type CUhostFn = unsafe extern "C" fn(*mut c_void);

/// Declares handles, which are of one pointer each.
macro_rules! handles {
    ($($(#[$about:meta])* $name:ident;)*) => {$(
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(*mut c_void);

        // SAFETY: nothing follows a handle but the driver, whose functions may be called on any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// Handle of nothing, which holds the place of one that the driver gives.
            pub(crate) const NONE: Self = $name(null_mut());
        }
    )*};
}

handles! {
    /// Context: the state of a process on a GPU.
    CUcontext;
    /// Event.
    CUevent;
    /// Entry of a module.
    CUfunction;
    /// Pool of a device's memory.
    CUmemoryPool;
    /// Module: kernels that are loaded together.
    CUmodule;
    /// Stream. `NONE` is the default one.
    CUstream;
}

impl CUstream {
    /// Returns another library's stream.
    pub(crate) fn of(handle: *mut c_void) -> Self {
        CUstream(handle)
    }

    /// Returns the stream as a pointer for another library.
    pub(crate) fn raw(self) -> *mut c_void {
        self.0
    }
}

/// Identity of a GPU.
#[repr(C)]
pub(crate) struct CUuuid {
    pub(crate) bytes: [u8; 16],
}

/// Name of an allocation, under which other processes open it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUipcMemHandle {
    pub(crate) reserved: [u8; 64],
}

/// Properties of a pool. Later versions of CUDA have given some of the reserved bytes a meaning, in which 0 is as before.
#[repr(C)]
pub(crate) struct CUmemPoolProps {
    alloc_type: c_uint,
    handle_types: c_uint,
    location_type: c_uint,
    location: c_int,
    security_attributes: *mut c_void,
    reserved: [u8; 64],
}

impl CUmemPoolProps {
    /// Returns those of a pool in the memory of a device, which no other process shares.
    pub(crate) fn of(device: CUdevice) -> Self {
        CUmemPoolProps {
            alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: 0,
            location_type: CU_MEM_LOCATION_TYPE_DEVICE,
            location: device,
            security_attributes: null_mut(),
            reserved: [0; 64],
        }
    }
}

const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;

pub(crate) const CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: c_uint = 33;
pub(crate) const CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: c_uint = 34;
pub(crate) const CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: c_uint = 50;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_uint = 75;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_uint = 76;
pub(crate) const CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: c_uint = 115;

/// For an event that has a time.
pub(crate) const CU_EVENT_DEFAULT: c_uint = 0;
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;

/// Lets the current context access memory of another GPU's context, if it can.
pub(crate) const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

pub(crate) const CU_JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub(crate) const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;

pub(crate) const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;

/// Attribute of 32 bits: whether an allocation may wait, on its stream, for work of another stream that frees memory.
pub(crate) const CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: c_uint = 3;
/// Number of 64 bits: bytes of freed memory that the pool keeps.
pub(crate) const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: c_uint = 4;

pub(crate) const CU_STREAM_CAPTURE_MODE_RELAXED: c_uint = 2;
pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;

/// Lets a stream wait until the word minus the value, as a signed number, is at least 0.
pub(crate) const CU_STREAM_WAIT_VALUE_GEQ: c_uint = 0;
/// Lets a stream write a value behind everything that it has written before.
pub(crate) const CU_STREAM_WRITE_VALUE_DEFAULT: c_uint = 0;
