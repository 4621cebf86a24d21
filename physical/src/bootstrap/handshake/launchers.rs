//! The handshake between the launchers of a job on several machines, and the secret of each start.

use super::{Build, answer, authenticate, hex, mac};
use std::io::{self, Read, Write};

/// Proves the secret of the job to another launcher, which proves it, too; sends `payload` after that.
///
/// # Errors
/// `PermissionDenied` if the secrets differ; `InvalidData` for a launcher of a different build; others of the stream.
pub fn prove(stream: &mut (impl Read + Write), secret: &[u8], payload: &[u8]) -> io::Result<()> {
    same_build(authenticate(stream, &key_of_launchers(secret), payload)?)
}

/// Answers [`prove`].
///
/// # Errors
/// As [`prove`].
pub fn accept_proof(stream: &mut (impl Read + Write), secret: &[u8]) -> io::Result<()> {
    same_build(answer(stream, &key_of_launchers(secret))?)
}

/// Derives the key that launchers prove: ranks use the secret itself.
fn key_of_launchers(secret: &[u8]) -> [u8; 32] {
    mac(secret, &[b"launchers"]).finalize()
}

/// Derives the secret of the ranks of one start.
pub fn secret_of_start(secret: &[u8], key: &[u8; 16]) -> Vec<u8> {
    hex(&mac(secret, &[b"start".as_slice(), key]).finalize()).into_bytes()
}

/// Refuses a launcher of a different build.
fn same_build(theirs: Build) -> io::Result<()> {
    if theirs == Build::MINE {
        return Ok(());
    }
    let what = format!("the other launcher is of {theirs}, and this one of {}", Build::MINE);
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}
