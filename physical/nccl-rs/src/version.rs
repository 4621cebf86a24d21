//! Versions of NCCL.

use std::ffi::c_int;
use std::fmt;

/// Version of NCCL, ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub(crate) c_int);

impl Version {
    /// Oldest version that this crate accepts. In all older versions, the thread that aborts a non-blocking communicator reads
    /// the stack of another thread, which may have ended. Versions up to 2.22 wait for the other ranks in `ncclGroupEnd`.
    /// Versions up to 2.23 may make a GPU access memory of a context on a different GPU without permission.
    pub const OLDEST: Self = Version(22703);

    /// Returns the version as NCCL numbers it: 10,000 × major + 100 × minor + patch.
    pub fn number(self) -> u32 {
        self.0.unsigned_abs()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        write!(f, "{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_spelt_and_ordered() {
        assert_eq!(Version::OLDEST.to_string(), "2.27.3");
        assert_eq!(Version(22803).to_string(), "2.28.3");
        assert!(Version(23003) > Version(22907) && Version(22606) < Version::OLDEST);
    }
}
