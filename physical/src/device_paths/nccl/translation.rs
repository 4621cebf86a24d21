//! Translation between NCCL and this crate: errors with remedies, and the types and reductions that both have.

use crate::error::{Error, Result};
use crate::memory::dtype::{DType, ReduceOp};
use nccl_rs::{DataType, Reduction, Status, Version};
use std::io;

/// Remedy if no suitable NCCL is installed.
const INSTALL: &str = "install NCCL 2.27.3 or newer (its Python package is nvidia-nccl-cu12) where the loader finds it: name its folder in LD_LIBRARY_PATH";

/// Returns the version of NCCL on this machine, which is loaded for that. It needs no GPU.
///
/// # Errors
/// [`Error::Setup`] if NCCL is missing, incomplete or too old; it names the library, the missing function or the version.
pub fn version() -> Result<Version> {
    nccl_rs::version().map_err(|error| explained("ask NCCL for its version", &error))
}

/// Returns an NCCL error with its remedy, about the attempted call.
pub(super) fn explained(doing: &str, error: &nccl_rs::Error) -> Error {
    let what = error.to_string();
    match error {
        nccl_rs::Error::Missing { .. } | nccl_rs::Error::Lacking { .. } | nccl_rs::Error::TooOld { .. } => {
            Error::setup(what, INSTALL)
        }
        nccl_rs::Error::Blocking { .. } => {
            Error::setup(what, "unset it, or do without NCCL: HEXAGRAM_DEVICE_PATH=staging")
        }
        _ => Error::system(doing, io::Error::other(what), remedy(error.status())),
    }
}

/// Returns the remedy for a result.
fn remedy(status: Option<Status>) -> &'static str {
    match status {
        Some(Status::UNHANDLED_CUDA_ERROR) => "see `nvidia-smi`, and run with NCCL_DEBUG=INFO for details",
        Some(Status::SYSTEM_ERROR) => {
            "see whether the ranks reach each other (NCCL_SOCKET_IFNAME), and run with NCCL_DEBUG=INFO for details"
        }
        Some(Status::INVALID_ARGUMENT | Status::INVALID_USAGE) => {
            "give each rank a GPU of its own and all ranks the same NCCL, and run with NCCL_DEBUG=WARN for details"
        }
        Some(Status::REMOTE_ERROR) => "see why the other rank has ended",
        _ => "run with NCCL_DEBUG=INFO for details, or without NCCL: HEXAGRAM_DEVICE_PATH=staging",
    }
}

/// Returns NCCL's type, or one of equal size where it has no such type: it moves bits as they are, and [`reduction`] offers
/// nothing for those.
pub(super) fn data_type(dtype: DType) -> DataType {
    match dtype {
        DType::I8 => DataType::Int8,
        DType::U8 | DType::Bool => DataType::Uint8,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::F16 | DType::I16 => DataType::Float16,
        DType::F32 => DataType::Float32,
        DType::F64 => DataType::Float64,
        DType::BF16 => DataType::Bfloat16,
    }
}

/// Returns NCCL's reduction. Returns `None` if the definitions differ: NCCL ignores a NaN in the minimum and maximum of floats,
/// and rounds means of integers, which this crate does not have. NCCL has no 16-bit integers, booleans or bitwise reductions.
///
/// A mean multiplies every contribution by 1/n, rounded to the type, before it sums, and so differs from a sum divided
/// by n in the last bits unless n is a power of two. A NaN that comes out of a sum is the GPU's own.
pub(super) fn reduction(op: ReduceOp, dtype: DType) -> Option<Reduction> {
    if matches!(dtype, DType::I16 | DType::Bool) {
        return None;
    }
    match (op, dtype.is_float()) {
        (ReduceOp::Sum, _) => Some(Reduction::Sum),
        (ReduceOp::Product, _) => Some(Reduction::Product),
        (ReduceOp::Max, false) => Some(Reduction::Max),
        (ReduceOp::Min, false) => Some(Reduction::Min),
        (ReduceOp::Mean, true) => Some(Reduction::Average),
        (ReduceOp::Min | ReduceOp::Max, true) | (ReduceOp::Mean, false) => None,
        (ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reductions_that_mean_the_same_are_left_to_nccl() {
        let offered =
            |op| DType::ALL.into_iter().filter(|dtype| reduction(op, *dtype).is_some()).collect::<Vec<_>>();
        let integers = [DType::U8, DType::I8, DType::I32, DType::I64];
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let both = [&integers[..], &floats].concat();
        assert_eq!(offered(ReduceOp::Sum), both);
        assert_eq!(offered(ReduceOp::Product), both);
        assert_eq!(offered(ReduceOp::Min), integers);
        assert_eq!(offered(ReduceOp::Max), integers);
        assert_eq!(offered(ReduceOp::Mean), floats);
        let bitwise = ReduceOp::ALL.into_iter().filter(|op| op.is_bitwise());
        assert!(bitwise.flat_map(offered).next().is_none());
    }

    #[test]
    fn types_have_the_size_of_ours() {
        assert!(DType::ALL.into_iter().all(|dtype| data_type(dtype).size() == dtype.size()));
    }

    #[test]
    fn errors_have_a_remedy() {
        assert!(INSTALL.contains(&format!("NCCL {} or newer", Version::OLDEST)));
        let missing = nccl_rs::Error::Missing { reason: "cannot open".to_owned() };
        let error = explained("begin", &missing).to_string();
        assert_eq!(error, format!("libnccl.so.2 cannot be loaded: cannot open; {INSTALL}"));
        let waiting = nccl_rs::Error::Blocking { name: "NCCL_COMM_BLOCKING", value: "1".to_owned() };
        let error = explained("begin", &waiting).to_string();
        assert!(
            error.starts_with("NCCL_COMM_BLOCKING is 1, ") && error.contains("; unset it, or"),
            "{error}"
        );
        let refused = nccl_rs::Error::Refused { status: Status::REMOTE_ERROR, details: "gone".to_owned() };
        let error = explained("begin", &refused).to_string();
        assert_eq!(error, "cannot begin: ncclRemoteError, gone; see why the other rank has ended");
        if let Err(error) = version() {
            let error = error.to_string();
            assert!(error.starts_with("libnccl.so.2 ") && error.ends_with(INSTALL), "{error}");
        }
    }
}
