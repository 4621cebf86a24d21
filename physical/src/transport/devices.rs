//! Endpoints that send from and receive into device memory.

use super::backend::TransportKind;
use super::message::Label;
use crate::device::Queue;
use crate::error::Result;
use std::time::Duration;

/// Operations of an endpoint that accepts views of device memory.
///
/// The endpoint around every transport implements this; a transport itself usually sees nothing but host memory.
pub trait Devices {
    /// Negotiates how device memory travels between ranks. Every rank passes one of its queues; the host queue is
    /// allowed. A collective call, which waits for the others at most `limit`. Returns the path between the devices;
    /// `None` if memory travels through the host. The choice is final once any rank has passed a device queue.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) for a queue of a different device than the first time;
    /// [`Error::Setup`](crate::Error::Setup) if `HEXAGRAM_DEVICE_PATH` names an impossible path; failures of the others.
    fn attach(&self, _queue: &Queue, _limit: Duration) -> Result<Option<TransportKind>> {
        Ok(None)
    }

    /// Returns true if the device of this rank has not finished its contribution to the operation of this label.
    fn is_at_work(&self, _label: &Label) -> bool {
        false
    }
}
