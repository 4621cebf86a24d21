//! The first words between two processes: both prove that they know the job's secret, and neither sends it.
//!
//! ```text
//! newcomer → rank 0   MAGIC version:u32 challenge:32
//! rank 0 → newcomer   MAGIC version:u32 challenge:32 proof:32     proof = HMAC(secret, "rank 0" both challenges)
//! newcomer → rank 0   proof:32                                    proof = HMAC(secret, "newcomer" both challenges)
//! ```
//!
//! A job without a secret uses an empty one: anyone who reaches the address may join, as with other launchers.

use super::message::malformed;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"hexagram";
/// Of the wire protocol; ranks of different versions refuse each other.
const VERSION: u32 = 1;

type Challenge = [u8; 32];
type Proof = [u8; 32];

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

fn mac(secret: &[u8], side: &str, challenges: [&Challenge; 2]) -> io::Result<Hmac<Sha256>> {
    let mac = Hmac::<Sha256>::new_from_slice(secret);
    let mut mac = mac.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "unusable secret"))?;
    mac.update(side.as_bytes());
    challenges.iter().for_each(|challenge| mac.update(*challenge));
    Ok(mac)
}

fn greet(stream: &mut impl Write, challenge: &Challenge) -> io::Result<()> {
    stream.write_all(&[MAGIC.as_slice(), &VERSION.to_le_bytes(), challenge].concat())
}

fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn greeted(stream: &mut impl Read) -> io::Result<Challenge> {
    if &read::<8>(stream)? != MAGIC {
        return Err(malformed());
    }
    let version = u32::from_le_bytes(read(stream)?);
    if version != VERSION {
        let what =
            format!("protocol version {version} there, {VERSION} here: use the same build on all ranks");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    read(stream)
}

fn verify(mac: Hmac<Sha256>, proof: &Proof) -> io::Result<()> {
    mac.verify_slice(proof).map_err(|_| {
        let what = "the job's secret differs: give all ranks the same HEXAGRAM_SECRET_FILE";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })
}

/// The newcomer's side.
pub(super) fn approach(stream: &mut (impl Read + Write), secret: &[u8]) -> io::Result<()> {
    let mine = random()?;
    greet(stream, &mine)?;
    let theirs = greeted(stream)?;
    verify(mac(secret, "rank 0", [&mine, &theirs])?, &read(stream)?)?;
    stream.write_all(&mac(secret, "newcomer", [&mine, &theirs])?.finalize().into_bytes())
}

/// Rank 0's side.
pub(super) fn receive(stream: &mut (impl Read + Write), secret: &[u8]) -> io::Result<()> {
    let theirs = greeted(stream)?;
    let mine = random()?;
    greet(stream, &mine)?;
    stream.write_all(&mac(secret, "rank 0", [&theirs, &mine])?.finalize().into_bytes())?;
    verify(mac(secret, "newcomer", [&theirs, &mine])?, &read(stream)?)
}
