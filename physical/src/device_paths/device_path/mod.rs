//! Paths: how memory of devices travels between ranks without going by way of the host.
//!
//! [`Staging`](super::staging::Staging) is the endpoint around every transport. Once the ranks have [attached](attach) their
//! queues to it, they agree on a path between their devices, or on none. Views of device memory then use the path if it carries
//! their operation, and views of host memory use the transport as before. All other views of device memory are staged.
//!
//! An operation on a path ends when it is *enqueued* on the queue of the view, in the order of that queue's other work; no
//! thread waits for the device. Ranks compare their calls by messages of the host transport, under the label of the operation,
//! which detects a mismatch, a missing rank and a deadline as for any operation. A later failure is a failure of the queue.

#[cfg(feature = "cuda")]
mod attach;
#[cfg(any(test, feature = "cuda"))]
mod choice;
#[cfg(feature = "cuda")]
pub(crate) mod control_message;
#[cfg(any(test, feature = "cuda"))]
mod exchange;
mod path_preference;
#[cfg(test)]
pub(crate) mod tests;

use crate::device::Queue;
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::transport::native::Collectives;
use crate::transport::{Label, ReceiveMode, Received, Source, Ticket, TransportKind};
#[cfg(feature = "cuda")]
use crate::transport::{Traffic, Transport};
#[cfg(feature = "cuda")]
pub(crate) use attach::attach;
#[cfg(feature = "cuda")]
use choice::RankFacts;
pub(crate) use path_preference::PathPreference;
use std::rc::Rc;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A way between the devices of all ranks of an endpoint, on which their memory travels without the host.
pub(crate) trait DevicePath {
    /// Returns the name of the path, by which its bytes are counted.
    fn kind(&self) -> TransportKind;

    /// Returns the messages of views of devices, if the path carries them; they are staged otherwise.
    fn messages(&self) -> Option<&dyn MessagePath>;

    /// Takes the outcome of an operation, once: see [`Transport::poll`].
    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>>;

    /// Cancels an operation: see [`Transport::cancel`].
    fn cancel(&self, ticket: Ticket);

    /// Makes the progress that is possible now; returns true if there was any.
    fn progress(&self) -> bool;

    /// Returns the bytes of a pending operation that have moved so far.
    fn moved(&self, ticket: Ticket) -> u64;

    /// Returns the collectives for views of devices. The offer is the same on all ranks.
    fn native(&self) -> &dyn Collectives;

    /// Creates memory of a device that the path reaches best: see [`Transport::register`].
    ///
    /// # Errors
    /// As [`Transport::register`].
    fn register(&self, queue: &Queue, dtype: DType, len: usize, limit: Duration) -> Result<Buffer>;
}

/// Messages of views of devices, by a [path](DevicePath) that carries them.
pub(crate) trait MessagePath {
    /// Starts sending a view of a device, as [`Transport::post_send`] does.
    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket;

    /// Starts receiving into a view of a device, as [`Transport::post_recv`] does.
    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket;
}

/// Decision of the ranks of one endpoint, of which at least one has a device.
pub(crate) struct Attached {
    /// Name of the device that this rank attached, which may be the host.
    pub(crate) device: String,
    pub(crate) path: Option<Rc<dyn DevicePath>>,
}

impl Attached {
    /// Returns the path that the ranks have chosen for the memory of a queue; `None` if the memory is staged, or on the host.
    ///
    /// # Errors
    /// [`Error::Usage`] for a queue of a different device than the attached one.
    pub(crate) fn chosen_for(&self, queue: &Queue) -> Result<Option<TransportKind>> {
        if queue.is_host() {
            return Ok(None);
        }
        if self.device != queue.name() {
            let what = format!("this endpoint was attached to {}, not to {}", self.device, queue.name());
            return Err(Error::usage(what, "open a communicator of its own for each device of a rank"));
        }
        Ok(self.path.as_ref().map(|path| path.kind()))
    }
}

/// Facts with which a path begins.
#[cfg(feature = "cuda")]
pub(crate) struct PathContext<'a> {
    /// The host's endpoint of this rank.
    pub(crate) transport: &'a Rc<dyn Transport>,
    pub(crate) traffic: &'a Arc<Traffic>,
    /// Queue of this rank's device.
    pub(crate) queue: &'a Queue,
    /// Devices of all ranks, by rank.
    pub(crate) identities: &'a [RankFacts],
    /// Longest wait for another rank.
    pub(crate) limit: Duration,
}
