//! Refusals of kernels: the record of each stream in the device's memory, copies of it, and what they mean.
//!
//! A kernel that refuses writes a record beside its stream (`Refusal` of `cuda/device.cuh`). An event that is recorded
//! when such a kernel may have run has a snapshot of the record, copied in the order of the stream; a stream that waits
//! for the event in order to read lets a kernel carry the snapshot on to its own record. The record is cleared when
//! somebody takes the failure. Streams that launch nothing that refuses have no record, and their events no snapshot.

use super::event::CudaEvent;
use super::gpu::Gpu;
use super::launch::Filled;
use super::memory::{Pinned, Room};
use super::stream::{CudaStream, Tail};
use crate::codec::CodecError;
use crate::device::Failure;
use crate::device::program::{Argument, Code, Launch, Module, Program};
use crate::error::Result;
use crate::lock::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The record as it lies on the device: `Refusal` of `cuda/device.cuh`.
type Words = [u64; 4];

/// Size of the record in bytes.
const BYTES: usize = size_of::<Words>();

/// Bits of a launch's number that say what kind of launch it is.
const KIND_BITS: u32 = 16;

pub(super) static CARRY: Module = Module { name: "refusal", code: Code::Packed(hexagram_ptx::REFUSAL) };

/// Kinds of launches of a device that may refuse, each once.
#[derive(Default)]
pub(super) struct Kinds {
    launches: AtomicU64,
    list: Mutex<Vec<Kind>>,
}

/// A kind of launch: whose it is, and what is wrong with a message that it finds damaged.
#[derive(Clone, PartialEq)]
struct Kind {
    codec: String,
    damage: &'static str,
}

impl Kinds {
    /// Returns a number for a launch, greater than all before, from which its kind is known.
    fn number(&self, codec: &str, damage: &'static str) -> u64 {
        let mut list = lock(&self.list);
        let place = list.iter().position(|kind| kind.codec == codec && kind.damage == damage);
        let place = place.unwrap_or_else(|| {
            list.push(Kind { codec: codec.to_owned(), damage });
            list.len() - 1
        });
        let launch = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        launch << KIND_BITS | (place as u64 & ((1 << KIND_BITS) - 1))
    }

    /// Returns what a record says; `None` if nothing was refused.
    fn failure(&self, [launch, upper, before, lower]: Words) -> Option<Failure> {
        if launch == 0 {
            return None;
        }
        let place = launch & ((1 << KIND_BITS) - 1);
        let kind = lock(&self.list).get(place as usize).cloned();
        let Kind { codec, damage } = kind.unwrap_or(Kind { codec: "a codec".to_owned(), damage: "" });
        let first = !upper >> 16;
        let refusal = match (upper as u32) << 16 | lower as u32 & 0xffff {
            0 => CodecError::damaged(damage),
            bits => {
                let index = before.saturating_add(first) as usize;
                CodecError::NotFinite { index, value: f32::from_bits(bits) }
            }
        };
        Some(Failure::Refused { codec, refusal })
    }
}

/// A stream's record, and what is known of it.
#[derive(Default)]
pub(super) struct Refusals {
    record: Option<Room>,
    /// Number of the event after the last work that may have written the record; 0 if it is known to be clean.
    suspect: u64,
    /// Number of times that the stream's failure was taken.
    pub(super) takes: u64,
}

/// A copy of a stream's record for an event.
pub(super) struct Snapshot(Pinned);

impl Snapshot {
    /// Returns what was refused, once the event has happened.
    pub(super) fn read(&self, gpu: &Gpu) -> Option<Failure> {
        let address = self.0.address.cast::<Words>();
        // SAFETY: the memory is the host's, initialised, larger than this and aligned to more, and the device has
        // written it before the event.
        gpu.kinds.failure(unsafe { address.read_volatile() })
    }
}

impl CudaStream {
    /// Returns what a kernel is given to refuse with: the address of the record, the launch, and the number of elements
    /// of the memory before those of the launch.
    pub(super) fn refusing(
        &self,
        tail: &mut Tail,
        codec: &str,
        damage: &'static str,
        before: u64,
    ) -> Result<[u64; 3]> {
        let record = self.suspicious_record(tail)?;
        Ok([record, self.gpu.kinds.number(codec, damage), before])
    }

    /// Returns the address of the record for work that may write it.
    fn suspicious_record(&self, tail: &mut Tail) -> Result<u64> {
        let address = match &tail.refusals.record {
            Some(record) => record.address,
            None => self.keep_record(tail, Room::at_once(self, BYTES)?)?,
        };
        tail.refusals.suspect = tail.next();
        Ok(address)
    }

