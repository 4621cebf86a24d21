//! Fields that each rank sends to rank 0, the settings on which all ranks must agree, and the table that every rank
//! receives.
//!
//! ```text
//! info     = rank:u32 pid:u32 host:text kernel:text machine:text announcement:blob     the transport's own bytes
//! request  = info settings network:text
//! settings = size:u32 transport:text beat:u32 silence:u32 configuration:text digest:32
//! table    = job:16 texts:u32 text* row*         a row for each rank, in order
//! row      = pid:u32 host:u32 kernel:u32 machine:u32 announcement:blob     numbers of texts
//! ```
//!
//! Every rank receives the table, so that its total bytes grow with the square of the number of ranks. Therefore it
//! contains common values only once.

use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::bootstrap::handshake::{JobKey, random};
use crate::bootstrap::sockets::local::network_namespace;
use crate::bootstrap::variables::Placement;
use crate::error::{Error, Peer, Result};
use crate::world::JoinOptions;
use hmac_sha256::Hash;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Longest announcement of a transport, in bytes: every rank receives those of all.
pub const ANNOUNCEMENT_BYTES: usize = 2048;

/// Identity, host and addresses of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    /// Rank in the world.
    pub(crate) rank: usize,
    /// Process id.
    pub(crate) pid: u32,
    /// Name of the host, for messages.
    pub(crate) host: Arc<str>,
    /// Name of the kernel's current boot, the same for all processes on one kernel.
    pub(crate) kernel: Arc<str>,
    /// Name of the memory domain, equal on all processes that may share memory.
    pub(crate) machine: Arc<str>,
    /// Bytes with which peers reach its transport, at most [`ANNOUNCEMENT_BYTES`].
    pub(crate) announcement: Arc<[u8]>,
}

impl PeerInfo {
    /// Collects the fields of this process, without addresses.
    fn new(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        let boot = named(&boot())?;
        // Shared memory is passed over abstract sockets, which belong to a network namespace.
        let machine = format!("{boot} {}", network_namespace());
        Ok(PeerInfo {
            rank: placement.rank,
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into(),
            kernel: boot.into(),
            machine: options.host().unwrap_or(machine).into(),
            announcement: Arc::default(),
        })
    }

    /// Returns the identity of the rank.
    pub(crate) fn peer(&self) -> Peer {
        Peer { rank: self.rank, host: Arc::clone(&self.host), pid: self.pid }
    }

    /// Appends the fields to a message.
    pub(crate) fn write(&self, message: MessageWriter) -> MessageWriter {
        let message = message.number(self.rank).number(self.pid as usize);
        let message = message.text(&self.host).text(&self.kernel).text(&self.machine);
        message.blob(&self.announcement)
    }

    /// Decodes the fields.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        Ok(PeerInfo {
            rank: message.number()?,
            pid: message.number()? as u32,
            host: message.text()?.into(),
            kernel: message.text()?.into(),
            machine: message.text()?.into(),
            announcement: message.blob(ANNOUNCEMENT_BYTES)?.into(),
        })
    }
}

/// Returns the system's name for its current boot, or an empty text.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Returns a name for the current `boot`. If it is unknown, returns a random one, which matches no other.
fn named(boot: &str) -> Result<String> {
    if !boot.trim().is_empty() {
        return Ok(boot.trim().to_owned());
    }
    let number = random().map_err(Error::no_random)?;
    Ok(format!("unknown {:032x}", u128::from_le_bytes(number)))
}

/// Settings on which all ranks must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobSettings {
    /// Number of ranks.
    pub(crate) size: usize,
    /// Name of the transport.
    pub(crate) transport: String,
    /// Time between heartbeats, in milliseconds.
    pub(crate) beat: usize,
    /// Time without a heartbeat after which a rank counts as failed, in milliseconds.
    pub(crate) silence: usize,
    /// Text of the configuration that the caller compares between ranks.
    pub(crate) configuration: String,
    /// SHA-256 of the whole configuration, as the text may be cut in a message.
    pub(crate) digest: [u8; 32],
}

impl JobSettings {
    /// Collects the settings of this process.
    fn new(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        let heartbeat = options.heartbeat()?;
        Ok(JobSettings {
            size: placement.size,
            transport: options.transport.to_string(),
            beat: milliseconds(heartbeat.beat),
            silence: milliseconds(heartbeat.silence),
            configuration: options.configuration.clone(),
            digest: Hash::hash(options.configuration.as_bytes()),
        })
    }

