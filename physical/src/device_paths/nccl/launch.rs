//! Launches: the steps that put a collective on the NCCL stream, and the waits of the queues of its views.
//!
//! NCCL has its own stream. The stream waits until the queues of the views have reached the collective, and later work on the
//! memory waits for NCCL. NCCL may not finish enqueuing until the other ranks have also called it. Until then the operation
//! keeps the views, and no other work is put on the stream.

use super::collectives::{call, completed_by};
use super::endpoint::NcclPath;
use super::link::{NcclWork, SharedCommunicator};
use super::queue::NcclOperation;
use crate::device::cuda::enqueue::enqueue;
use crate::device::{DeviceQueue, SyncPoint, at};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::transport::native::payload;
use std::sync::Arc;

/// Collective that NCCL is enqueuing.
pub(super) struct NcclLaunch {
    pub(super) link: Arc<SharedCommunicator>,
    flight: Arc<NcclWork>,
}

impl NcclPath {
    /// Makes the NCCL stream wait for the work of the views' queues.
    ///
    /// # Errors
    /// The failure of the queue's work, if one is known: its results must not be sent.
    pub(super) fn prepare(
        &self,
        operation: &NcclOperation,
        link: Arc<SharedCommunicator>,
    ) -> Result<NcclLaunch> {
        let stream = self.stream()?;
        let (from, to) = operation.spans();
        if let Some((own, order)) = to.place() {
            order.before_write(&**own, SyncPoint::NcclBeforeWrite);
            if let Some((reader, _)) = from.place().filter(|(reader, _)| !Arc::ptr_eq(reader, own)) {
                at(SyncPoint::NcclInput, || own.wait_to_read(&reader.record()));
            }
            let event = own.record();
            at(SyncPoint::NcclOutput, || stream.wait(&event));
            if let Some(failure) = event.failure() {
                return Err(failure.into_error(own.device()));
            }
        }
        // From now on: NCCL enqueues on its own thread, and the device is not idle meanwhile.
        let flight = link.watch(operation.label, stream.record())?;
        Ok(NcclLaunch { link, flight })
    }

    /// Makes NCCL enqueue a collective.
    ///
    /// # Errors
    /// [`Error::System`] if NCCL refuses; the failure that has ended the communicator.
    pub(super) fn hand_over(&self, operation: &NcclOperation, link: &SharedCommunicator) -> Result<()> {
        let (from, to) = operation.spans();
        enqueue(&self.queue, Vec::new(), Vec::new(), (), |work| {
            link.call("let NCCL communicate", |comm| {
                // SAFETY: the memory is the device's, and the operation and then the stream keep it until the device is done
                // with it. Other queues wait meanwhile. Ranks have compared the lengths.
                unsafe { call(&operation.label.fingerprint, (&from, &to), comm, work.stream()) }
            })
        })
    }

    /// Makes the queues of the views wait for the collective, and completes the parts that NCCL does not carry out.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn complete(&self, operation: &mut NcclOperation, flight: &NcclWork) -> Result<()> {
        let (from, to) = operation.spans();
        enqueue(&self.queue, Vec::new(), Vec::new(), vec![from.clone(), to.clone()], |_| Ok(()))?;
        let done = flight.end()?;
        if let Some((own, order)) = to.place() {
            at(SyncPoint::NcclDone, || own.wait_to_read(&done));
            order.after_write();
        }
        if let Some((own, order)) = from.place() {
            order.after_read(own, self.stream()?);
        }
        let NcclOperation { label, members, output, .. } = operation;
        let bytes = payload(&label.fingerprint, members.count(), members.place());
        self.tally.notified(bytes, bytes);
        completed_by(&label.fingerprint, members.count()).map_or(Ok(()), |factor| output.scale(factor))
    }

    /// Returns the stream on which NCCL enqueues.
    fn stream(&self) -> Result<&Arc<dyn DeviceQueue>> {
        let missing = || Error::usage("NCCL has no queue", "report this defect of the path");
        self.queue.device().ok_or_else(missing)
    }

    /// Refuses memory that is not on this endpoint's GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not.
    pub(super) fn check_place(&self, span: &Span) -> Result<()> {
        let queue = span.queue();
        if queue.name() == self.queue.name() {
            return Ok(());
        }
        let what = format!("NCCL was to read or write memory of {} on {}", queue.name(), self.queue.name());
        Err(Error::usage(what, "put all buffers of the operation on this GPU"))
    }
}

impl NcclLaunch {
    /// Returns the watch of the work.
    pub(super) fn flight(&self) -> Arc<NcclWork> {
        Arc::clone(&self.flight)
    }
}
