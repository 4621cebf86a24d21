//! Names of transports: how one is chosen in options, on command lines and in matrices of tests. `registry` parses them.

use std::fmt;

/// Name of a transport: one of those that are built in, or of one that [`register`](crate::transport::register) has
/// added.
///
/// [`TransportKind::Ipc`] and [`TransportKind::Nccl`] are not transports, but paths for GPU memory. They do not parse:
/// `HEXAGRAM_DEVICE_PATH` chooses between them.
///
/// ```
/// use hexagram_physical::TransportKind;
///
/// let kind: TransportKind = "shm".parse()?;
/// assert_eq!(kind, TransportKind::Shm);
/// assert!("carrier pigeon".parse::<TransportKind>().is_err());
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransportKind(&'static str);

#[allow(
    non_upper_case_globals,
    reason = "they read as the variants of a closed set do, which others may extend"
)]
impl TransportKind {
    /// Ranks are threads of one process.
    pub const Thread: TransportKind = TransportKind("thread");
    /// Ranks are processes of one host, connected by rings in shared memory.
    pub const Shm: TransportKind = TransportKind("shm");
    /// Ranks are processes anywhere, connected by TCP.
    pub const Tcp: TransportKind = TransportKind("tcp");
    /// Ranks are processes anywhere, each pair connected by shared memory on one host, by TCP across hosts.
    pub const Mixed: TransportKind = TransportKind("mixed");
    /// Ranks are processes anywhere, started and connected by MPI; only in builds with the feature `mpi`.
    pub const Mpi: TransportKind = TransportKind("mpi");
    /// Ranks are fibers of one thread, on a simulated cluster: `sim::Simulation` makes them, in builds with the feature
    /// `sim`, and none joins.
    pub const Sim: TransportKind = TransportKind("sim");

    /// No transport, but a path of GPU memory: GPUs of one host read each other's memory. It carries collectives of all
    /// ranks, and messages.
    pub const Ipc: TransportKind = TransportKind("ipc");
    /// No transport, but a path of GPU memory: NCCL connects ranks that have a GPU each. It carries collectives, of all ranks
    /// and of groups; messages go by way of the host. Ranks attach to it, or an error says why they cannot.
    pub const Nccl: TransportKind = TransportKind("nccl");

    /// Every built-in transport whose ranks can be threads of one test, for matrices of tests and tables.
    pub const ALL: [TransportKind; 4] =
        [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp, TransportKind::Mixed];

    /// Every transport of this build, implemented in `backends`.
    pub(super) const BUILT_IN: &[TransportKind] = &[
        TransportKind::Thread,
        TransportKind::Shm,
        TransportKind::Tcp,
        TransportKind::Mixed,
        #[cfg(feature = "mpi")]
        TransportKind::Mpi,
    ];
}

impl TransportKind {
    /// Names a transport, before it is registered.
    pub(super) const fn new(name: &'static str) -> Self {
        TransportKind(name)
    }

    /// Returns the name, as users type it.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Returns true if threads may use an endpoint of this transport in turns: it keeps no reference in a
    /// thread-local, no guard, and no thread id. The `unsafe` code of the executor relies on it. A path between
    /// devices, of an endpoint that was [attached](crate::transport::devices::Devices::attach), does keep such a reference.
    pub fn may_change_threads(self) -> bool {
        Self::ALL.contains(&self)
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