    /// Appends the settings to a message.
    pub(crate) fn write(&self, message: MessageWriter) -> MessageWriter {
        let message = message.number(self.size).text(&self.transport);
        let message = message.number(self.beat).number(self.silence);
        message.text(&self.configuration).bytes(&self.digest)
    }

    /// Decodes the settings.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        Ok(JobSettings {
            size: message.number()?,
            transport: message.text()?,
            beat: message.number()?,
            silence: message.number()?,
            configuration: message.text()?,
            digest: message.bytes()?,
        })
    }
}

/// Returns a duration in milliseconds, at most `u32::MAX`.
fn milliseconds(duration: Duration) -> usize {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX) as usize
}

/// Configuration, formatted for an error.
struct DisplayConfiguration<'a>(&'a JobSettings);

impl fmt::Display for DisplayConfiguration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.configuration.is_empty() {
            return f.write_str("configuration is empty");
        }
        let [a, b, c, d, ..] = self.0.digest;
        let hash = u32::from_be_bytes([a, b, c, d]);
        write!(f, "configuration is `{}` (hash {hash:08x})", self.0.configuration)
    }
}

/// Limits of the job's transport.
pub(crate) struct TransportLimits<'a> {
    /// True if it connects only ranks that share memory.
    pub(crate) must_share_memory: bool,
    /// Returns the addresses in an announcement, if all are loopback addresses.
    pub(crate) loopback_only: &'a dyn Fn(&[u8]) -> Option<String>,
}

/// Request of a rank to join the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    /// Fields of the rank.
    pub(crate) info: PeerInfo,
    /// Settings of the rank.
    pub(crate) settings: JobSettings,
    /// Name of the network, the same for all processes that reach each other at loopback addresses.
    pub(crate) network: String,
}

impl JoinRequest {
    /// Creates the request of this process, without the addresses of its transport.
    pub(crate) fn new(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        Ok(JoinRequest {
            info: PeerInfo::new(placement, options)?,
            settings: JobSettings::new(placement, options)?,
            network: format!("{} {}", boot().trim(), network_namespace()),
        })
    }

    /// Appends the request to a message.
    pub(crate) fn write(&self, message: MessageWriter) -> MessageWriter {
        self.settings.write(self.info.write(message)).text(&self.network)
    }

    /// Decodes a request.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        Ok(JoinRequest {
            info: PeerInfo::read(message)?,
            settings: JobSettings::read(message)?,
            network: message.text()?,
        })
    }

    /// Returns the reason why `other` cannot join the job of this rank, if any. With `must_share_memory`, they must
    /// share memory.
    pub(crate) fn objection(&self, other: &JoinRequest, must_share_memory: bool) -> Option<String> {
        let settings = &self.settings;
        if other.settings.size != settings.size {
            return Some(format!(
                "it was started for {} ranks, rank 0 for {}",
                other.settings.size, settings.size
            ));
        }
        if other.settings.transport != settings.transport {
            let theirs = &other.settings.transport;
            let mine = &settings.transport;
            return Some(format!("it uses transport {theirs}, rank 0 uses {mine}"));
        }
        if (other.settings.beat, other.settings.silence) != (settings.beat, settings.silence) {
            return Some(format!(
                "it gives a rank up after {} ms without a heartbeat and sends one every {} ms, rank 0 after {} and every {} ms \
                 (HEXAGRAM_SILENCE, or JoinOptions::heartbeat)",
                other.settings.silence, other.settings.beat, settings.silence, settings.beat
            ));
        }
        if other.settings.digest != settings.digest {
            return Some(format!(
                "its {}, rank 0's {}",
                DisplayConfiguration(&other.settings),
                DisplayConfiguration(settings)
            ));
        }
        match must_share_memory {
            true => self.shm_objection(other),
            false => None,
        }
    }

    /// Returns the reason why `other` cannot share memory with this rank, if any.
    fn shm_objection(&self, other: &JoinRequest) -> Option<String> {
        let JoinRequest { info, network, .. } = self;
        if other.info.machine != info.machine {
            return Some(format!(
                "{} and {} cannot share memory: use the mixed or the tcp transport",
                other.info.host, info.host
            ));
        }
        if other.network != *network {
            return Some(
                "shared memory does not reach from its network to rank 0's, though HEXAGRAM_HOST says that they are on one \
                 host: use the mixed or the tcp transport"
                    .to_owned(),
            );
        }
        None
    }
}

