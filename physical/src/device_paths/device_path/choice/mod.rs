//! The choice of a path: from the devices of all ranks, which each of them knows, to the same answer on every rank.
//!
//! | ranks | path |
//! |---|---|
//! | any on the host, or on a device that no path supports | staging |
//! | two or more, all on one GPU, where they share memory of the host | ipc |
//! | each on a GPU of its own, with one version of NCCL | nccl |
//! | on GPUs of one host that reach each other's memory, where they share memory of the host | ipc |
//! | all others | staging |
//!
//! `HEXAGRAM_DEVICE_PATH` overrides the choice; an impossible path is then an error.

use super::PathPreference;
#[cfg(feature = "cuda")]
use crate::device::Queue;
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::memory::hash::{START, of_bytes};
#[cfg(feature = "cuda")]
use crate::transport::Transport;
use crate::transport::TransportKind;

/// Maximum number of ranks that read each other's memory.
const MOST_RANKS: usize = 64;

/// Maximum number of GPU identities that a rank sends: those of the GPUs that its own GPU reaches.
const MOST_GPUS: usize = 16;

/// Identity of a GPU, equal in all processes.
type Uuid = [u8; 16];

/// Facts about a rank, which it sends to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankFacts {
    wish: PathPreference,
    /// Number that no other process has.
    pub(crate) process: Uuid,
    /// Number that no other endpoint of the process has.
    pub(crate) endpoint: u64,
    place: RankMemory,
}

/// Place of a rank's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RankMemory {
    Host,
    /// A device that no path supports.
    Elsewhere,
    Gpu(GpuFacts),
}

/// A GPU, as far as the choice depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GpuFacts {
    pub(crate) uuid: Uuid,
    /// Number of its place on a bus of its host, which slices of one GPU share.
    pub(crate) place: u64,
    /// Other GPUs whose memory it reads directly.
    pub(crate) reaches: Vec<Uuid>,
    /// Version of NCCL that the rank has, as NCCL numbers them; 0 if it has none, or one that is too old.
    pub(crate) nccl: u32,
}

/// Bytes of an encoded identity.
pub(super) const BYTES: usize = 2 + 16 + 8 + 16 + 8 + 4 + 1 + 16 * MOST_GPUS;

impl RankFacts {
    #[cfg(test)]
    pub(super) fn new(wish: PathPreference, process: Uuid, place: RankMemory) -> Self {
        RankFacts { wish, process, endpoint: 0, place }
    }

    /// Returns true if the rank's memory is the host's.
    pub(super) fn is_on_host(&self) -> bool {
        self.place == RankMemory::Host
    }

    /// Returns the GPU of a rank that has one.
    pub(crate) fn gpu(&self) -> Option<&GpuFacts> {
        match &self.place {
            RankMemory::Gpu(gpu) => Some(gpu),
            RankMemory::Host | RankMemory::Elsewhere => None,
        }
    }

    /// Encodes the identity.
    pub(super) fn to_bytes(&self) -> [u8; BYTES] {
        let nothing = GpuFacts::default();
        let (place, gpu) = match &self.place {
            RankMemory::Host => (0, &nothing),
            RankMemory::Elsewhere => (1, &nothing),
            RankMemory::Gpu(gpu) => (2, gpu),
        };
        let reached = &gpu.reaches[..gpu.reaches.len().min(MOST_GPUS)];
        let own = self.process.into_iter().chain(self.endpoint.to_le_bytes());
        let head = [self.wish.code(), place].into_iter().chain(own).chain(gpu.uuid);
        let head = head.chain(gpu.place.to_le_bytes());
        let tail = gpu.nccl.to_le_bytes().into_iter().chain([reached.len() as u8]);
        let all = head.chain(tail).chain(reached.concat());
        let mut bytes = [0; BYTES];
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// Decodes an identity; returns `None` if this version does not know its format.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[wish, place], rest) = bytes.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (endpoint, rest) = rest.split_first_chunk()?;
        let (uuid, rest) = rest.split_first_chunk()?;
        let (on_bus, rest) = rest.split_first_chunk()?;
        let (nccl, rest) = rest.split_first_chunk()?;
        let (&[count], rest) = rest.split_first_chunk()?;
        let reaches = rest.as_chunks().0.get(..count.into())?.to_vec();
        let nccl = u32::from_le_bytes(*nccl);
        let gpu = GpuFacts { uuid: *uuid, place: u64::from_le_bytes(*on_bus), reaches, nccl };
        let place = match place {
            0 => RankMemory::Host,
            1 => RankMemory::Elsewhere,
            2 => RankMemory::Gpu(gpu),
            _ => return None,
        };
        let endpoint = u64::from_le_bytes(*endpoint);
        Some(RankFacts { wish: PathPreference::from_code(wish)?, process: *process, endpoint, place })
    }
}

