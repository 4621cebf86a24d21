//! Kinds of launches that may refuse, and the meaning of the record that their kernels write.

use crate::device::Failure;
use crate::device::codec::CodecError;
use crate::device::operations::program::{Code, Module};
use crate::waiting::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The layout of the record on the device: `Refusal` of `physical/cuda/device.cuh`.
pub(super) type RefusalRecord = [u64; 4];

/// Size of the record in bytes.
pub(super) const BYTES: usize = size_of::<RefusalRecord>();

/// Bits of a launch's number for the kind of launch.
const KIND_BITS: u32 = 16;

pub(super) static CARRY: Module = Module { name: "refusal", code: Code::Packed(hexagram_ptx::REFUSAL) };

/// Kinds of launches of a device that may refuse, each once.
#[derive(Default)]
pub(super) struct Kinds {
    launches: AtomicU64,
    list: Mutex<Vec<LaunchKind>>,
}

/// A kind of launch: the codec, and the text about a damaged message.
#[derive(Clone, PartialEq)]
struct LaunchKind {
    codec: String,
    damage: &'static str,
}

impl Kinds {
    /// Returns a number for a launch, greater than all before, that also encodes its kind.
    pub(super) fn number(&self, codec: &str, damage: &'static str) -> u64 {
        let mut list = lock(&self.list);
        let place = list.iter().position(|kind| kind.codec == codec && kind.damage == damage);
        let place = place.unwrap_or_else(|| {
            list.push(LaunchKind { codec: codec.to_owned(), damage });
            list.len() - 1
        });
        let launch = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        launch << KIND_BITS | (place as u64 & ((1 << KIND_BITS) - 1))
    }

    /// Returns the failure in a record; `None` if nothing was refused.
    pub(super) fn failure(&self, [launch, upper, before, lower]: RefusalRecord) -> Option<Failure> {
        if launch == 0 {
            return None;
        }
        let place = launch & ((1 << KIND_BITS) - 1);
        let kind = lock(&self.list).get(place as usize).cloned();
        let LaunchKind { codec, damage } =
            kind.unwrap_or(LaunchKind { codec: "a codec".to_owned(), damage: "" });
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
