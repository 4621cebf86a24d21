//! Registered memory: whoever takes it has it to himself.

use super::queue;
use crate::device::cuda::CudaQueue;
use crate::device::cuda::tests::watched::Word;
use crate::device_paths::ipc::memory::Exports;
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use std::sync::Arc;

#[test]
fn memory_that_comes_back_unused_may_be_written_by_another_queue_at_once() {
    let Some(own) = queue() else { return };
    let other = own.another().unwrap();
    let exports = Arc::new(Exports::default());
    // Work of the first queue is not done before the end.
    let word = Word::new(&own);
    word.wait_on(&own);
    let address = |bucket: &crate::device_paths::ipc::memory::RegisteredMemory| bucket.notice(0).address;
    let first = exports.take(CudaQueue::of(&own).unwrap(), 4000).unwrap();
    let place = address(&first);
    // An operation was cancelled before it was enqueued.
    drop(first);
    let second = exports.take(CudaQueue::of(&other).unwrap(), 4000).unwrap();
    assert_eq!(address(&second), place);
    let pointer = std::ptr::NonNull::new(std::ptr::without_provenance_mut(place as usize)).unwrap();
    // SAFETY: the bucket has as many bytes of the device's memory, which nobody else has.
    let numbers =
        unsafe { Buffer::over_foreign(&other, pointer, DType::F32, 1000, Arc::new(second)) }.unwrap();
    numbers.write_all().unwrap().copy_from_bytes(bytemuck::cast_slice(&[1.0f32; 1000])).unwrap();
    other.check().unwrap();
    word.set(1);
    own.check().unwrap();
    assert_eq!(*numbers.host::<f32>().unwrap(), [1.0; 1000]);
}
