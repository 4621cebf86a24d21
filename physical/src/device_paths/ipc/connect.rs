//! Connects the GPUs of all ranks of an endpoint: words that all of them share, and access to each other's memory.

use super::collectives::{EndpointReach, clear_away};
use super::combine::COMBINE;
use super::endpoint::IpcEndpoint;
use super::joint_enqueue::JointEnqueue;
use super::messages::outbox;
use super::sync_pages::SyncPages;
use crate::device::cuda::CudaQueue;
use crate::device_paths::device_path::{DevicePath, PathContext};
use crate::error::{Error, Result};
use crate::transport::TransportKind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Begins the path. All ranks do so together.
///
/// # Errors
/// [`Error::Setup`] and [`Error::System`] if the GPUs cannot be connected.
pub(crate) fn connect(site: &PathContext<'_>) -> Result<Rc<dyn DevicePath>> {
    outbox::clear_away();
    clear_away();
    let rank = site.transport.rank();
    let nothing = || {
        let what = format!("ranks share no memory over {}", site.transport.kind());
        Error::setup(what, "set HEXAGRAM_DEVICE_PATH=staging")
    };
    let pages = site.transport.shared_memory().ok_or_else(nothing)?.share_pages(site.limit)?;
    let cuda = CudaQueue::of(site.queue).ok_or_else(nothing)?;
    let own = &site.identities[rank];
    let are_here: Vec<bool> = site.identities.iter().map(|other| other.process == own.process).collect();
    let others = site.identities.iter().zip(&are_here).filter(|(_, is_here)| **is_here);
    for gpu in others.filter_map(|(other, _)| other.gpu()) {
        cuda.gpu().reach(gpu.uuid)?;
    }
    // Later, the driver's compiler might wait for streams that wait for this rank.
    cuda.gpu().prepare_module(&COMBINE)?;
    let reach = EndpointReach {
        rank,
        gpu: Arc::clone(cuda.gpu()),
        words: Arc::new(SyncPages::new(cuda.gpu(), rank, pages)?),
        imports: Arc::default(),
        exports: Arc::default(),
        are_here,
        health: Arc::clone(site.transport.health()),
        deadline: site.limit,
        step: AtomicU32::new(0),
        awaited: site.identities.iter().map(|_| AtomicU32::new(0)).collect(),
        taken: AtomicU32::new(0),
    };
    let here: Vec<usize> = (0..reach.are_here.len()).filter(|rank| reach.are_here[*rank]).collect();
    // The first of them has a number that all of them know.
    let meeting = JointEnqueue::of(site.identities[here.first().copied().unwrap_or(rank)].endpoint, here);
    let tally = site.traffic.tally(TransportKind::Ipc);
    Ok(IpcEndpoint::new(Rc::clone(site.transport), Arc::new(reach), meeting, tally))
}
