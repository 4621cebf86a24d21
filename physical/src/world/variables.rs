//! The variables of this library: who sets each, and its valid values.
//!
//! [`check_environment`] refuses invalid values, for any transport, and whether or not this rank would use them, and
//! warns of names that are similar to one of these. docs/starting.md has the same table, which a test compares.

use super::options::parse_sockets;
use crate::bootstrap::meeting::attendance_file;
use crate::bootstrap::parent::STARTERS;
use crate::bootstrap::private_file::read_given;
use crate::bootstrap::{Placement, host_and_port, parse_number};
use crate::control::health::HeartbeatOptions;
use crate::device_paths::device_path::PathPreference;
use crate::elastic::link::MEMBERSHIP;
use crate::error::{Error, Result};
use crate::system::environment::variable;
use crate::transport::TransportKind;
use crate::transport::native::Check;
use crate::waiting::deadline;
use std::sync::Once;
use tracing::level_filters::LevelFilter;

/// Variable with the log level of a program.
const LOG: &str = "HEXAGRAM_LOG";
/// Variable with the number of restarts of this job.
pub const RESTART: &str = "HEXAGRAM_RESTART";
/// Variables of other launchers with the same meaning.
const RESTARTS_BY_OTHERS: [&str; 2] = ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"];
/// Beginnings of the names that the tests and the example programs of this repository use.
const OF_TESTS: [&str; 3] = ["HEXAGRAM_TEST", "HEXAGRAM_FAKE_", "HEXAGRAM_EXAMPLE_"];
/// Maximum number of letters in which a misspelt name differs from the intended one.
const MISSPELT: usize = 3;

/// A variable of this library.
struct KnownVariable {
    name: &'static str,
    /// Values that users may set, as in the documentation. Empty if only launchers set it.
    values: &'static str,
    /// Fails if a value is invalid. Facts about this host, such as whether a file exists, are checked later.
    check: fn(&str, &str) -> Result<()>,
}

/// Returns a variable with values that `check` judges.
const fn judged(
    name: &'static str,
    values: &'static str,
    check: fn(&str, &str) -> Result<()>,
) -> KnownVariable {
    KnownVariable { name, values, check }
}

/// Returns a variable with values that only this host can judge.
const fn free(name: &'static str, values: &'static str) -> KnownVariable {
    judged(name, values, |_, _| Ok(()))
}

/// Returns a variable that launchers set for the ranks.
const fn internal(name: &'static str) -> KnownVariable {
    free(name, "")
}

/// All variables, in the order of the documentation.
const KNOWN: [KnownVariable; 24] = [
    judged("HEXAGRAM_RANK", "a whole number", is_number),
    judged("HEXAGRAM_SIZE", "a whole number", is_number),
    judged("HEXAGRAM_LOCAL_RANK", "a whole number", is_number),
    judged("HEXAGRAM_LOCAL_SIZE", "a whole number", is_number),
    judged("HEXAGRAM_ADDR", "`host:port`", |name, text| host_and_port(name, text).map(drop)),
    judged("HEXAGRAM_SECRET_FILE", "a file", is_secret),
    free("HEXAGRAM_INTERFACE", "an interface or an address"),
    free("HEXAGRAM_HOST", "any name"),
    judged("HEXAGRAM_TCP_SOCKETS", "1 to 16", |_, text| parse_sockets(text).map(drop)),
    judged("HEXAGRAM_SILENCE", "1 to 86400", |_, text| HeartbeatOptions::from_seconds(text).map(drop)),
    judged("HEXAGRAM_DEADLINE", "1 to 86400", |_, text| deadline::from_seconds(text).map(drop)),
    judged(RESTART, "a whole number", is_number),
    judged("HEXAGRAM_CHECK", "`first-use`, `full`", |_, text| Check::parse(text).map(drop)),
    judged("HEXAGRAM_DEVICE_PATH", "`auto`, `staging`, `ipc`, `nccl`", |_, text| {
        PathPreference::parse(text).map(drop)
    }),
    judged("HEXAGRAM_TRANSPORT", "`mixed`, `shm`, `tcp`, `mpi`", is_transport),
    free("HEXAGRAM_AS", "a PyTorch backend"),
    judged(LOG, "`off`, `error`, `warn`, `info`, `debug`, `trace`", |_, text| parse_level(text).map(drop)),
    free("HEXAGRAM_TLS_CERT", "a file"),
    free("HEXAGRAM_TLS_KEY", "a file"),
    free("HEXAGRAM_TLS_CA", "a file"),
    internal("HEXAGRAM_LISTEN_FD"),
    internal(attendance_file::VARIABLE),
    internal(MEMBERSHIP),
    internal(STARTERS),
];

