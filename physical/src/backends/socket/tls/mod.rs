//! TLS 1.3 over a socket, blocking or not, driven by the thread that reads and writes.

#[cfg(test)]
mod tests;

use super::{Socket, TlsFiles};
use crate::bootstrap::private_file::private_file;
use crate::error::{Error, Result};
use crate::system::input;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection, version::TLS13,
};
use std::fmt::Display;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// Name in all certificates of a job.
const NAME: &str = "hexagram";
/// Maximum number of bytes that are encrypted before the socket has taken the previous ones.
const PIECE: usize = 64 * 1024;
/// Maximum number of bytes of a file of certificates or keys: those of all public authorities together have a few hundred KiB.
const LONGEST: u64 = 16 << 20;

/// Certificate that this rank presents, and authorities that it trusts.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Reads a file. `what` is its kind.
fn read(what: &str, path: &Path) -> Result<Vec<u8>> {
    input::read(path, LONGEST).map_err(|cause| {
        Error::system(format!("read the {what} {}", path.display()), cause, "correct its path")
    })
}

/// Builds the error for a file that cannot be used.
fn unusable(what: &str, path: &Path, cause: impl Display, remedy: &str) -> Error {
    Error::setup(format!("the {what} {} cannot be used: {cause}", path.display()), remedy)
}

/// Reads the certificates of a file, at least one.
fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(what, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let refused = |cause: &str| unusable(what, path, cause, "use a file with BEGIN CERTIFICATE in it");
    match found {
        Ok(found) if found.is_empty() => Err(refused("it holds none")),
        outcome => outcome.map_err(|cause| refused(&cause.to_string())),
    }
}

impl Tls {
    /// Loads the files and checks that other ranks would accept this one.
    pub(crate) fn load(files: &TlsFiles) -> Result<Self> {
        let TlsFiles { certificate, key, authority } = files;
        let chain = certificates("certificate", certificate)?;
        let private = PrivateKeyDer::from_pem_slice(&read("private key", key)?).map_err(|cause| {
            unusable("private key", key, cause, "use a file with BEGIN PRIVATE KEY in it")
        })?;
        private_file(key)?;
        let mut roots = RootCertStore::empty();
        for root in certificates("authority's certificate", authority)? {
            let refused =
                |cause| unusable("certificate of the authority", authority, cause, "create a new one");
            roots.add(root).map_err(refused)?;
        }
        let roots = Arc::new(roots);
        let refused = |cause: String| {
            let remedy = "sign one with the authority, for this key and the name `hexagram`";
            unusable("certificate", certificate, cause, remedy)
        };
        believe(&chain, &roots).map_err(refused)?;
        Self::configure(chain, private, roots).map_err(|cause| refused(cause.to_string()))
    }

    /// Builds the configurations of both sides.
    fn configure(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let provider = || Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider()).build()?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        // No session is resumed.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        client.resumption = Resumption::disabled();
        Ok(Tls { server: Arc::new(server), client: Arc::new(client) })
    }

    /// Starts TLS on a connection that this rank has accepted.
    pub(super) fn accept(&self, stream: TcpStream) -> io::Result<TlsSession> {
        let connection = ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        Ok(TlsSession::open(connection.into(), stream))
    }

    /// Starts TLS on a connection that this rank has opened.
    pub(super) fn call(&self, stream: TcpStream) -> io::Result<TlsSession> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        Ok(TlsSession::open(connection.into(), stream))
    }
}

/// Verifies the certificate against these authorities.
fn believe(chain: &[CertificateDer<'_>], roots: &Arc<RootCertStore>) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider).build();
    let verifier = verifier.map_err(|cause| cause.to_string())?;
    let name = ServerName::try_from(NAME).map_err(|cause| cause.to_string())?;
    let (own, between) = chain.split_first().ok_or("it is empty")?;
    let verdict = verifier.verify_server_cert(own, between, &name, &[], UnixTime::now());
    verdict.map(drop).map_err(|cause| cause.to_string())
}

/// One TLS connection.
///
/// A write returns a number of bytes once the socket has taken all records made of them, so that the data reaches the
/// peer even if this side is no longer driven. While the socket has taken only a part, writes return `WouldBlock`,
/// and must be repeated with the same bytes first: those are *committed*, and never encrypted twice.
pub(crate) struct TlsSession {
    connection: Connection,
    stream: TcpStream,
    committed: usize,
}

impl TlsSession {
    /// Creates the session.
    fn open(mut connection: Connection, stream: TcpStream) -> Self {
        // PIECE is the bound.
        connection.set_buffer_limit(None);
        TlsSession { connection, stream, committed: 0 }
    }

    /// Hands records to the socket. Returns `WouldBlock` if it does not take all.
    fn push(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Hands records to the socket as [`TlsSession::push`] does. Returns false if the socket is full.
    fn try_push(&mut self) -> io::Result<bool> {
        match self.push() {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns true if the socket could take no more bytes.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Builds the error of a failed handshake.
fn refused(error: &rustls::Error) -> io::Error {
    let what = match error {
        rustls::Error::InvalidMessage(_) => {
            "the other side does not speak TLS: set HEXAGRAM_TLS_* on all ranks, or on none".to_owned()
        }
        error => {
            format!("the TLS handshake failed ({error}): use the same HEXAGRAM_TLS_* on all ranks")
        }
    };
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

impl Read for TlsSession {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.try_push()?;
            match self.connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            match self.connection.read_tls(&mut self.stream) {
                Ok(0) if self.connection.is_handshaking() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
            if let Err(error) = self.connection.process_new_packets() {
                // Reports the reason to the other side, if the connection still works.
                let _ = self.push();
                return Err(refused(&error));
            }
        }
    }
}

impl Write for TlsSession {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push()?;
        if self.committed > 0 {
            return Ok(std::mem::take(&mut self.committed));
        }
        let mut piece = 0;
        for part in parts {
            let part = &part[..part.len().min(PIECE - piece)];
            self.connection.writer().write_all(part)?;
            piece += part.len();
        }
        if self.try_push()? {
            return Ok(piece);
        }
        self.committed = piece;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

impl AsFd for TlsSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Socket for TlsSession {
    fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the number of bytes that are encrypted, but not counted.
    fn committed(&self) -> usize {
        self.committed
    }

    fn is_plain(&self) -> bool {
        false
    }
}

impl Drop for TlsSession {
    fn drop(&mut self) {
        // So that the peer can distinguish an end from a lost connection.
        self.connection.send_close_notify();
        let _ = self.push();
    }
}
