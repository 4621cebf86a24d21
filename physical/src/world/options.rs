//! Options with which a rank joins a world: those of the program first, and the environment as the default.

use crate::backends::socket::{Tls, TlsFiles};
use crate::bootstrap::sockets::interface;
use crate::control::health::HeartbeatOptions;
use crate::error::{Error, Result};
use crate::system::environment::variable;
use crate::transport::TransportKind;
use crate::transport::native::Check;
use std::net::SocketAddr;
use std::time::Duration;

/// Most sockets between two ranks: more would only wait for each other.
pub(crate) const MAX_SOCKETS: usize = 16;

/// Decodes the value of `HEXAGRAM_TCP_SOCKETS`.
pub(super) fn parse_sockets(text: &str) -> Result<usize> {
    let sockets = text.trim().parse().ok();
    sockets.filter(|sockets| (1..=MAX_SOCKETS).contains(sockets)).ok_or_else(|| {
        let what =
            format!("HEXAGRAM_TCP_SOCKETS={text} is not a number of connections for each pair of ranks");
        Error::setup(what, format!("use 1 to {MAX_SOCKETS}, or unset it"))
    })
}

/// Options with which a rank joins a world.
///
/// ```
/// use hexagram_physical::{JoinOptions, TransportKind};
/// use std::time::Duration;
///
/// let options = JoinOptions {
///     transport: TransportKind::Tcp,
///     deadline: Duration::from_secs(120),
///     ..JoinOptions::default()
/// };
/// assert_eq!(options.transport.to_string(), "tcp");
/// ```
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// Transport between the ranks. Default: mixed. [`TransportKind::Thread`] is for
    /// [`World::threads`](crate::World::threads).
    pub transport: TransportKind,
    /// Longest wait for the other ranks. Default: 60 s.
    pub deadline: Duration,
    /// Heartbeats with which the ranks monitor each other afterwards. `None`: [`HeartbeatOptions::default`], with the
    /// silence of HEXAGRAM_SILENCE.
    pub heartbeat: Option<HeartbeatOptions>,
    /// Further settings on which all ranks must agree, as text for an error: element types, bucket sizes, the
    /// algorithm. Ranks with different texts refuse to join.
    pub configuration: String,
    /// Files for TLS with ranks on other hosts. `None`: those of HEXAGRAM_TLS_CERT, HEXAGRAM_TLS_KEY and
    /// HEXAGRAM_TLS_CA, or no TLS.
    pub tls: Option<TlsFiles>,
    /// Interface at which to accept TCP connections: its name (`eth0`) or an address of this host. `None`: that of
    /// HEXAGRAM_INTERFACE, or else the interface with the route to the rendezvous address.
    pub interface: Option<String>,
    /// Number of TCP connections for each pair of ranks and channel, 1 to 16; of two different values, the lower one
    /// is used. `None`: that of HEXAGRAM_TCP_SOCKETS, or else 1, since more were measured to bring no gain unless the
    /// network limits the rate of each.
    pub sockets: Option<usize>,
    /// Any name of this host; ranks with equal names share memory if an attempt succeeds. `None`: that of
    /// HEXAGRAM_HOST; without it, ranks on one kernel and in one network namespace try.
    pub host: Option<String>,
    /// Frequency at which ranks compare their calls before an MPI collective. `None`: that of HEXAGRAM_CHECK, or else
    /// at the first use of each.
    pub check: Option<Check>,
}

impl JoinOptions {
    /// Fails if an option is invalid, or the variable of an unset option is, before any rank is awaited.
    pub(super) fn check(&self) -> Result<()> {
        self.heartbeat()?;
        self.sockets()?;
        self.interface().map(drop)
    }

    /// Returns the heartbeats with which the ranks monitor each other.
    pub(crate) fn heartbeat(&self) -> Result<HeartbeatOptions> {
        let heartbeat = self.heartbeat.map_or_else(HeartbeatOptions::from_env, Ok)?;
        heartbeat.check()?;
        Ok(heartbeat)
    }

    /// Returns the number of TCP connections for each pair of ranks and channel that the user asks for.
    pub(crate) fn sockets(&self) -> Result<usize> {
        match self.sockets {
            None => variable("HEXAGRAM_TCP_SOCKETS").map_or(Ok(1), |text| parse_sockets(&text)),
            Some(sockets) if (1..=MAX_SOCKETS).contains(&sockets) => Ok(sockets),
            Some(sockets) => {
                let what = format!("{sockets} TCP connections for each pair of ranks (JoinOptions::sockets)");
                Err(Error::setup(what, format!("use 1 to {MAX_SOCKETS}")))
            }
        }
    }

    pub(crate) fn host(&self) -> Option<String> {
        self.host.clone().or_else(|| variable("HEXAGRAM_HOST"))
    }

    /// Loads the files for TLS that are named, if any are.
    pub(crate) fn tls(&self) -> Result<Option<Tls>> {
        let files = if self.tls.is_some() { self.tls.clone() } else { TlsFiles::from_env()? };
        files.as_ref().map(Tls::load).transpose()
    }

    /// Returns the address at which to accept TCP connections, with port 0, if the user sets one.
    pub(crate) fn interface(&self) -> Result<Option<SocketAddr>> {
        let asked = self.interface.clone().or_else(|| variable("HEXAGRAM_INTERFACE"));
        asked.map(|name| interface::find(&name)).transpose()
    }
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions {
            transport: TransportKind::Mixed,
            deadline: Duration::from_secs(60),
            heartbeat: None,
            configuration: String::new(),
            interface: None,
            sockets: None,
            host: None,
            check: None,
            tls: None,
        }
    }
}
