//! Attaches the queues of an endpoint's ranks, and chooses the path that all of them use.

use super::choice::RankFacts;
use super::{Attached, DevicePath, PathContext, PathPreference, choice, exchange};
use crate::device::Queue;
use crate::error::{Error, ErrorContext, Result};
use crate::transport::{Traffic, Transport, TransportKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Negotiates the path for the memory of the queues' devices. All ranks of an endpoint call this together. Returns `None` on
/// all of them if none has a device, so that there was nothing to decide.
///
/// # Errors
/// [`Error::Setup`] if `HEXAGRAM_DEVICE_PATH` names a path that these ranks cannot use, or differs between them; the errors of
/// the exchange.
pub(crate) fn attach(
    transport: &Rc<dyn Transport>,
    traffic: &Arc<Traffic>,
    queue: &Queue,
    limit: Duration,
) -> Result<Option<Attached>> {
    let mine = RankFacts::of(queue, PathPreference::from_env()?)?;
    let identities = exchange::exchange(&**transport, &mine, limit)?;
    let chosen = choice::choose(&identities, choice::AvailablePaths::of(&**transport))?;
    if identities.iter().all(RankFacts::is_on_host) {
        return Ok(None);
    }
    let site = PathContext { transport, traffic, queue, identities: &identities, limit };
    let path = chosen.map(|kind| connect(kind, &site)).transpose();
    // Ranks that were quicker are notified that this rank has no path.
    let path = path.map_err(|error| transport.health().explain(error, ErrorContext::Registering))?;
    Ok(Some(Attached { device: queue.name().to_owned(), path }))
}

/// Begins a path that the ranks have chosen.
fn connect(kind: TransportKind, site: &PathContext<'_>) -> Result<Rc<dyn DevicePath>> {
    match kind {
        TransportKind::Ipc => crate::device_paths::ipc::connect(site),
        TransportKind::Nccl => crate::device_paths::nccl::connect(site),
        _ => {
            let what = format!("the path {kind} is unavailable for {}", site.queue.name());
            Err(Error::setup(what, "set HEXAGRAM_DEVICE_PATH=staging"))
        }
    }
}
