//! Results of the driver's functions: which of them end all work on a GPU, and the remedy for each.
//!
//! A result is a number, since newer drivers have errors that older headers lack.

use std::ffi::c_uint;

/// Remedy if the driver is missing or too old.
pub(super) const INSTALL: &str = "install NVIDIA's driver, version 525 or newer";

/// Result of a function of the driver.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(super) c_uint);

impl Status {
    pub(crate) const SUCCESS: Self = Status(0);
    pub(crate) const OUT_OF_MEMORY: Self = Status(2);
    const NOT_INITIALIZED: Self = Status(3);
    const NO_DEVICE: Self = Status(100);
    pub(crate) const ALREADY_MAPPED: Self = Status(208);
    const NO_BINARY_FOR_GPU: Self = Status(209);
    const UNSUPPORTED_PTX_VERSION: Self = Status(222);
    pub(crate) const NOT_READY: Self = Status(600);
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Self = Status(704);

    /// Errors after which nothing works on the device any more, in this process.
    const FINAL: [Self; 18] = [
        Status(4),   // CUDA_ERROR_DEINITIALIZED
        Status(214), // CUDA_ERROR_ECC_UNCORRECTABLE
        Status(220), // CUDA_ERROR_NVLINK_UNCORRECTABLE
        Status(226), // CUDA_ERROR_CONTAINED, of newer drivers
        Status(700), // CUDA_ERROR_ILLEGAL_ADDRESS
        Status(702), // CUDA_ERROR_LAUNCH_TIMEOUT
        Status(709), // CUDA_ERROR_CONTEXT_IS_DESTROYED
        Status(710), // CUDA_ERROR_ASSERT
        Status(714), // CUDA_ERROR_HARDWARE_STACK_ERROR
        Status(715), // CUDA_ERROR_ILLEGAL_INSTRUCTION
        Status(716), // CUDA_ERROR_MISALIGNED_ADDRESS
        Status(717), // CUDA_ERROR_INVALID_ADDRESS_SPACE
        Status(718), // CUDA_ERROR_INVALID_PC
        Status(719), // CUDA_ERROR_LAUNCH_FAILED
        Status(721), // CUDA_ERROR_TENSOR_MEMORY_LEAK, of newer drivers
        Status(810), // CUDA_ERROR_MPS_CLIENT_TERMINATED
        Status(911), // CUDA_ERROR_EXTERNAL_DEVICE
        Status(999), // CUDA_ERROR_UNKNOWN
    ];

    /// Returns true if nothing works on the device any more, in this process, after such an error.
    pub(crate) fn is_final(self) -> bool {
        Self::FINAL.contains(&self)
    }

    /// Returns true if the code does not suit this driver or GPU, so that a second attempt would fail, too.
    pub(super) fn is_of_code(self) -> bool {
        // CUDA_ERROR_INVALID_IMAGE, …_INVALID_PTX, …_JIT_COMPILER_NOT_FOUND, …_JIT_COMPILATION_DISABLED.
        [Self::NO_BINARY_FOR_GPU, Self::UNSUPPORTED_PTX_VERSION].contains(&self)
            || [200, 218, 221, 223].contains(&self.0)
    }

    /// Returns the remedy.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::OUT_OF_MEMORY => "use smaller buffers, or check for other programs on the GPU",
            Self::NOT_INITIALIZED => "use no CUDA in a process that was forked from one that does",
            Self::NO_DEVICE => "see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            Self::UNSUPPORTED_PTX_VERSION => INSTALL,
            Self::NO_BINARY_FOR_GPU => "use a GPU of compute capability 7.0 or more",
            _ if self.is_final() => {
                "start the job again; `compute-sanitizer` names a kernel that is wrong, `dmesg` a GPU that is"
            }
            _ => "check `nvidia-smi` and the driver's log with `dmesg`",
        }
    }
}