#[cfg(feature = "cuda")]
impl RankFacts {
    /// Returns the identity of this rank.
    ///
    /// # Errors
    /// [`Error::System`] if the system or the driver refuses.
    pub(super) fn of(queue: &Queue, wish: PathPreference) -> Result<Self> {
        // NCCL is loaded where it may be chosen.
        let may_use_nccl = [PathPreference::Auto, PathPreference::Only(TransportKind::Nccl)].contains(&wish);
        let found = || crate::device_paths::nccl::version().map_or(0, |version| version.number());
        let nccl = || if may_use_nccl { found() } else { 0 };
        let place = match crate::device::cuda::identify(queue)? {
            Some((uuid, on_bus, reaches)) => {
                RankMemory::Gpu(GpuFacts { uuid, place: number(on_bus)?, reaches, nccl: nccl() })
            }
            None if queue.is_host() => RankMemory::Host,
            None => RankMemory::Elsewhere,
        };
        Ok(RankFacts { wish, process: process()?, endpoint: crate::device_paths::ipc::number(), place })
    }
}

/// Returns a number for a place on a bus of this host, equal in all processes here, and on no other host.
#[cfg(feature = "cuda")]
fn number(on_bus: [i32; 3]) -> Result<u64> {
    let boot = crate::bootstrap::meeting::peer_info::boot();
    // An unknown place proves nothing.
    let host = if boot.trim().is_empty() { process()?.to_vec() } else { boot.into_bytes() };
    Ok(of_bytes(of_bytes(START, host), on_bus.map(i32::to_le_bytes).concat()))
}

/// Returns a random identifier of this process.
#[cfg(feature = "cuda")]
fn process() -> Result<Uuid> {
    static OWN: std::sync::OnceLock<Uuid> = std::sync::OnceLock::new();
    if OWN.get().is_none() {
        // If another thread was quicker, its number stays.
        let _ = OWN.set(crate::bootstrap::random().map_err(Error::no_random)?);
    }
    Ok(OWN.get().copied().unwrap_or_default())
}

/// Paths that this build and the transport allow, which is the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AvailablePaths {
    /// True if ranks share memory of the host.
    pub(super) ipc: bool,
    pub(super) nccl: bool,
}

#[cfg(feature = "cuda")]
impl AvailablePaths {
    /// Returns those of a transport.
    pub(super) fn of(transport: &dyn Transport) -> Self {
        AvailablePaths { ipc: transport.shared_memory().is_some(), nccl: true }
    }
}

