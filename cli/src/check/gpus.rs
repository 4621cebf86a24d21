//! GPUs: whether this build uses them, and what the driver says of those that are here.

#[cfg(feature = "cuda")]
use super::libraries::find;
#[cfg(not(feature = "cuda"))]
use super::libraries::place;
use super::report::Report;

/// Library of NVIDIA's driver.
const DRIVER: &str = "libcuda.so.1";

/// Reports the driver and its GPUs, or where its library is if this build does not use it.
#[cfg(not(feature = "cuda"))]
pub(super) fn check(report: &mut Report) {
    report.note(&format!(
        "CUDA: not built in, `cargo install hexagram-cli --features cuda` adds it; {}",
        place(DRIVER, "no NVIDIA driver is installed, or LD_LIBRARY_PATH lacks its folder")
    ));
}

/// Reports the driver and its GPUs, or where its library is if this build does not use it.
#[cfg(feature = "cuda")]
pub(super) fn check(report: &mut Report) {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = version.lines().next().map(|line| format!(" ({line})")).unwrap_or_default();
    match hexagram::cuda::devices() {
        Ok(devices) if devices.is_empty() => {
            report.note(&format!("CUDA: built in; the driver{version} shows no GPU"));
        }
        Ok(devices) => devices.iter().for_each(|device| report.good(&format!("{}{version}", told(device)))),
        Err(error) if find(DRIVER).is_none() => report.note(&format!("CUDA: built in; {error}")),
        Err(error) => report.bad(&format!("CUDA: built in; {error}")),
    }
}

/// Returns a line about a GPU.
#[cfg(feature = "cuda")]
fn told(device: &hexagram::cuda::Description) -> String {
    let hexagram::cuda::Description { index, name, uuid, capability: (major, minor), memory } = device;
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let gibibytes = *memory as f64 / f64::from(1 << 30);
    format!("cuda:{index}: {name}, {gibibytes:.1} GiB, compute capability {major}.{minor}, UUID {uuid}")
}
