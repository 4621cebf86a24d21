//! Refusals of kernels: the record of each stream in the device's memory, copies of it, and their meaning.
//!
//! A kernel that refuses its input writes a record that belongs to its stream (`Refusal` of `physical/cuda/device.cuh`). An
//! event recorded after such a kernel has a snapshot of the record, copied in stream order. A stream that waits for
//! the event in order to read runs a kernel that copies the snapshot to its own record. Taking the failure clears the
//! record. Streams that launch no such kernels have no record, and their events no snapshot.

use super::gpu::Gpu;
use super::kinds::{BYTES, CARRY, RefusalRecord};
use super::launch::Filled;
use super::memory::{DeviceAllocation, PinnedMemory};
use super::streams::event::CudaEvent;
use super::streams::stream::{CudaStream, StreamTail};
use crate::device::Failure;
use crate::device::operations::program::{Argument, Launch, Program};
use crate::error::Result;
use cudarc::driver::sys;
use std::sync::Arc;

/// A stream's record, and its state as the host knows it.
#[derive(Default)]
pub(super) struct Refusals {
    record: Option<DeviceAllocation>,
    /// Number of the event after the last work that may have written the record; 0 if it is known to be clean.
    suspect: u64,
    /// Number of times that the stream's failure was taken.
    pub(super) takes: u64,
}

/// A copy of a stream's record for an event.
pub(super) struct RefusalSnapshot(PinnedMemory);

impl RefusalSnapshot {
    /// Returns the refusal, once the event has happened.
    pub(super) fn read(&self, gpu: &Gpu) -> Option<Failure> {
        let address = self.0.address.cast::<RefusalRecord>();
        // SAFETY: the memory is the host's, initialised, larger than this and aligned to more, and the device has
        // written it before the event.
        gpu.kinds.failure(unsafe { address.read_volatile() })
    }
}

impl CudaStream {
    /// Returns a kernel's argument for refusals: the address of the record, the launch, and the number of elements
    /// before those of the launch.
    pub(super) fn refusing(
        &self,
        tail: &mut StreamTail,
        codec: &str,
        damage: &'static str,
        before: u64,
    ) -> Result<[u64; 3]> {
        let record = self.suspicious_record(tail)?;
        Ok([record, self.gpu.kinds.number(codec, damage), before])
    }

    /// Returns the address of the record for work that may write it.
    fn suspicious_record(&self, tail: &mut StreamTail) -> Result<u64> {
        let address = match &tail.refusals.record {
            Some(record) => record.address,
            None => self.keep_record(tail, DeviceAllocation::at_once(self, BYTES)?)?,
        };
        tail.refusals.suspect = tail.next();
        Ok(address)
    }

    /// Allocates the record if it is missing. If memory runs out, the wait for it happens without the stream's lock.
    ///
    /// # Errors
    /// As [`DeviceAllocation::new`].
    pub(super) fn make_record(self: &Arc<Self>) -> Result<()> {
        let has_record = |tail: &StreamTail| tail.refusals.record.is_some();
        if has_record(&self.tail()) {
            return Ok(());
        }
        let room = DeviceAllocation::new(self, BYTES)?;
        let _current = self.gpu.enter()?;
        let mut tail = self.tail();
        if has_record(&tail) {
            return Ok(());
        }
        self.keep_record(&mut tail, room).map(drop)
    }

    /// Takes memory for the record, clears it, where the context is current, and returns its address.
    fn keep_record(&self, tail: &mut StreamTail, record: DeviceAllocation) -> Result<u64> {
        self.clean(record.address)?;
        let address = record.address;
        tail.refusals.record = Some(record);
        Ok(address)
    }

    /// Clears a record, and launches nothing.
    fn clean(&self, record: u64) -> Result<()> {
        // SAFETY: the record is on the device and has this many bytes.
        let status = unsafe { sys::cuMemsetD8Async(record, 0, BYTES, self.handle.0) };
        self.gpu.expect(status, "clear the record of refusals")
    }

    /// Copies the record for an event that is recorded next, if anything may have been refused.
    pub(super) fn snapshot(&self, tail: &mut StreamTail) -> Option<Arc<RefusalSnapshot>> {
        let record = tail.refusals.record.as_ref().filter(|_| tail.refusals.suspect > 0)?.address;
        let copy = self.gpu.enter().and_then(|_current| {
            let copy = PinnedMemory::new(&self.gpu, BYTES)?;
            let to = copy.address.as_ptr().cast();
            // SAFETY: both places have the size of a record, and the stream holds them until it has copied.
            let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to, record, BYTES, self.handle.0) };
            self.gpu.expect(status, "copy the record of refusals")?;
            Ok(Arc::new(RefusalSnapshot(copy)))
        });
        match copy {
            Ok(snapshot) => {
                tail.hold(Arc::clone(&snapshot));
                Some(snapshot)
            }
            Err(error) => {
                tail.failure.get_or_insert(Failure::Fault(error));
                None
            }
        }
    }

    /// Notes the refusal in the snapshot of an event of this stream; the event has happened.
    pub(super) fn note(&self, snapshot: &RefusalSnapshot, number: u64, takes: u64) {
        let mut tail = self.tail();
        if tail.refusals.takes != takes {
            return;
        }
        match snapshot.read(&self.gpu) {
            Some(failure) => _ = tail.failure.get_or_insert(failure),
            None if tail.refusals.suspect <= number => tail.refusals.suspect = 0,
            None => (),
        }
    }

    /// Takes the known failure, and clears the record after all work so far.
    pub(super) fn take_failure(self: &Arc<Self>) -> Option<Failure> {
        if let Some(lost) = self.gpu.lost() {
            return Some(Failure::Fault(lost.clone()));
        }
        let mut tail = self.tail();
        let watched = self.pending_failures.take_error().map(Failure::Fault);
        let failure = tail.failure.take().or(watched)?;
        if tail.refusals.suspect > 0
            && let Some(record) = tail.refusals.record.as_ref().map(|record| record.address)
        {
            let cleaned = self.gpu.enter().and_then(|_current| self.clean(record));
            match cleaned {
                Ok(()) => {
                    tail.refusals.suspect = 0;
                    // Keeps the record until it is cleared.
                    tail.hold(Arc::clone(self));
                    self.let_sweep(&mut tail);
                }
                Err(error) => tail.failure = Some(Failure::Fault(error)),
            }
        }
        tail.refusals.takes += 1;
        Some(failure)
    }

    /// Takes over the failure of an event for which this stream waits.
    pub(super) fn carry(self: &Arc<Self>, event: &CudaEvent) {
        // In this order, as another thread may see in between that the event has happened.
        let unread = event.unread();
        if let Some(failure) = event.known_failure() {
            self.tail().failure.get_or_insert(failure);
            return;
        }
        self.pending_failures.take_over(event.pending_failures());
        let Some(snapshot) = unread else { return };
        let made = self.make_record();
        // Keeps the record until it is written.
        self.enqueue((Arc::clone(snapshot), Arc::clone(self)), 0, |(snapshot, _), tail| {
            made?;
            let record = self.suspicious_record(tail)?;
            let from = snapshot.0.address.as_ptr().expose_provenance() as u64;
            let arguments = vec![Argument::U64(from), Argument::U64(record)];
            let launch = Launch { entry: "refusal_carry", blocks: 1, threads: 1, arguments };
            self.launch(tail, &Program::of(&CARRY, launch), &Filled::default())
        });
    }
}
