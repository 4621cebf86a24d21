//! DLPack: tensors of torch, jax, cupy and NumPy, described by a capsule.
//!
//! The capsule itself is kept, not its contents: its destructor, which runs with the interpreter lock, releases the
//! tensor.

use super::elements_owner::{ElementsOwner, OwnerKind};
use super::{OwnedElements, gpu, name_of};
use crate::error::usage;
use crate::values::dtype::all_dtypes;
use hexagram::{DType, Queue};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};

/// Device number of host memory: `kDLCPU`.
pub(super) const HOST: i32 = 1;
/// Device number of GPU memory: `kDLCUDA`.
pub(super) const CUDA: i32 = 2;
/// Device number of pinned host memory: `kDLCUDAHost`.
const PINNED: i32 = 3;
/// Device number of memory that both host and GPU access: `kDLCUDAManaged`.
const MANAGED: i32 = 13;
/// Name of a capsule before its tensor is taken.
pub(super) const PLAIN: &CStr = c"dltensor";
/// Name of a capsule with version and flags.
pub(super) const VERSIONED: &CStr = c"dltensor_versioned";
/// Flag of a tensor that must not be written.
const READ_ONLY: u64 = 1;

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct DlTensor {
    pub(super) data: *mut c_void,
    pub(super) device: DlDevice,
    pub(super) dimensions: i32,
    pub(super) kind: ElementKind,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) offset: u64,
}

/// `DLDevice`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DlDevice {
    pub(super) kind: i32,
    pub(super) number: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ElementKind {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) tensor: DlTensor,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ManagedVersioned {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub(super) flags: u64,
    pub(super) tensor: DlTensor,
}

/// A capsule whose tensor has not been taken.
pub(super) struct Capsule<'py> {
    capsule: Bound<'py, PyAny>,
    /// Name of the object in errors.
    name: String,
    /// Number of the GPU, and the queue that waits there for the work of the producer; `None` for host memory.
    gpu: Option<(usize, Queue)>,
}

impl<'py> Capsule<'py> {
    /// Requests a capsule from an object.
    pub(super) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let name = name_of(object);
        let options = PyDict::new(py);
        let mut gpu = None;
        if let Some(number) = gpu_of(object)? {
            let (queue, stream) = gpu::producers_queue(py, number)?;
            options.set_item(intern!(py, "stream"), stream)?;
            gpu = Some((number, queue));
        }
        let method = object.getattr(intern!(py, "__dlpack__"))?;
        let versioned = options.copy()?;
        versioned.set_item(intern!(py, "max_version"), (1, 0))?;
        let capsule = match method.call((), Some(&versioned)) {
            // From a library that predates versions.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call((), Some(&options)),
            other => other,
        };
        let capsule = capsule.map_err(|error| {
            let what = format!("{name} does not lend its memory ({})", error.value(py));
            let remedy = "pass a dense, contiguous tensor, detached from any gradient, on the current device";
            let refused = usage(py, what, remedy);
            refused.set_cause(py, Some(error));
            refused
        })?;
        Ok(Capsule { capsule, name, gpu })
    }

    /// Returns the elements of the tensor, which own the capsule from then on.
    pub(super) fn into_elements(self) -> PyResult<OwnedElements> {
        let py = self.capsule.py();
        let name = &self.name;
        let (tensor, flags) = self.tensor(py)?;
        let is_expected = match &self.gpu {
            None => matches!(tensor.device.kind, HOST | PINNED),
            Some((gpu, _)) => {
                matches!(tensor.device.kind, CUDA | MANAGED)
                    && usize::try_from(tensor.device.number) == Ok(*gpu)
            }
        };
        if !is_expected {
            let what =
                format!("{name} is in the memory of an unsupported device ({})", device(tensor.device.kind));
            return Err(usage(py, what, "copy it to the host first, as `tensor.cpu()` does"));
        }
        let dtype = dtype_of(tensor.kind).ok_or_else(|| {
            let what = format!("{name} has elements of the type {}", spelled(tensor.kind));
            usage(py, what, format!("convert or view them as one of {}", all_dtypes()))
        })?;
        // SAFETY: the producer fills both in, or omits the strides for contiguous elements.
        let len = unsafe { contiguous(tensor) }
            .ok_or_else(|| usage(py, format!("{name} is not contiguous"), "pass `tensor.contiguous()`"))?;
        Ok(OwnedElements {
            address: tensor.data.expose_provenance().wrapping_add(tensor.offset as usize),
            dtype,
            len,
            writable: flags & READ_ONLY == 0,
            queue: self.gpu.map_or_else(Queue::host, |(_, queue)| queue),
            kept: ElementsOwner::new(OwnerKind::Object(self.capsule.unbind())),
        })
    }

    /// Returns the tensor, and its flags.
    fn tensor(&self, py: Python<'_>) -> PyResult<(&DlTensor, u64)> {
        let capsule = self.capsule.as_ptr();
        // SAFETY: the object is alive; the name determines the target of a valid capsule, which lives as long as the
        // capsule.
        unsafe {
            if PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
                let managed = PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
                if (*managed).major == 1 {
                    return Ok((&(*managed).tensor, (*managed).flags));
                }
            } else if PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
                let managed = PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast::<Managed>();
                return Ok((&(*managed).tensor, 0));
            }
        }
        let what = format!("{} has an unsupported version of DLPack", self.name);
        Err(usage(py, what, "pass a NumPy array over the same memory, or a Span"))
    }
}

