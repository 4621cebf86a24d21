//! Environment variables of this process, as this library reads them: an empty variable counts as unset.

use std::ffi::OsString;

/// Returns the value of an environment variable. An empty or blank one counts as not set.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the value of an environment variable that need not be text, such as a path. An empty or blank one counts as
/// not set.
pub fn variable_os(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.to_string_lossy().trim().is_empty())
}
