//! Results of the driver's functions: which of them end all work on a GPU, and the remedy for each.
//!
//! Results are compared by their numbers, since cudarc may have been built for a CUDA that lacks some of them.

use cudarc::driver::sys::CUresult;

/// Remedy if the driver is missing or too old.
pub(crate) const INSTALL: &str = "install NVIDIA's driver, version 525 or newer";

/// Errors after which the device is lost to this process.
const FINAL: [u32; 18] = [
    4,   // CUDA_ERROR_DEINITIALIZED
    214, // CUDA_ERROR_ECC_UNCORRECTABLE
    220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
    226, // CUDA_ERROR_CONTAINED, of newer drivers
    700, // CUDA_ERROR_ILLEGAL_ADDRESS
    702, // CUDA_ERROR_LAUNCH_TIMEOUT
    709, // CUDA_ERROR_CONTEXT_IS_DESTROYED
    710, // CUDA_ERROR_ASSERT
    714, // CUDA_ERROR_HARDWARE_STACK_ERROR
    715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
    716, // CUDA_ERROR_MISALIGNED_ADDRESS
    717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
    718, // CUDA_ERROR_INVALID_PC
    719, // CUDA_ERROR_LAUNCH_FAILED
    721, // CUDA_ERROR_TENSOR_MEMORY_LEAK, of newer drivers
    810, // CUDA_ERROR_MPS_CLIENT_TERMINATED
    911, // CUDA_ERROR_EXTERNAL_DEVICE
    999, // CUDA_ERROR_UNKNOWN
];

/// Errors of code that does not suit this driver or GPU.
const OF_CODE: [u32; 6] = [
    200, // CUDA_ERROR_INVALID_IMAGE
    209, // CUDA_ERROR_NO_BINARY_FOR_GPU
    218, // CUDA_ERROR_INVALID_PTX
    221, // CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    222, // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    223, // CUDA_ERROR_JIT_COMPILATION_DISABLED
];

/// Returns true if the device is lost to this process after such an error.
pub(crate) fn is_final(status: CUresult) -> bool {
    FINAL.contains(&(status as u32))
}

/// Returns true if the code does not suit this driver or GPU, so that a second attempt would fail, too.
pub(crate) fn is_of_code(status: CUresult) -> bool {
    OF_CODE.contains(&(status as u32))
}

/// Returns the remedy.
pub(crate) fn remedy(status: CUresult) -> &'static str {
    match status as u32 {
        2 => "use smaller buffers, or check for other programs on the GPU",
        3 => "do not use CUDA in a process that was forked from one that uses it",
        34 => "take the folder of CUDA's stubs out of LD_LIBRARY_PATH",
        100 => "see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        209 => "use a GPU of compute capability 7.0 or more",
        222 => INSTALL,
        _ if is_final(status) => {
            "start the job again; `compute-sanitizer` finds a faulty kernel, `dmesg` a faulty GPU"
        }
        _ => "check `nvidia-smi` and the driver's log with `dmesg`",
    }
}
