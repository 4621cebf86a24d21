//! The device under test: the host, or [`Late`] where `HEXAGRAM_TEST_DEVICE` is `late`, or `late:7` for another seed.
//!
//! A test that makes its buffers here runs on either, and has to see the same bits.

use super::fail;
use super::late::Late;
use crate::device::Queue;
use crate::dtype::{DType, Element};
use crate::environment::variable;
use crate::memory::Buffer;
use std::cell::RefCell;
use std::sync::LazyLock;

/// Queues among which each thread deals out its buffers, so that they have to wait for each other.
const QUEUES: usize = 3;

/// `None` is the host.
static LATE: LazyLock<Option<Late>> = LazyLock::new(|| {
    let name = variable("HEXAGRAM_TEST_DEVICE")?;
    let seed = match name.strip_prefix("late") {
        Some("") => Some(1),
        Some(seed) => seed.strip_prefix(':').and_then(|seed| seed.parse().ok()),
        None if name == "host" => return None,
        None => None,
    };
    let Some(seed) = seed else {
        fail(format!("HEXAGRAM_TEST_DEVICE={name} is none of host, late, late:SEED"))
    };
    Some(Late::new(seed))
});

thread_local! {
    static OWN: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
}

/// Returns a queue of the device under test: one of three of this thread in turn.
pub fn queue() -> Queue {
    let Some(late) = &*LATE else { return Queue::host() };
    OWN.with_borrow_mut(|own| {
        if own.len() < QUEUES {
            own.push(late.queue());
        } else {
            own.rotate_left(1);
        }
        own.last().cloned().unwrap_or_default()
    })
}

/// Returns a buffer of `elements` on the device under test, which is the host's memory unless `HEXAGRAM_TEST_DEVICE`
/// names another.
///
/// # Panics
/// If memory runs out.
pub fn buffer<T: Element>(elements: &[T]) -> Buffer {
    Buffer::from_slice_on(&queue(), elements).unwrap_or_else(|error| fail(error))
}

/// Returns `len` zeroed elements on the device under test; see [`buffer`].
///
/// # Panics
/// As [`buffer`].
pub fn zeroed(dtype: DType, len: usize) -> Buffer {
    Buffer::zeroed_on(&queue(), dtype, len).unwrap_or_else(|error| fail(error))
}
