//! DLPack export: memory of this library as tensors of others, without copies.

use super::dlpack::{CUDA, DlDevice, DlTensor, HOST, Managed, ManagedVersioned, PLAIN, VERSIONED, kind_of};
use crate::error::{exception, usage};
use hexagram::physical::memory::Keeper;
use hexagram::{DType, Error};
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject};
use pyo3::prelude::*;
use std::ffi::c_void;

/// Host memory, as a DLPack device.
pub(crate) const HOST_MEMORY: (i32, i32) = (HOST, 0);

/// Returns the memory of a GPU, as a DLPack device.
pub(crate) fn memory_of_gpu(gpu: usize) -> (i32, i32) {
    (CUDA, i32::try_from(gpu).unwrap_or(i32::MAX))
}

/// Elements with their owner.
pub(crate) struct LentElements {
    pub(crate) address: usize,
    pub(crate) elements: usize,
    pub(crate) dtype: DType,
    /// Memory that has them, as a DLPack device.
    pub(crate) device: (i32, i32),
    pub(crate) keep: Keeper,
}

/// Requests of a consumer, as passed to `__dlpack__`.
pub(crate) struct DlpackRequest {
    /// Newest version that the consumer supports.
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// Returns a capsule with the elements, as requested by a consumer. Fails if it requests a copy, or another device.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    lent: &LentElements,
    asked: DlpackRequest,
) -> PyResult<Bound<'py, PyAny>> {
    if asked.copy == Some(true) || asked.device.is_some_and(|device| device != lent.device) {
        return Err(usage(py, "this memory cannot be copied", "import it without a copy, then copy it"));
    }
    if asked.max_version.is_some_and(|(major, _)| major >= 1) {
        export::<ManagedVersioned>(py, lent)
    } else {
        export::<Managed>(py, lent)
    }
}

/// A tensor in DLPack form, with the owner of the lent memory.
#[repr(C)]
struct ExportedTensor<M> {
    /// First, so that a pointer to it is a pointer to the whole.
    managed: M,
    shape: [i64; 1],
    _keep: Keeper,
}

/// One of the two forms in DLPack.
trait Form: Sized {
    const NAME: &'static std::ffi::CStr;
    fn of(tensor: DlTensor) -> Self;
    fn tensor(&mut self) -> &mut DlTensor;
}

impl Form for Managed {
    const NAME: &'static std::ffi::CStr = PLAIN;
    fn of(tensor: DlTensor) -> Self {
        Managed { tensor, context: std::ptr::null_mut(), deleter: Some(delete::<Managed>) }
    }
    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

impl Form for ManagedVersioned {
    const NAME: &'static std::ffi::CStr = VERSIONED;
    fn of(tensor: DlTensor) -> Self {
        let deleter = Some(delete::<ManagedVersioned> as unsafe extern "C" fn(*mut ManagedVersioned));
        ManagedVersioned { major: 1, minor: 0, context: std::ptr::null_mut(), deleter, flags: 0, tensor }
    }
    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

/// Returns a capsule with the elements, in one of the forms.
fn export<'py, M: Form>(py: Python<'py>, lent: &LentElements) -> PyResult<Bound<'py, PyAny>> {
    let kind = kind_of(lent.dtype).ok_or_else(|| {
        exception(py, &Error::usage(format!("DLPack has no {}", lent.dtype), "use another type"))
    })?;
    let tensor = DlTensor {
        data: std::ptr::with_exposed_provenance_mut(lent.address),
        device: DlDevice { kind: lent.device.0, number: lent.device.1 },
        dimensions: 1,
        kind,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        offset: 0,
    };
    let shape = [i64::try_from(lent.elements).unwrap_or(i64::MAX)];
    let exported =
        Box::new(ExportedTensor { managed: M::of(tensor), shape, _keep: Keeper::clone(&lent.keep) });
    let exported = Box::into_raw(exported);
    // SAFETY: it was just created, and has no other owner; the capsule takes it over, or it is dropped here.
    unsafe {
        (*exported).managed.tensor().shape = (&raw mut (*exported).shape).cast();
        let capsule = PyCapsule_New(exported.cast(), M::NAME.as_ptr(), Some(destroy::<M>));
        if capsule.is_null() {
            drop(Box::from_raw(exported));
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Releases an exported tensor: called once, by the consumer that took it.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: `managed` is the first field of a box created by `export`, and no longer used.
    drop(unsafe { Box::from_raw(managed.cast::<ExportedTensor<M>>()) });
}

/// Releases an exported tensor, if no consumer has taken it.
unsafe extern "C" fn destroy<M: Form>(capsule: *mut PyObject) {
    // SAFETY: the capsule was created by `export`; a consumer that takes its tensor renames it.
    unsafe {
        if PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            let managed: *mut c_void = PyCapsule_GetPointer(capsule, M::NAME.as_ptr());
            delete::<M>(managed.cast());
        }
    }
}