/// Table of all ranks, and the key of their data connections.
pub(crate) struct PeerTable {
    /// Key that the data connections of this job prove.
    pub(crate) key: JobKey,
    /// Fields of the ranks, by rank.
    pub(crate) infos: Vec<PeerInfo>,
}

impl PeerTable {
    /// Appends the table of the job that drew the number `job` to a message.
    pub(crate) fn write(infos: &[PeerInfo], job: &[u8; 16], message: MessageWriter) -> MessageWriter {
        let mut texts = StringTable::default();
        let numbers: Vec<[usize; 3]> = infos
            .iter()
            .map(|info| [&info.host, &info.kernel, &info.machine].map(|text| texts.number(text)))
            .collect();
        let message = message.bytes(job).number(texts.all.len());
        let message = texts.all.iter().fold(message, |message, text| message.text(text));
        infos.iter().zip(numbers).fold(message, |message, (info, numbers)| {
            let message = message.number(info.pid as usize);
            let message = numbers.into_iter().fold(message, MessageWriter::number);
            message.blob(&info.announcement)
        })
    }

    /// Decodes the table of `size` ranks, and derives the key from their `secret`.
    pub(crate) fn read(message: &mut MessageReader, size: usize, secret: &[u8]) -> io::Result<Self> {
        let key = JobKey::derive(secret, &message.bytes()?);
        let count = message.number()?;
        // It grows only as texts are decoded.
        let mut texts: Vec<Arc<str>> = Vec::new();
        for _ in 0..count {
            texts.push(message.text()?.into());
        }
        let text = |message: &mut MessageReader| -> io::Result<Arc<str>> {
            texts.get(message.number()?).map(Arc::clone).ok_or_else(malformed)
        };
        let info = |rank| -> io::Result<PeerInfo> {
            Ok(PeerInfo {
                rank,
                pid: message.number()? as u32,
                host: text(message)?,
                kernel: text(message)?,
                machine: text(message)?,
                announcement: message.blob(ANNOUNCEMENT_BYTES)?.into(),
            })
        };
        let infos: io::Result<Vec<PeerInfo>> = (0..size).map(info).collect();
        Ok(PeerTable { key, infos: infos? })
    }
}

/// Table of texts, each held once.
#[derive(Default)]
struct StringTable<'a> {
    /// The texts, by number.
    all: Vec<&'a str>,
    /// Numbers of the texts.
    numbers: HashMap<&'a str, usize>,
}

impl<'a> StringTable<'a> {
    /// Returns the number of a text, which is added if it is new.
    fn number(&mut self, text: &'a str) -> usize {
        let StringTable { all, numbers } = self;
        *numbers.entry(text).or_insert_with(|| {
            all.push(text);
            all.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: usize) -> PeerInfo {
        let host = format!("host-{}", rank / 4);
        PeerInfo {
            rank,
            pid: 1000 + rank as u32,
            kernel: format!("kernel of {host}").into(),
            machine: format!("machine of {host}").into(),
            host: host.into(),
            announcement: format!("10.0.0.1:{rank}").into_bytes().into(),
        }
    }

    #[test]
    fn kernels_that_say_nothing_are_never_the_same() {
        assert_eq!(named("1-2-3\n").unwrap(), "1-2-3");
        assert_ne!(named("").unwrap(), named("").unwrap());
        assert_ne!(named("\n").unwrap(), named("\n").unwrap());
    }

    #[test]
    fn a_roster_says_once_what_ranks_have_in_common() {
        let infos: Vec<PeerInfo> = (0..100).map(info).collect();
        let wire = PeerTable::write(&infos, &[7; 16], MessageWriter::default()).whole();
        let mut message = MessageReader::receive(&mut &wire[..]).unwrap();
        let read = PeerTable::read(&mut message, 100, b"secret").unwrap();
        assert_eq!(read.infos, infos);
        assert!(wire.len() < 100 * 50, "{} bytes", wire.len());
        let mut short = MessageReader::receive(&mut &wire[..]).unwrap();
        assert!(PeerTable::read(&mut short, 101, b"secret").is_err());
    }
}
