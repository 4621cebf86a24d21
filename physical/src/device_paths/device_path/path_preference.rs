//! The user's preference among paths: `HEXAGRAM_DEVICE_PATH`.

use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::system::environment::variable;
use crate::transport::TransportKind;

/// The variable.
const VARIABLE: &str = "HEXAGRAM_DEVICE_PATH";

/// Preferred path of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PathPreference {
    /// The best path that all ranks support.
    #[default]
    Auto,
    /// Staging through host memory.
    Staging,
    /// The path with this name; an error if the ranks cannot use it.
    Only(TransportKind),
}

impl PathPreference {
    /// Preferences by their codes in messages.
    const ALL: [PathPreference; 4] = [
        PathPreference::Auto,
        PathPreference::Staging,
        PathPreference::Only(TransportKind::Ipc),
        PathPreference::Only(TransportKind::Nccl),
    ];

    /// Returns the preference in the environment.
    ///
    /// # Errors
    /// [`Error::Setup`] if the value of the variable is invalid.
    #[cfg(feature = "cuda")]
    pub(crate) fn from_env() -> Result<Self> {
        variable(VARIABLE).map_or_else(|| Ok(Self::default()), |text| Self::parse(&text))
    }

    /// Decodes the value of the variable.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|wish| wish.name() == text.trim());
        found.ok_or_else(|| {
            let what = format!("{VARIABLE}={text} is not a path for device memory");
            Error::setup(what, "use auto, staging, ipc or nccl, or unset it")
        })
    }

    /// Returns the preference as the variable spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PathPreference::Auto => "auto",
            PathPreference::Staging => "staging",
            PathPreference::Only(path) => path.name(),
        }
    }
}

#[cfg(any(test, feature = "cuda"))]
impl PathPreference {
    /// Returns the code of the preference in messages to other ranks.
    pub(super) fn code(self) -> u8 {
        Self::ALL.iter().position(|wish| *wish == self).unwrap_or_default() as u8
    }

    /// Returns the preference with a code; `None` for an unknown code.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns the setting as text, `NAME=value`.
    pub(super) fn setting(self) -> String {
        format!("{VARIABLE}={}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wish_has_a_name_and_a_code() {
        for wish in PathPreference::ALL {
            assert_eq!(PathPreference::parse(&format!(" {}", wish.name())).unwrap(), wish);
            assert_eq!(PathPreference::from_code(wish.code()), Some(wish));
        }
        assert_eq!(PathPreference::from_code(4), None);
        let error = PathPreference::parse("rdma").unwrap_err().to_string();
        assert!(error.contains("HEXAGRAM_DEVICE_PATH=rdma") && error.contains("auto, staging"), "{error}");
    }
}