    /// Allocates the record, unless there is one: if memory runs out, that is waited for while nobody waits for the stream.
    ///
    /// # Errors
    /// As [`Room::new`].
    pub(super) fn make_record(self: &Arc<Self>) -> Result<()> {
        let has_record = |tail: &Tail| tail.refusals.record.is_some();
        if has_record(&self.tail()) {
            return Ok(());
        }
        let room = Room::new(self, BYTES)?;
        let _current = self.gpu.enter()?;
        let mut tail = self.tail();
        if has_record(&tail) {
            return Ok(());
        }
        self.keep_record(&mut tail, room).map(drop)
    }

    /// Takes memory for the record, clears it, where the context is current, and returns its address.
    fn keep_record(&self, tail: &mut Tail, record: Room) -> Result<u64> {
        self.clean(record.address)?;
        let address = record.address;
        tail.refusals.record = Some(record);
        Ok(address)
    }

    /// Clears a record: no launch, and nothing else.
    fn clean(&self, record: u64) -> Result<()> {
        // SAFETY: the record is there, on the device, and has as many bytes.
        let status = unsafe { (self.gpu.driver.cuMemsetD8Async)(record, 0, BYTES, self.handle) };
        self.gpu.expect(status, "clear what was refused")
    }

    /// Copies the record for an event that is recorded next, if anything may have been refused.
    pub(super) fn snapshot(&self, tail: &mut Tail) -> Option<Arc<Snapshot>> {
        let record = tail.refusals.record.as_ref().filter(|_| tail.refusals.suspect > 0)?.address;
        let copy = self.gpu.enter().and_then(|_current| {
            let copy = Pinned::new(&self.gpu, BYTES)?;
            let to = copy.address.as_ptr().cast();
            // SAFETY: both places have the size of a record, and the stream holds them until it has copied.
            let status = unsafe { (self.gpu.driver.cuMemcpyDtoHAsync_v2)(to, record, BYTES, self.handle) };
            self.gpu.expect(status, "copy what was refused")?;
            Ok(Arc::new(Snapshot(copy)))
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

    /// Notes what the snapshot of an event of this stream says, which has happened.
    pub(super) fn note(&self, snapshot: &Snapshot, number: u64, takes: u64) {
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

    /// Takes the failure that is known, and clears the record behind all work so far.
    pub(super) fn take_failure(self: &Arc<Self>) -> Option<Failure> {
        if let Some(lost) = self.gpu.lost() {
            return Some(Failure::Fault(lost.clone()));
        }
        let mut tail = self.tail();
        let watched = self.doubts.take_error().map(Failure::Fault);
        let failure = tail.failure.take().or(watched)?;
        if tail.refusals.suspect > 0
            && let Some(record) = tail.refusals.record.as_ref().map(|record| record.address)
        {
            let cleaned = self.gpu.enter().and_then(|_current| self.clean(record));
            match cleaned {
                Ok(()) => {
                    tail.refusals.suspect = 0;
                    // With the record, as long as that is cleared.
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
        // In this order, as somebody may see meanwhile that the event has happened.
        let unread = event.unread();
        if let Some(failure) = event.known_failure() {
            self.tail().failure.get_or_insert(failure);
            return;
        }
        self.doubts.take_over(event.doubts());
        let Some(snapshot) = unread else { return };
        let made = self.make_record();
        // With the record, as long as that is written.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_says_whose_it_is() {
        let kinds = Kinds::default();
        let first = kinds.number("qsgd", "too short");
        let second = kinds.number("top-k", "no such index");
        let third = kinds.number("qsgd", "too short");
        assert!(0 < first && first < second && second < third);
        assert!(kinds.failure([0; 4]).is_none());
        // As kernels write it: the upper and the lower half of the value, each below the element.
        let record = |launch, first: u64, bits: u32| {
            let [upper, lower] = [bits >> 16, bits & 0xffff].map(|half| !first << 16 | u64::from(half));
            [launch, upper, 100, lower]
        };
        let failure = kinds.failure(record(third, 5 << 32, f32::NAN.to_bits())).unwrap();
        let failure = failure.into_error("cuda:0").to_string();
        assert!(failure.contains("qsgd on cuda:0: element 21474836580 is NaN"), "{failure}");
        let failure = kinds.failure(record(first, 0, 0x7f80_0001)).unwrap().into_error("cuda:0").to_string();
        assert!(failure.contains("qsgd on cuda:0: element 100 is NaN"), "{failure}");
        let failure = kinds.failure(record(second, 3, 0)).unwrap().into_error("cuda:0").to_string();
        assert!(failure.contains("top-k on cuda:0") && failure.contains("no such index"), "{failure}");
    }
}