/// Returns the number of the GPU whose memory an object has; `None` for the host, and for a device that is refused later.
fn gpu_of(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let py = object.py();
    let Some(method) = object.getattr_opt(intern!(py, "__dlpack_device__"))? else { return Ok(None) };
    let (kind, number): (i32, i32) = method.call0()?.extract()?;
    Ok(usize::try_from(number).ok().filter(|_| matches!(kind, CUDA | MANAGED)))
}

/// Returns the number of elements, if they are contiguous in row-major order.
///
/// # Safety
/// The shape, and the strides if given, have an entry for each dimension.
unsafe fn contiguous(tensor: &DlTensor) -> Option<usize> {
    let dimensions = usize::try_from(tensor.dimensions).ok()?;
    let mut len = 1i64;
    let mut dense = true;
    for dimension in (0..dimensions).rev() {
        // SAFETY: as this function requires.
        let size = unsafe { *tensor.shape.add(dimension) };
        if !tensor.strides.is_null() && size != 1 {
            // SAFETY: as this function requires.
            dense &= unsafe { *tensor.strides.add(dimension) } == len;
        }
        len = len.checked_mul(size)?;
    }
    // Without elements, strides do not matter.
    usize::try_from(len).ok().filter(|len| dense || *len == 0)
}

/// The element types, by code and bits.
const KINDS: [(u8, u8, DType); 10] = [
    (0, 8, DType::I8),
    (0, 16, DType::I16),
    (0, 32, DType::I32),
    (0, 64, DType::I64),
    (1, 8, DType::U8),
    (2, 16, DType::F16),
    (2, 32, DType::F32),
    (2, 64, DType::F64),
    (4, 16, DType::BF16),
    (6, 8, DType::Bool),
];

fn dtype_of(kind: ElementKind) -> Option<DType> {
    let known = KINDS.iter().find(|(code, bits, _)| (*code, *bits, 1) == (kind.code, kind.bits, kind.lanes));
    known.map(|(_, _, dtype)| *dtype)
}

/// Returns the kind of an element type.
pub(super) fn kind_of(dtype: DType) -> Option<ElementKind> {
    let known = KINDS.iter().find(|(_, _, known)| *known == dtype);
    known.map(|(code, bits, _)| ElementKind { code: *code, bits: *bits, lanes: 1 })
}

/// Returns the name of an unsupported element type.
fn spelled(kind: ElementKind) -> String {
    let ElementKind { code, bits, lanes } = kind;
    let name = match code {
        0 => "int",
        1 => "uint",
        2 => "float",
        4 => "bfloat",
        5 => "complex",
        6 => "bool",
        7.. => "narrow float",
        _ => "opaque",
    };
    if lanes == 1 { format!("{name}{bits}") } else { format!("{name}{bits} × {lanes}") }
}

fn device(kind: i32) -> &'static str {
    match kind {
        2 | 3 => "CUDA",
        4 => "OpenCL",
        7 => "Vulkan",
        8 => "Metal",
        10 | 11 => "ROCm",
        13 => "CUDA, managed",
        14 => "oneAPI",
        _ => "no host memory",
    }
}
