//! A TCP connection between two ranks: plain, or inside TLS where the job asks for it.
//!
//! TLS needs the feature `tls`, and three files on every rank. Both sides present a certificate that the job's
//! authority has signed for the name `hexagram`; the proof of the job's secret then runs inside.

#[cfg(feature = "tls")]
mod tls;

use crate::environment::variable_os;
use crate::error::{Error, Result};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
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

/// Stands for TLS in a build without it.
#[cfg(not(feature = "tls"))]
#[derive(Debug, Clone)]
pub(crate) enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Fails, since this build has no TLS.
    pub(crate) fn load(_: &TlsFiles) -> Result<Self> {
        Err(Error::setup(
            "this build cannot speak TLS",
            "build it with the feature `tls`, or name no certificates",
        ))
    }

    fn accept(&self, _: TcpStream) -> io::Result<Socket> {
        match *self {}
    }

    fn call(&self, _: TcpStream) -> io::Result<Socket> {
        match *self {}
    }
}

/// Connection to another rank.
pub(crate) enum Socket {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tls::Session>),
}

macro_rules! either {
    ($socket:expr, $inner:ident => $call:expr) => {
        match $socket {
            Socket::Plain($inner) => $call,
            #[cfg(feature = "tls")]
            Socket::Tls($inner) => $call,
        }
    };
}

impl Socket {
    /// Wraps a connection that this rank has accepted.
    pub(crate) fn accepted(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        match tls {
            Some(tls) => tls.accept(stream),
            None => Ok(Socket::Plain(stream)),
        }
    }

    /// Wraps a connection that this rank has opened.
    pub(crate) fn called(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        match tls {
            Some(tls) => tls.call(stream),
            None => Ok(Socket::Plain(stream)),
        }
    }

    /// Returns the TCP socket.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Socket::Tls(session) => session.tcp(),
        }
    }

    /// Returns the number of bytes that have to be written next although no write has counted them.
    pub(crate) fn committed(&self) -> usize {
        match self {
            Socket::Plain(_) => 0,
            #[cfg(feature = "tls")]
            Socket::Tls(session) => session.committed(),
        }
    }

    /// Returns true if the socket takes and gives as many bytes at once as its buffers hold. Inside TLS fewer may pass
    /// although more could.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Socket::Plain(_))
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.read(into))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, stream => stream.flush())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
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
