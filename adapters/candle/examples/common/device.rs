//! Device of a rank, for candle and for hexagram.

use candle_core::Device;
use hexagram::physical::bootstrap::variable;
use hexagram::physical::device::DeviceChoice;
use hexagram::{Error, Launcher, Placement, Queue, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Variable with the number of threads that candle may use; read once, when it first computes.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Divides the cores among the ranks of a host under a launcher other than ours: restarts this program with the
/// variable set, before candle has read it. Our own launcher sets it itself.
pub(crate) fn share_cores() -> Result<()> {
    let Some(placement) = Placement::from_env()? else { return Ok(()) };
    if placement.launcher == Launcher::Hexagram || variable(THREADS).is_some() {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / placement.local_size).max(1);
    let failed = std::env::current_exe().map_or_else(
        |error| error,
        |program| {
            let arguments = std::env::args_os().skip(1);
            Command::new(program).args(arguments).env(THREADS, threads.to_string()).exec()
        },
    );
    Err(Error::system("start over with a share of the cores", failed, "set RAYON_NUM_THREADS yourself"))
}

/// Device on which a rank computes, and which holds its buckets.
#[derive(Clone)]
pub(crate) struct RankDevice {
    /// Device of the candle tensors.
    pub(crate) device: Device,
    /// Queue that owns the buckets of the engine.
    pub(crate) queue: Queue,
}

/// Checks that this build and this machine support the device, without opening it.
///
/// # Errors
/// One line with the missing part.
pub(crate) fn check(choice: DeviceChoice) -> Result<()> {
    match choice {
        DeviceChoice::Cuda(_) if !cfg!(feature = "cuda") => Err(Error::usage(
            format!("--device {choice}: this program was built without CUDA"),
            "build it with --features cuda, for which candle needs CUDA's toolkit, or use cpu",
        )),
        _ => choice.check(),
    }
}

impl RankDevice {
    /// Opens the device of the rank with this index on its host.
    ///
    /// # Errors
    /// As [`check`]; the error of the device if it cannot be opened.
    pub(crate) fn open(choice: DeviceChoice, local_rank: usize) -> Result<Self> {
        check(choice)?;
        match choice {
            // candle has no GPU support in this build.
            DeviceChoice::Auto if !cfg!(feature = "cuda") => Self::of(DeviceChoice::Cpu, local_rank),
            _ => Self::of(choice, local_rank),
        }
    }

    fn of(choice: DeviceChoice, local_rank: usize) -> Result<Self> {
        let queue = choice.queue(local_rank)?;
        let Some(index) = queue.name().strip_prefix("cuda:").and_then(|index| index.parse().ok()) else {
            return Ok(RankDevice { device: Device::Cpu, queue });
        };
        let opened = Device::new_cuda(index);
        let device = opened.map_err(|error| {
            let cause = std::io::Error::other(error);
            Error::system(format!("open {} for candle", queue.name()), cause, "see the driver, or use cpu")
        })?;
        Ok(RankDevice { device, queue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_there_in_every_build() {
        for choice in [DeviceChoice::Cpu, DeviceChoice::default()] {
            check(choice).unwrap();
            let place = RankDevice::open(choice, 3).unwrap();
            assert!(place.device.is_cpu() && place.queue.is_host());
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn what_a_build_lacks_is_said_and_auto_does_without() {
        for choice in [DeviceChoice::Cuda(None), DeviceChoice::Cuda(Some(1))] {
            let text = check(choice).unwrap_err().to_string();
            assert!(text.contains("built without CUDA") && text.contains("--features cuda"), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
        assert!(RankDevice::open(DeviceChoice::Auto, 0).unwrap().queue.is_host());
    }
}
