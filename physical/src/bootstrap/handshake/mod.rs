//! The handshake between two processes: both prove that they have a key, and neither sends it.
//!
//! ```text
//! caller → callee   greeting         greeting = MAGIC protocol:u32 version:16 challenge:32
//! callee → caller   greeting proof   proof:32 = HMAC-SHA-256(key, "callee" caller's greeting callee's greeting)
//! caller → callee   proof            proof:32 = HMAC-SHA-256(key, "caller" caller's greeting callee's greeting)
//! ```
//!
//! These bytes are the same in every version of the protocol, so that ranks of different builds can report each
//! other: the caller of a data connection, and both sides at the rendezvous, compare the builds once the other has proved
//! the key. At the rendezvous the key is the secret of the job. Data connections use a key that is derived from the secret
//! anew for each job.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the greeting and the proofs |
//! | `secret` | the secret: read from a file, or made by rank 0 |
//! | `acceptor`, `pending`, `poller` | the listening side: connections until their handshake is complete |
//! | `rejections` | warnings about connections that are refused |
//! | `message` | small messages after the handshake |
//! | `launchers` | the handshake between the launchers of a job |

pub(super) mod acceptor;
pub(crate) mod launchers;
pub(crate) mod message;
pub(super) mod pending;
pub(super) mod poller;
pub(super) mod rejections;
pub(crate) mod secret;

use crate::error::Error;
use hmac_sha256::HMAC;
use message::malformed;
use std::fmt;
use std::io::{self, Read, Write};

/// First bytes of every connection.
pub(super) const MAGIC: &[u8; 8] = b"hexagram";
/// Length of a greeting, in bytes.
pub(super) const GREETING: usize = 8 + 4 + VERSION + 32;
/// Length of a proof, in bytes.
pub(super) const PROOF: usize = 32;
/// Length of a version, in bytes.
const VERSION: usize = 16;
/// First byte of a TLS connection.
pub(super) const TLS_HELLO: u8 = 22;
/// TLS alert "unexpected message", for a peer that speaks TLS to a plain listener.
pub(super) const TLS_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// Version of the protocol that follows the handshake.
const PROTOCOL: u32 = 4;