/// Fails if a variable of this library has an invalid value. Ranks and launchers call it before they wait for other
/// ranks; a program may do so at its start.
///
/// # Errors
/// [`Error::Setup`], which names the variable, its value, and the values that it may have.
pub fn check_environment() -> Result<()> {
    check(&|name| variable(name))
}

fn check(get: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    KNOWN.iter().try_for_each(|known| get(known.name).map_or(Ok(()), |text| (known.check)(known.name, &text)))
}

/// Returns how many times the launcher has restarted this job: `hexagram run --max-restarts`, torchrun or Slurm. A program
/// that saves checkpoints resumes from the newest one if this is above 0.
///
/// # Errors
/// [`Error::Setup`] if a variable is not a whole number.
pub fn restarts() -> Result<usize> {
    let given =
        [RESTART].into_iter().chain(RESTARTS_BY_OTHERS).find_map(|name| Some((name, variable(name)?)));
    given.map_or(Ok(0), |(name, text)| parse_number(name, &text))
}

/// Returns the log level of a program: that of `HEXAGRAM_LOG`, or warnings and errors.
///
/// # Errors
/// [`Error::Setup`] if that is invalid.
pub fn log_level() -> Result<LevelFilter> {
    variable(LOG).map_or(Ok(LevelFilter::WARN), |text| parse_level(&text))
}

fn parse_level(text: &str) -> Result<LevelFilter> {
    text.trim().parse().map_err(|_| {
        let what = format!("{LOG}={text} is not a log level");
        Error::setup(what, "use off, error, warn, info, debug or trace, or unset it")
    })
}

/// Refuses a file that holds no secret. A descriptor is that of a launcher around this process, and may be closed here.
fn is_secret(_: &str, path: &str) -> Result<()> {
    if path.starts_with("/proc/self/fd/") {
        return Ok(());
    }
    read_given(path).map(drop)
}

fn is_number(name: &str, text: &str) -> Result<()> {
    parse_number(name, text).map(drop)
}

fn is_transport(name: &str, text: &str) -> Result<()> {
    text.trim().parse::<TransportKind>().map(drop).map_err(|error| match error {
        Error::Usage { what, remedy } => Error::setup(format!("{name}={text} is refused: {what}"), remedy),
        other => other,
    })
}

/// Warns of environment variables that look like this library's but are not, once per process. In a job, its launcher
/// warns, or the first rank of each host.
pub fn warn_of_unknown(placement: Option<&Placement>) {
    static WARNED: Once = Once::new();
    let is_told_by_another = placement.is_some_and(|placement| placement.local_rank > 0);
    // A launcher of this library started this process, and has warned of the variables that it passes on.
    if is_told_by_another || variable(STARTERS).is_some() {
        return;
    }
    WARNED.call_once(|| {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        names.filter_map(|name| unknown(&name)).for_each(|warning| tracing::warn!("{warning}"));
    });
}

/// Returns the warning of a name that looks like this library's and is not.
fn unknown(name: &str) -> Option<String> {
    let is_known = KNOWN.iter().any(|known| known.name == name);
    let is_of_a_test = OF_TESTS.iter().any(|start| name.starts_with(start));
    if !name.starts_with("HEXAGRAM_") || is_known || is_of_a_test {
        return None;
    }
    let users = KNOWN.iter().filter(|known| !known.values.is_empty());
    let nearest = users.map(|known| (distance(name, known.name), known.name)).min();
    let hint = match nearest {
        Some((letters, nearest)) if letters <= MISSPELT => format!("did you mean {nearest}?"),
        _ => "see docs/starting.md for the variables".to_owned(),
    };
    Some(format!("{name} is set, but is not a variable of hexagram and has no effect: {hint}"))
}