/// Returns the path that ranks of these identities take; `None` if memory is staged.
///
/// # Errors
/// [`Error::Setup`] if their preferences cannot be met, or differ.
pub(super) fn choose(all: &[RankFacts], means: AvailablePaths) -> Result<Option<TransportKind>> {
    let wish = all.first().map(|first| first.wish).unwrap_or_default();
    if let Some((rank, other)) = all.iter().enumerate().find(|(_, identity)| identity.wish != wish) {
        let what = format!("rank 0 has {}, rank {rank} {}", wish.setting(), other.wish.setting());
        return Err(Error::setup(what, "set it to the same value on all ranks"));
    }
    if all.iter().all(RankFacts::is_on_host) {
        return Ok(None);
    }
    let ipc = ipc_obstacle(all, means);
    let nccl = nccl_obstacle(all, means);
    let is_one_gpu =
        all.windows(2).all(|pair| pair[0].gpu().map(|gpu| gpu.uuid) == pair[1].gpu().map(|gpu| gpu.uuid));
    match wish {
        PathPreference::Staging => Ok(None),
        PathPreference::Auto if ipc.is_none() && is_one_gpu && all.len() > 1 => Ok(Some(TransportKind::Ipc)),
        PathPreference::Auto if nccl.is_none() => Ok(Some(TransportKind::Nccl)),
        PathPreference::Auto => Ok(ipc.is_none().then_some(TransportKind::Ipc)),
        PathPreference::Only(path) => match if path == TransportKind::Ipc { ipc } else { nccl } {
            Some(why) => {
                let what = format!("{} is impossible: {why}", wish.setting());
                Err(Error::setup(what, "set it to auto, or unset it"))
            }
            None => Ok(Some(path)),
        },
    }
}

/// Returns why these ranks cannot read each other's memory, if so.
fn ipc_obstacle(all: &[RankFacts], means: AvailablePaths) -> Option<String> {
    if !means.ipc {
        return Some("ranks share no memory over this transport".to_owned());
    }
    if all.len() > MOST_RANKS {
        return Some(format!("there are more than {MOST_RANKS} ranks"));
    }
    without_gpu(all).or_else(|| {
        let gpus = || all.iter().filter_map(RankFacts::gpu).enumerate();
        gpus().find_map(|(rank, gpu)| {
            let reaches = |other: &GpuFacts| other.uuid == gpu.uuid || gpu.reaches.contains(&other.uuid);
            let (far, _) = gpus().find(|(_, other)| !reaches(other))?;
            Some(format!("the GPU of rank {rank} does not reach the memory of rank {far}'s"))
        })
    })
}

/// Returns why NCCL cannot connect these ranks, if so.
fn nccl_obstacle(all: &[RankFacts], means: AvailablePaths) -> Option<String> {
    if !means.nccl {
        return Some("this build has no NCCL".to_owned());
    }
    without_gpu(all).or_else(|| {
        let gpus: Vec<&GpuFacts> = all.iter().filter_map(RankFacts::gpu).collect();
        if let Some(rank) = gpus.iter().position(|gpu| gpu.nccl == 0) {
            return Some(format!(
                "rank {rank} finds no NCCL that can be used: `hexagram check` on its host says why"
            ));
        }
        if let Some(rank) = gpus.iter().position(|gpu| gpu.nccl != gpus[0].nccl) {
            let version = |rank: usize| spell_nccl(gpus[rank].nccl);
            return Some(format!("rank 0 has NCCL {}, rank {rank} {}", version(0), version(rank)));
        }
        let is_one = |a: &GpuFacts, b: &GpuFacts| a.uuid == b.uuid || a.place == b.place;
        let shared = |rank: usize| gpus[..rank].iter().position(|gpu| is_one(gpu, gpus[rank]));
        let (first, second) = (0..gpus.len()).find_map(|rank| Some((shared(rank)?, rank)))?;
        let slices = if gpus[first].uuid == gpus[second].uuid { "" } else { "slices of " };
        Some(format!("ranks {first} and {second} are on {slices}one GPU"))
    })
}

/// Returns a version of NCCL as text.
fn spell_nccl(number: u32) -> String {
    format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
}

/// Returns the clause about a rank without a GPU, if there is one.
fn without_gpu(all: &[RankFacts]) -> Option<String> {
    let rank = all.iter().position(|identity| identity.gpu().is_none())?;
    Some(format!("the memory of rank {rank} is not on a GPU"))
}

#[cfg(test)]
mod tests;
