//! Choice of a device by name: the option `--device` of the programs.

use super::Queue;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Device on which a rank computes, as users type it.
///
/// ```
/// use hexagram_physical::device::DeviceChoice;
///
/// let choice: DeviceChoice = "cpu".parse()?;
/// assert!(choice.queue(0)?.is_host());
/// assert_eq!("cuda:1".parse::<DeviceChoice>()?.to_string(), "cuda:1");
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The host: `cpu`.
    #[default]
    Cpu,
    /// A GPU by its index, `cuda:1`; without an index, `cuda` assigns GPUs to the ranks of a host in turn.
    Cuda(Option<usize>),
    /// GPUs for the ranks in turn if the machine has any, otherwise the host: `auto`.
    Auto,
}

impl DeviceChoice {
    /// Checks whether this build and this machine have the device, without opening it.
    ///
    /// # Errors
    /// [`Error::Usage`] that describes the missing part.
    pub fn check(self) -> Result<()> {
        match self {
            DeviceChoice::Cpu | DeviceChoice::Auto => Ok(()),
            DeviceChoice::Cuda(_) => self.count().map(drop),
        }
    }

    /// Returns the number of GPUs to choose from; 0 for the host.
    fn count(self) -> Result<usize> {
        let DeviceChoice::Cuda(index) = self else {
            return Ok(if self == DeviceChoice::Auto { count().unwrap_or(0) } else { 0 });
        };
        let count = count()?;
        if index.unwrap_or_default() < count {
            return Ok(count);
        }
        let what = format!("{self} is not among the {count} CUDA devices of this machine");
        Err(Error::usage(what, "choose a device from cuda:0 on, or cpu; CUDA_VISIBLE_DEVICES may hide some"))
    }

    /// Creates a queue of the device, for the rank of this index on its host.
    ///
    /// # Errors
    /// [`Error::Usage`] if this build or this machine lacks the device; the error of the device if it cannot be
    /// opened.
    pub fn queue(self, local_rank: usize) -> Result<Queue> {
        let in_turn = local_rank.checked_rem(self.count()?);
        let index = if let DeviceChoice::Cuda(Some(index)) = self { Some(index) } else { in_turn };
        index.map_or_else(|| Ok(Queue::host()), cuda)
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let index = text.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        match text {
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(None)),
            "auto" => Ok(DeviceChoice::Auto),
            _ if index.is_some() => Ok(DeviceChoice::Cuda(index)),
            _ => Err(Error::usage(format!("unknown device `{text}`"), "use cpu, cuda, cuda:N or auto")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(None) => f.write_str("cuda"),
            DeviceChoice::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            DeviceChoice::Auto => f.write_str("auto"),
        }
    }
}

/// Returns the number of CUDA devices.
#[cfg(feature = "cuda")]
fn count() -> Result<usize> {
    super::cuda::count()
}

#[cfg(not(feature = "cuda"))]
fn count() -> Result<usize> {
    Err(not_built())
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Queue> {
    super::cuda::Cuda::new(index)?.queue()
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Result<Queue> {
    Err(not_built())
}

#[cfg(not(feature = "cuda"))]
fn not_built() -> Error {
    Error::usage("this program was built without CUDA", "build it with --features cuda, or use cpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for text in ["cpu", "cuda", "cuda:0", "cuda:13", "auto"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "CPU"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("use cpu, cuda, cuda:N or auto"), "{error}");
        }
    }

    #[test]
    fn the_host_is_always_there() {
        assert!(DeviceChoice::default().queue(3).unwrap().is_host());
        #[cfg(not(feature = "cuda"))]
        {
            assert!(DeviceChoice::Auto.queue(0).unwrap().is_host());
            let error = DeviceChoice::Cuda(Some(0)).queue(0).unwrap_err().to_string();
            assert!(error.contains("built without CUDA"), "{error}");
        }
    }
}
