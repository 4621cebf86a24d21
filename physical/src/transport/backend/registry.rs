//! The transports of this process by name: those that are built in, and those that programs add.

use super::Backend;
use super::kind::TransportKind;
use crate::error::{Error, Result};
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Longest name of a transport, in bytes.
const LONGEST_NAME: usize = 32;

type TransportTable = Vec<(TransportKind, Arc<dyn Backend>)>;

/// Transports that programs have added.
static REGISTERED: RwLock<TransportTable> = RwLock::new(Vec::new());

/// Registers a transport under a name, by which all options and command lines of this process can choose it from now
/// on. Call it once, before the first world joins; `docs/write-your-own-transport.md` has an example.
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
        let what = format!("`{name}` is not a valid name of a transport");
        return Err(Error::usage(what, "use 1 to 32 lower-case letters, digits and hyphens"));
    }
    let kind = TransportKind::new(name);
    let mut table = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if TransportKind::BUILT_IN.contains(&kind) || table.iter().any(|(other, _)| *other == kind) {
        return Err(Error::usage(
            format!("the transport `{name}` exists already"),
            "register it once, or choose a different name",
        ));
    }
    table.push((kind, Arc::new(backend)));
    Ok(kind)
}

fn table() -> RwLockReadGuard<'static, TransportTable> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the backend of a transport that a program has added.
///
/// # Errors
/// [`Error::Usage`] if none has that name.
pub(crate) fn registered(kind: TransportKind) -> Result<Arc<dyn Backend>> {
    let found = table().iter().find(|(other, _)| *other == kind).map(|(_, backend)| Arc::clone(backend));
    found.ok_or_else(|| {
        // Parsing returns the error for an unknown name.
        kind.name().parse::<TransportKind>().err().unwrap_or_else(|| no_backend(kind))
    })
}

fn no_backend(kind: TransportKind) -> Error {
    Error::usage(format!("unknown transport `{kind}`"), "register it before a world joins")
}

impl TransportKind {
    /// Returns every transport of this process: the built-in ones, then the registered ones in their order.
    pub fn known() -> Vec<TransportKind> {
        Self::BUILT_IN.iter().copied().chain(table().iter().map(|(kind, _)| *kind)).collect()
    }
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::known();
        if let Some(kind) = known.iter().find(|kind| kind.name() == name) {
            return Ok(*kind);
        }
        if name == TransportKind::Mpi.name() {
            let what = "this build does not contain the transport `mpi`";
            return Err(Error::usage(
                what,
                "build it with --features mpi, which needs mpicc and libclang; for Python: pip install ./python -C build-args=--features=mpi",
            ));
        }
        if [TransportKind::Ipc, TransportKind::Nccl].iter().any(|path| path.name() == name) {
            let what = format!("`{name}` is not a transport, but a path for GPU memory");
            let remedy = format!("keep the default transport, and set HEXAGRAM_DEVICE_PATH={name}");
            return Err(Error::usage(what, remedy));
        }
        let mut names: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        Err(Error::usage(format!("unknown transport `{name}`"), format!("use one of {}", names.join(", "))))
    }
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

    #[test]
    fn a_path_of_devices_is_no_transport() {
        for name in ["ipc", "nccl"] {
            let error = name.parse::<TransportKind>().unwrap_err().to_string();
            assert!(error.contains("is not a transport"), "{error}");
            assert!(error.ends_with(&format!("set HEXAGRAM_DEVICE_PATH={name}")), "{error}");
        }
    }
}
