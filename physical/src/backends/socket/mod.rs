//! A TCP connection between two ranks: plain, or inside TLS if the job uses it.
//!
//! TLS needs the feature `tls`, and three files on every rank. Both sides present a certificate that the job's
//! authority has signed for the name `hexagram`; the proof of the job's secret then runs inside.

#[cfg(feature = "tls")]
mod tls;

use crate::error::{Error, Result};
use crate::system::environment::variable_os;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
#[cfg(feature = "tls")]
pub(crate) use tls::Tls;

/// Files in PEM format that a rank needs for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of this rank for the name `hexagram`, followed by any between it and the authority's.
    pub certificate: PathBuf,
    /// Private key of the certificate, readable by this user only.
    pub key: PathBuf,
    /// Certificates of the authorities that sign for this job.
    pub authority: PathBuf,
}

impl TlsFiles {
    /// Environment variables of the three files.
    const NAMES: [&'static str; 3] = ["HEXAGRAM_TLS_CERT", "HEXAGRAM_TLS_KEY", "HEXAGRAM_TLS_CA"];

    /// Reads the paths from HEXAGRAM_TLS_CERT, HEXAGRAM_TLS_KEY and HEXAGRAM_TLS_CA. Returns `None` if none is set.
    ///
    /// # Errors
    /// [`Error::Setup`] if only some are set.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_values(Self::NAMES.map(|name| variable_os(name).map(PathBuf::from)))
    }

    /// Builds the files from the values of the three variables.
    fn from_values(values: [Option<PathBuf>; 3]) -> Result<Option<Self>> {
        let absent =
            Self::NAMES.iter().zip(&values).find(|(_, value)| value.is_none()).map(|(name, _)| *name);
        match (values, absent) {
            ([Some(certificate), Some(key), Some(authority)], _) => {
                Ok(Some(TlsFiles { certificate, key, authority }))
            }
            ([None, None, None], _) => Ok(None),
            (_, absent) => {
                let what = format!("{} are not all set", Self::NAMES.join(", "));
                Err(Error::setup(what, format!("set {} as well, or none", absent.unwrap_or_default())))
            }
        }
    }
}

/// Replaces TLS in a build without it.
#[cfg(not(feature = "tls"))]
#[derive(Debug, Clone)]
pub(crate) enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Fails, since this build has no TLS.
    pub(crate) fn load(_: &TlsFiles) -> Result<Self> {
        Err(Error::setup(
            "this build cannot speak TLS",
            "build it with the feature `tls`, or unset the certificates",
        ))
    }

    fn accept(&self, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }

    fn call(&self, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}

/// Connection to another rank: a plain TCP socket, or inside TLS.
pub(crate) trait Socket: Read + Write + AsFd + Send {
    /// Returns the TCP socket.
    fn tcp(&self) -> &TcpStream;

    /// Returns the number of bytes that must be written next, although no write has counted them.
    fn committed(&self) -> usize;

    /// Returns true if reads and writes transfer as many bytes as the socket buffers hold. With TLS, a call may
    /// transfer fewer.
    fn is_plain(&self) -> bool;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }

    fn committed(&self) -> usize {
        0
    }

    fn is_plain(&self) -> bool {
        true
    }
}

/// Wraps a connection that this rank has accepted in TLS, if that is given.
pub(crate) fn accepted(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Box<dyn Socket>> {
    match tls {
        Some(tls) => Ok(Box::new(tls.accept(stream)?)),
        None => Ok(Box::new(stream)),
    }
}

/// Wraps a connection that this rank has opened in TLS, if that is given.
pub(crate) fn called(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Box<dyn Socket>> {
    match tls {
        Some(tls) => Ok(Box::new(tls.call(stream)?)),
        None => Ok(Box::new(stream)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_files_or_none() {
        let path = |name: &str| Some(PathBuf::from(name));
        assert_eq!(TlsFiles::from_values([None, None, None]).unwrap(), None);
        let files = TlsFiles::from_values([path("a"), path("b"), path("c")]).unwrap().unwrap();
        assert_eq!((files.certificate, files.key, files.authority), ("a".into(), "b".into(), "c".into()));
        let error = TlsFiles::from_values([path("a"), None, path("c")]).unwrap_err().to_string();
        assert!(error.contains("set HEXAGRAM_TLS_KEY as well"), "{error}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_says_so() {
        let files = TlsFiles { certificate: "a".into(), key: "b".into(), authority: "c".into() };
        assert!(Tls::load(&files).unwrap_err().to_string().contains("feature `tls`"));
    }
}
