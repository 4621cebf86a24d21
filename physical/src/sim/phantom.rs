//! Phantom: a device whose memory has sizes and no content. Use it to simulate more than the memory of this machine.
//!
//! Buffers on it can be of any size. Arithmetic on them only takes the time given by [`Rates`](super::Rates), and
//! messages of them carry their size. Reads of the elements return zeros.

use crate::device::codec::Codec;
use crate::device::{Allocation, Device, DeviceQueue, Event, Failure, Kernel, Queue};
use crate::error::Result;
use crate::memory::dtype::ReduceOp;
use crate::memory::{ALIGNMENT, ReadView, Span, WriteView};
use crate::runtime::{Work, charge};
use crate::transport::Bell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Name of the device.
const NAME: &str = "phantom";

/// The device whose memory has sizes only.
///
/// ```
/// use hexagram_physical::{Buffer, DType, Device};
/// use hexagram_physical::sim::Phantom;
///
/// let terabyte = Buffer::zeroed_on(&Phantom.queue()?, DType::F32, 1 << 38)?;
/// terabyte.write_all()?.scale(2.0)?;
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Phantom;

impl Device for Phantom {
    fn name(&self) -> &str {
        NAME
    }

    fn queue(&self) -> Result<Queue> {
        Ok(Queue::of(Arc::new(PhantomQueue)))
    }
}

/// Queue of the device: all work is done when it is asked for, as on the host.
struct PhantomQueue;

impl DeviceQueue for PhantomQueue {
    fn device(&self) -> &str {
        NAME
    }

    fn another(&self) -> Result<Queue> {
        Phantom.queue()
    }

    fn has_content(&self) -> bool {
        false
    }

    fn alloc(&self, _: usize) -> Result<Allocation> {
        // Aligned, not null, and never dereferenced.
        let address = NonNull::<u8>::dangling().map_addr(|_| ALIGNED);
        Ok(Allocation { address, keeper: Arc::new(()) })
    }

    fn copy_up(&self, from: ReadView, _: Span) {
        charge(|| Work::Copy { bytes: from.byte_len() });
    }

    fn copy_down(&self, from: Span, mut to: WriteView) {
        charge(|| Work::Copy { bytes: from.byte_len() });
        to.bytes_mut().fill(0);
    }

    fn clear(&self, to: Span) {
        charge(|| Work::Fill { bytes: to.byte_len() });
    }

    fn copy(&self, _: Span, to: Span) {
        charge(|| Work::Copy { bytes: to.byte_len() });
    }

    fn reduce(&self, _: ReduceOp, _: Span, to: Span) {
        charge(|| Work::Reduce { bytes: to.byte_len() });
    }

    fn scale(&self, _: f64, to: Span) {
        charge(|| Work::Scale { bytes: to.byte_len() });
    }

    fn add_scaled(&self, _: f64, _: Span, to: Span) {
        charge(|| Work::Reduce { bytes: to.byte_len() });
    }

    fn weighted_sum(&self, terms: Vec<(f64, Option<Span>)>, to: Span) {
        charge(|| Work::WeightedSum { terms: terms.len(), bytes: to.byte_len() });
    }

    fn encode(&self, codec: &dyn Codec, from: Span, _: Span, _: u64) -> bool {
        charge(|| Work::Encode { codec: codec.name(), elements: from.len() });
        true
    }

    fn decode(&self, codec: &dyn Codec, _: Span, _: Option<f32>, to: Span) -> bool {
        charge(|| Work::Decode { codec: codec.name(), elements: to.len() });
        true
    }

    fn runs(&self, _: &dyn Kernel) -> bool {
        true
    }

    fn run(&self, _: &Arc<dyn Kernel>, reads: Vec<Span>, writes: Vec<Span>) -> bool {
        charge(|| Work::Kernel { bytes: reads.iter().chain(&writes).map(Span::byte_len).sum() });
        true
    }

    fn record(&self) -> Arc<dyn Event> {
        Arc::new(PastEvent)
    }

    fn wait(&self, _: &Arc<dyn Event>) {}

    fn wait_to_read(&self, _: &Arc<dyn Event>) {}

    fn take_failure(&self) -> Option<Failure> {
        None
    }
}

/// Address of all memory of the device.
const ALIGNED: std::num::NonZeroUsize = std::num::NonZeroUsize::new(ALIGNMENT).unwrap();

/// Event that has happened.
struct PastEvent;

impl Event for PastEvent {
    fn has_happened(&self) -> bool {
        true
    }

    fn wait(&self, _: Duration) -> bool {
        true
    }

    fn failure(&self) -> Option<Failure> {
        None
    }

    fn ring(&self, bell: Arc<dyn Bell>) {
        bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;
    use crate::memory::dtype::DType;

    #[test]
    fn memory_is_of_any_size_and_shows_zeros() {
        let queue = Phantom.queue().unwrap();
        let many = Buffer::zeroed_on(&queue, DType::F32, 1 << 40).unwrap();
        let other = many.copied().unwrap();
        many.write_all().unwrap().reduce(ReduceOp::Sum, &other.read_all().unwrap()).unwrap();
        let few = Buffer::from_slice_on(&queue, &[1.0f32, 2.0]).unwrap();
        assert_eq!(*few.host::<f32>().unwrap(), [0.0, 0.0]);
        queue.check().unwrap();
    }
}