/// Returns random bytes from the system.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that [`hex`] has written.
///
/// # Errors
/// `InvalidData` for other text.
pub fn from_hex(text: &str) -> io::Result<Vec<u8>> {
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some((char::from(*high).to_digit(16)? << 4 | char::from(*low).to_digit(16)?) as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` is not hexadecimal")))
}

impl Error {
    /// Creates the error for a system that provides no random bytes, with `cause`.
    pub fn no_random(cause: io::Error) -> Self {
        Error::system("draw random bytes", cause, "allow getrandom(2)")
    }
}

/// Key that the data connections of one job prove. Never printed.
#[derive(Clone, Copy)]
pub(crate) struct JobKey([u8; 32]);

impl JobKey {
    /// Derives the key of the job that drew the number `job` at its rendezvous.
    pub(super) fn derive(secret: &[u8], job: &[u8; 16]) -> Self {
        JobKey(mac(secret, &[b"data connections", job]).finalize())
    }

    /// Returns the bytes of the key.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Derives the bytes with which a transport proves its own connections.
    pub(crate) fn for_purpose(&self, purpose: &str) -> [u8; 32] {
        mac(&self.0, &[b"transport", purpose.as_bytes()]).finalize()
    }
}

/// Build of hexagram: protocol and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Build {
    /// Version of the protocol.
    protocol: u32,
    /// Version of the crate, padded with zeros.
    version: [u8; VERSION],
}

impl Build {
    /// Build of this process.
    pub(super) const MINE: Build = {
        let text = env!("CARGO_PKG_VERSION").as_bytes();
        let mut version = [0; VERSION];
        let mut at = 0;
        while at < VERSION && at < text.len() {
            version[at] = text[at];
            at += 1;
        }
        Build { protocol: PROTOCOL, version }
    };
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = String::from_utf8_lossy(&self.version);
        write!(f, "hexagram {} (protocol {})", version.trim_end_matches('\0').escape_debug(), self.protocol)
    }
}

/// First bytes of one side: magic, build and challenge.
#[derive(Debug, Clone, Copy)]
struct Greeting([u8; GREETING]);

impl Greeting {
    /// Creates a greeting with a fresh challenge.
    fn of(build: Build) -> io::Result<Self> {
        let parts = [MAGIC.as_slice(), &build.protocol.to_le_bytes(), &build.version, &random::<32>()?];
        parts.concat().try_into().map(Greeting).map_err(|_| malformed())
    }

    /// Decodes a greeting, and refuses one of a different protocol.
    fn parse(bytes: [u8; GREETING]) -> io::Result<Self> {
        if bytes.starts_with(MAGIC) { Ok(Greeting(bytes)) } else { Err(malformed()) }
    }

    /// Returns the build that the greeting states.
    fn build(&self) -> Build {
        let mut build = Build { protocol: 0, version: [0; VERSION] };
        if let Some((protocol, rest)) = self.0[MAGIC.len()..].split_first_chunk() {
            build.protocol = u32::from_le_bytes(*protocol);
            build.version.copy_from_slice(&rest[..VERSION]);
        }
        build
    }
}

/// Returns the HMAC of `parts` under `key`, not yet finished.
fn mac(key: &[u8], parts: &[&[u8]]) -> HMAC {
    let mut mac = HMAC::new(key);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Greetings of both sides.
struct Greetings {
    /// Greeting of the side that connected.
    caller: Greeting,
    /// Greeting of the side that accepted.
    callee: Greeting,
}

impl Greetings {
    /// Returns the HMAC of both greetings for one `side`, not yet finished.
    fn mac(&self, key: &[u8], side: &str) -> HMAC {
        mac(key, &[side.as_bytes(), &self.caller.0, &self.callee.0])
    }

    /// Returns the proof of one `side`.
    fn prove(&self, key: &[u8], side: &str) -> [u8; PROOF] {
        self.mac(key, side).finalize()
    }

    /// Checks the proof of the other `side`, in a time that does not depend on the bytes.
    fn verify(&self, key: &[u8], side: &str, proof: &[u8]) -> io::Result<()> {
        if proof.try_into().is_ok_and(|proof| self.mac(key, side).finalize_verify(proof)) {
            return Ok(());
        }
        let what = "the secrets of the job differ: set the same HEXAGRAM_SECRET_FILE on all ranks";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    }
}

/// Performs the caller's side on a blocking stream, and sends `payload` with the proof. Returns the callee's build.
///
/// # Errors
/// `PermissionDenied` if the callee proves a different key, or speaks TLS; others of the stream.
pub(super) fn authenticate(
    stream: &mut (impl Read + Write),
    key: &[u8],
    payload: &[u8],
) -> io::Result<Build> {
    authenticate_as(Build::MINE, stream, key, payload)
}

/// Performs [`authenticate`] as the build `mine`.
pub(super) fn authenticate_as(
    mine: Build,
    stream: &mut (impl Read + Write),
    key: &[u8],
    payload: &[u8],
) -> io::Result<Build> {
    let caller = Greeting::of(mine)?;
    stream.write_all(&caller.0)?;
    let mut greeting = [0; GREETING];
    let mut proof = [0; PROOF];
    stream.read_exact(&mut greeting[..1])?;
    if greeting[0] == TLS_ALERT[0] {
        let what =
            "the other side speaks TLS: set HEXAGRAM_TLS_CERT, HEXAGRAM_TLS_KEY and HEXAGRAM_TLS_CA here too";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    stream.read_exact(&mut greeting[1..])?;
    let greetings = Greetings { caller, callee: Greeting::parse(greeting)? };
    stream.read_exact(&mut proof)?;
    if let Err(error) = greetings.verify(key, "callee", &proof) {
        // A wrong proof, with a message by which the callee can name this process in a warning.
        let _ = stream.write_all(&[[0; PROOF].as_slice(), payload].concat());
        return Err(error);
    }
    // In one write, so that a peer that has proved the key is known.
    stream.write_all(&[greetings.prove(key, "caller").as_slice(), payload].concat())?;
    Ok(greetings.callee.build())
}

/// Callee's side after the caller's greeting. Its owner reads and writes, as it must not block on an unauthenticated
/// connection.
pub(super) struct Responder(Greetings);

impl Responder {
    /// Creates the callee's side, and returns the bytes that answer `greeting`.
    pub(super) fn new(greeting: [u8; GREETING], key: &[u8]) -> io::Result<(Self, Vec<u8>)> {
        Self::as_build(Build::MINE, greeting, key)
    }

    /// Performs [`Responder::new`] as the build `mine`.
    fn as_build(mine: Build, greeting: [u8; GREETING], key: &[u8]) -> io::Result<(Self, Vec<u8>)> {
        let caller = Greeting::parse(greeting)?;
        let callee = Greeting::of(mine)?;
        let greetings = Greetings { caller, callee };
        let payload = [callee.0.as_slice(), &greetings.prove(key, "callee")].concat();
        Ok((Responder(greetings), payload))
    }

    /// Checks the caller's proof, and returns its build.
    pub(super) fn conclude(&self, key: &[u8], proof: &[u8]) -> io::Result<Build> {
        self.0.verify(key, "caller", proof)?;
        Ok(self.0.caller.build())
    }
}

/// Performs the callee's side on a blocking stream. Returns the caller's build.
///
/// # Errors
/// As [`authenticate`].
fn answer(stream: &mut (impl Read + Write), key: &[u8]) -> io::Result<Build> {
    answer_as(Build::MINE, stream, key)
}

/// Performs [`answer`] as the build `mine`.
pub(super) fn answer_as(mine: Build, stream: &mut (impl Read + Write), key: &[u8]) -> io::Result<Build> {
    let mut greeting = [0; GREETING];
    let mut proof = [0; PROOF];
    stream.read_exact(&mut greeting)?;
    let (responder, payload) = Responder::as_build(mine, greeting, key)?;
    stream.write_all(&payload)?;
    stream.read_exact(&mut proof)?;
    responder.conclude(key, &proof)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Returns a build that differs from this one in protocol and version.
    pub(crate) fn another_build() -> Build {
        let mut build = Build { protocol: 77, ..Build::MINE };
        build.version[..5].copy_from_slice(b"9.8.7");
        build
    }

    /// Returns a greeting of this protocol with a version and a challenge that never change.
    pub(crate) fn fixed_greeting() -> Vec<u8> {
        let challenge: [u8; 32] = std::array::from_fn(|at| at as u8);
        let version = *b"0.1.0\0\0\0\0\0\0\0\0\0\0\0";
        [MAGIC.as_slice(), &PROTOCOL.to_le_bytes(), &version, &challenge].concat()
    }

    fn meet(mine: Build, key: &[u8], theirs: &'static [u8]) -> (io::Result<Build>, io::Result<Build>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let callee = std::thread::spawn(move || answer_as(Build::MINE, &mut there, theirs));
        let caller = authenticate_as(mine, &mut here, key, &[]);
        drop(here);
        (caller, callee.join().unwrap())
    }

    #[test]
    fn both_sides_learn_each_others_build() {
        let (caller, callee) = meet(another_build(), b"key", b"key");
        assert_eq!(caller.unwrap(), Build::MINE);
        assert_eq!(callee.unwrap().to_string(), "hexagram 9.8.7 (protocol 77)");
    }

    #[test]
    fn another_key_proves_nothing() {
        let (caller, callee) = meet(Build::MINE, b"key", b"kez");
        assert_eq!(caller.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(callee.is_err());
    }

    #[test]
    fn a_callees_own_proof_sent_back_is_no_proof() {
        let greeting = Greeting::of(Build::MINE).unwrap().0;
        let (answer, payload) = Responder::new(greeting, b"key").unwrap();
        assert!(answer.conclude(b"key", &payload[GREETING..]).is_err());
    }

    #[test]
    fn every_job_has_a_key_of_its_own() {
        let key = |secret: &[u8], job| JobKey::derive(secret, &[job; 16]).0;
        assert_eq!(key(b"a", 1), key(b"a", 1));
        assert_ne!(key(b"a", 1), key(b"a", 2));
        assert_ne!(key(b"a", 1), key(b"b", 1));
    }
}
