//! The GPUs that a process sees, without opening them: their properties, and which of them reach each other.

use super::library::{driver, expect, version};
use crate::error::{Error, Result};
pub(crate) use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{self, CUdevice};
use std::ffi::{CStr, c_char, c_int};

/// Properties of a GPU, to display and to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Number of the GPU among those that this process sees.
    pub index: usize,
    /// Name of the product.
    pub name: String,
    /// Identity, equal in all processes, even if they number the GPUs differently.
    pub uuid: [u8; 16],
    /// Compute capability: 9 and 0 for an H100.
    pub capability: (u32, u32),
    /// Size of its memory in bytes.
    pub memory: usize,
}

/// Returns the descriptions of all GPUs that this process sees.
pub(crate) fn all() -> Result<Vec<Description>> {
    (0..count()?).map(|index| describe(index, device(index)?)).collect()
}

/// Returns the version of CUDA that the driver is made for, as major and minor number.
pub(crate) fn driver_version() -> Result<(u32, u32)> {
    driver()?;
    let version = version()?.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// Returns the numbers of the other GPUs whose memory each one reads directly.
pub(crate) fn peers() -> Result<Vec<Vec<usize>>> {
    (0..count()?).map(peers_of).collect()
}

/// Returns the numbers of the other GPUs whose memory a GPU reads directly.
pub(crate) fn peers_of(index: usize) -> Result<Vec<usize>> {
    let own = device(index)?;
    let reads = |peer: &usize| -> Result<bool> {
        let mut can: c_int = 0;
        // SAFETY: the pointer is valid for a write of one number.
        let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, device(*peer)?) };
        expect(status, &format!("ask whether cuda:{index} reaches cuda:{peer}"))?;
        Ok(can != 0)
    };
    let others = (0..count()?).filter(|peer| *peer != index);
    others.filter_map(|peer| reads(&peer).map(|reads| reads.then_some(peer)).transpose()).collect()
}

/// Returns the number of GPUs that this process sees.
pub(crate) fn count() -> Result<usize> {
    driver()?;
    let mut count: c_int = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let status = unsafe { sys::cuDeviceGetCount(&mut count) };
    expect(status, "count GPUs")?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns the driver's number of a GPU.
pub(crate) fn device(index: usize) -> Result<CUdevice> {
    let count = count()?;
    let number = c_int::try_from(index).ok().filter(|_| index < count);
    let Some(number) = number else {
        let what = format!("cuda:{index} does not exist: the driver shows {count} GPUs");
        return Err(Error::usage(what, "see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"));
    };
    let mut device = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let status = unsafe { sys::cuDeviceGet(&mut device, number) };
    expect(status, &format!("find cuda:{index}"))?;
    Ok(device)
}

/// Returns the properties of a GPU.
pub(crate) fn describe(index: usize, device: CUdevice) -> Result<Description> {
    let doing = format!("describe cuda:{index}");
    let mut name = [0 as c_char; 256];
    // SAFETY: the pointer is valid for a write of this many bytes.
    let status = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 255, device) };
    expect(status, &doing)?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid.
    let status = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) };
    expect(status, &doing)?;
    let mut memory = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let status = unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) };
    expect(status, &doing)?;
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // SAFETY: the array ends with 0, as its last letter was not for the driver to write.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let uuid = uuid.bytes.map(|byte| byte as u8);
    Ok(Description { index, name, uuid, capability: (major.unsigned_abs(), minor.unsigned_abs()), memory })
}

/// Returns an attribute of a GPU.
pub(crate) fn attribute(device: CUdevice, attribute: Attribute) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
    expect(status, "ask for an attribute of a GPU")?;
    Ok(value)
}