/// Returns the number of letters to insert, leave out or replace to make one name the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut diagonal = at;
        row[0] = at + 1;
        for (column, other) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sources;
    use std::fs;
    use std::path::Path;

    fn refused(name: &str, value: &str) -> Option<String> {
        check(&|asked| (asked == name).then(|| value.to_owned())).err().map(|error| error.to_string())
    }

    #[test]
    fn a_value_outside_the_documented_set_is_refused_with_its_name() {
        for (name, value) in [
            ("HEXAGRAM_RANK", "-1"),
            ("HEXAGRAM_SIZE", "two"),
            ("HEXAGRAM_ADDR", "nowhere"),
            ("HEXAGRAM_TCP_SOCKETS", "17"),
            ("HEXAGRAM_TCP_SOCKETS", "many"),
            ("HEXAGRAM_SILENCE", "0.5"),
            ("HEXAGRAM_CHECK", "foo"),
            ("HEXAGRAM_DEVICE_PATH", "rdma"),
            ("HEXAGRAM_TRANSPORT", "pigeon"),
            ("HEXAGRAM_LOG", "loud"),
        ] {
            let error = refused(name, value).unwrap();
            assert!(error.contains(&format!("{name}={value} ")), "{error}");
        }
        for (name, value) in
            [("HEXAGRAM_CHECK", "full"), ("HEXAGRAM_LOG", " Debug "), ("HEXAGRAM_SILENCE", " 60 ")]
        {
            assert_eq!(refused(name, value), None);
        }
    }

    #[test]
    fn a_misspelt_name_is_warned_of_with_the_nearest_one() {
        for (name, meant) in [
            ("HEXAGRAM_SILENSE", "HEXAGRAM_SILENCE?"),
            ("HEXAGRAM_TCP_SOCKET", "HEXAGRAM_TCP_SOCKETS?"),
            ("HEXAGRAM_INTERFCE", "HEXAGRAM_INTERFACE?"),
            ("HEXAGRAM_TRASPORT", "HEXAGRAM_TRANSPORT?"),
            ("HEXAGRAM_COLOUR", "docs/starting.md"),
        ] {
            let warning = unknown(name).unwrap();
            assert!(warning.contains(name) && warning.contains(meant), "{warning}");
        }
        for name in ["HEXAGRAM_LISTEN_FD", "HEXAGRAM_TEST_DEVICE", "HEXAGRAM_FAKE_CUDA", "PATH"] {
            assert_eq!(unknown(name), None);
        }
    }

    #[test]
    fn the_documentation_has_the_same_table() {
        let Some(root) = sources(env!("CARGO_MANIFEST_DIR")) else { return };
        let page = fs::read_to_string(root.join("../docs/starting.md")).unwrap();
        let documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `HEXAGRAM_")).collect();
        let users: Vec<_> = KNOWN.iter().filter(|known| !known.values.is_empty()).collect();
        assert_eq!(documented.len(), users.len(), "{documented:#?}");
        for (row, KnownVariable { name, values, .. }) in documented.iter().zip(users) {
            assert!(row.starts_with(&format!("| `{name}` | {values}")), "{name} | {values}: {row}");
        }
        for known in KNOWN {
            assert!(page.contains(&format!("`{}`", known.name)), "{}", known.name);
        }
    }

    #[test]
    fn every_name_in_the_sources_is_known() {
        let Some(root) = sources(env!("CARGO_MANIFEST_DIR")).map(|folder| folder.join("..")) else { return };
        let crates =
            ["physical", "logical", "algorithms", "sampler", "cli", "adapters", "examples", "python", "src"];
        let mut folders: Vec<_> = crates.iter().map(|name| root.join(name)).collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("target") {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    names_are_known(&path);
                }
            }
        }
    }

    /// Fails for a string in a file that is the name of an unknown variable.
    fn names_are_known(path: &Path) {
        let text = fs::read_to_string(path).unwrap();
        for name in text.split('"').filter(|part| part.starts_with("HEXAGRAM_")) {
            let is_name =
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') && !name.ends_with('_');
            assert!(
                !is_name || path.ends_with("world/variables.rs") || unknown(name).is_none(),
                "{name}: {}",
                path.display()
            );
        }
    }
}
