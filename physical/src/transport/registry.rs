//! The transports of this process by name: those that are built in, and those that programs add.

use super::backend::Backend;
use super::kind::TransportKind;
use crate::backends::built_in;
use crate::error::{Error, Result};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard};

/// Longest name of a transport, in bytes.
const LONGEST_NAME: usize = 32;

type Table = Vec<(TransportKind, Arc<dyn Backend>)>;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(|| RwLock::new(built_in()));

/// Adds a transport under a name, by which every option and command line of this process can choose it from now on.
/// Call it once, before the first world joins; `docs/write-your-own-transport.md` has an example.
///
/// # Errors
/// [`Error::Usage`] if the name is taken, or is not 1 to 32 lower-case letters, digits and hyphens.
///
/// ```
/// use hexagram_physical::Result;
/// use hexagram_physical::transport::{Backend, Prepared, Site, TransportKind, register};
///
/// struct Nowhere;
/// impl Backend for Nowhere {
///     fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
///         Err(hexagram_physical::Error::usage("it leads nowhere", "choose another transport"))
///     }
/// }
/// let kind = register("nowhere", Nowhere)?;
/// assert_eq!("nowhere".parse::<TransportKind>()?, kind);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
pub fn register(name: &'static str, backend: impl Backend + 'static) -> Result<TransportKind> {
    let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(is_fit) {
        let what = format!("`{name}` cannot be the name of a transport");
        return Err(Error::usage(what, "use 1 to 32 lower-case letters, digits and hyphens"));
    }
    let kind = TransportKind::new(name);
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if table.iter().any(|(other, _)| *other == kind) {
        return Err(Error::usage(
            format!("there is a transport `{name}` already"),
            "register it once, or choose another name",
        ));
    }
    table.push((kind, Arc::new(backend)));
    Ok(kind)
}

fn table() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns every transport that there is.
pub(super) fn kinds() -> Vec<TransportKind> {
    table().iter().map(|(kind, _)| *kind).collect()
}

/// Returns the backend of that name, if there is one.
pub(crate) fn find(name: &str) -> Option<Arc<dyn Backend>> {
    table().iter().find(|(kind, _)| kind.name() == name).map(|(_, backend)| Arc::clone(backend))
}

/// Returns the backend of a transport.
///
/// # Errors
/// [`Error::Usage`] if this build has none.
pub(crate) fn backend(kind: TransportKind) -> Result<Arc<dyn Backend>> {
    find(kind.name()).ok_or_else(|| {
        // Parsing has the words for a name that is missing.
        kind.name().parse::<TransportKind>().err().unwrap_or_else(|| no_backend(kind))
    })
}

fn no_backend(kind: TransportKind) -> Error {
    Error::usage(format!("there is no transport `{kind}`"), "register it before a world joins")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Prepared, Site};

    struct Nothing;

    impl Backend for Nothing {
        fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
            Err(Error::usage("nothing", "nothing"))
        }
    }

    #[test]
    fn a_name_is_taken_once_and_has_to_be_a_word() {
        let kind = register("nothing-1", Nothing).unwrap();
        assert_eq!("nothing-1".parse::<TransportKind>().unwrap(), kind);
        assert!(TransportKind::known().contains(&kind));
        for name in ["nothing-1", "shm", "", "Upper", "with space", "a-name-that-is-longer-than-any-may-be"] {
            assert!(register(name, Nothing).is_err(), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_lists_those_there_are() {
        let error = "carrier-pigeon".parse::<TransportKind>().unwrap_err().to_string();
        assert!(
            error.contains("carrier-pigeon") && error.contains("mixed") && error.contains("tcp"),
            "{error}"
        );
    }
}
