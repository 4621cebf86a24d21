//! The control block: the state of one rank that all others read during native collectives. It has one lane for each
//! lane of operations.
//!
//! ```text
//! control block = lane × LANES
//! lane          = slot slot counters
//! slot          = round:u64 tag:16 fingerprint:16 payload      which operation begins, and its contribution if that is small
//! counters      = staged:u64 reduced:u64 gathered:u64 finished:u64 withdrawn:u64    progress of a long operation
//! ```
//!
//! Rounds count the native operations of a lane. Round k is published in slot k mod 2. A rank begins round k + 2 only
//! after every rank has published round k + 1, which a rank does when it has read all that it needs of round k. So no
//! rank writes a slot that another rank still reads.
//!
//! A rank that abandons an operation breaks this order: it may immediately write its slot, and all memory that others read. So
//! it withdraws first ([`ControlBlock::withdraw`]), and a reading rank checks for a withdrawal after its last read
//! ([`ControlBlock::has_withdrawn`]). A release fence before the writes and an acquire fence after the reads guarantee that a
//! rank that has read a late write finds the withdrawal. As results are passed on to other ranks, every counter is published
//! behind such a fence as well.

use super::atomic::SharedAtomic;
use super::bytes::SharedBytes;
use super::segment::{LINE_PAIR, Segment};
use crate::transport::Label;
use crate::transport::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::transport::native::NOTICE_BYTES;
use crate::transport::tag::{TAG_BYTES, Tag};
use std::sync::atomic::Ordering;

/// Number of lanes in the control block. Messages carry the operations of all other lanes.
pub(super) const LANES: usize = 32;
/// Maximum number of bytes of a payload in a slot.
pub(super) const PAYLOAD: usize = SLOT - HEAD;
/// Bytes of a control block.
pub(super) const CONTROL_BLOCK: usize = LANES * LANE;

/// Bytes of a slot, with 4 KiB for the payload. Beyond that, reading the contributions of all ranks costs more than a
/// second exchange.
pub(super) const SLOT: usize = 4096 + 64;
/// Bytes of a label.
pub(super) const LABEL: usize = TAG_BYTES + FINGERPRINT_BYTES;
/// Bytes before the payload. The first payload bytes share a cache line with them.
const HEAD: usize = 8 + LABEL;
const _: () = assert!(HEAD == NOTICE_BYTES);
/// Bytes of a cache line.
const LINE: usize = 64;
/// Maximum number of cache lines after the first that [`ControlBlock::vacate`] takes.
const VACATED_LINES: usize = 16;
/// Offset of the counters in a lane.
const COUNTERS: usize = 2 * SLOT;
/// Bytes of a lane.
const LANE: usize = 2 * SLOT + LINE_PAIR;
/// Bits of a progress value within its round; the round takes the bits above.
const COUNT_BITS: u32 = 24;

/// Memory of a control block.
pub(super) trait ControlMemory {
    /// Type of rounds and counters.
    type Atomic: SharedAtomic;
    /// Returns the atomic at `offset`.
    fn atomic(&self, offset: usize) -> &Self::Atomic;
    /// Stores bytes. A rank that loads them concurrently may get any values.
    fn store(&self, offset: usize, bytes: &[u8]);
    /// Loads bytes. If another rank writes them concurrently, the values are arbitrary.
    fn load(&self, offset: usize, into: &mut [u8]);
}

/// Control block of one rank: written by that rank, read by its peers.
pub(super) struct ControlBlock<'a, P>(&'a P);

/// Label as encoded in a slot.
pub(super) type LabelBytes = [u8; LABEL];

/// Contents of a published slot. They count only if the slot [is still published](ControlBlock::is_published) after
/// they were read.
pub(super) struct SlotView<'a, P> {
    page: &'a P,
    slot: usize,
}

impl<P: ControlMemory> SlotView<'_, P> {
    /// Copies the encoded label.
    fn encode_label(&self) -> LabelBytes {
        let mut label = [0; LABEL];
        self.page.load(self.slot + 8, &mut label);
        label
    }

    /// Returns true if the slot has this label.
    pub(super) fn is_of(&self, label: &LabelBytes) -> bool {
        // By words: comparing a copy waits until the stores of the copy are complete.
        label.chunks(8).enumerate().all(|(index, expected)| {
            let mut word = [0; 8];
            self.page.load(self.slot + 8 + 8 * index, &mut word);
            word == expected
        })
    }

    /// Decodes the label. Returns `None` if the peer wrote an invalid one.
    pub(super) fn label(&self) -> Option<Label> {
        parse_label(&self.encode_label())
    }

    /// Copies the first bytes of the payload. Its length follows from the label.
    pub(super) fn load(&self, into: &mut [u8]) {
        self.page.load(self.slot + HEAD, into);
    }
}

impl<'a> SlotView<'a, Segment> {
    /// Returns the payload, and the rest of the slot after it.
    pub(super) fn payload(&self) -> SharedBytes<'a> {
        self.page.control_bytes(self.slot + HEAD, PAYLOAD)
    }
}

/// Decodes a label.
fn parse_label(bytes: &[u8]) -> Option<Label> {
    let (tag, fingerprint) = bytes.split_first_chunk()?;
    let fingerprint = Fingerprint::from_bytes(fingerprint.first_chunk()?)?;
    Some(Label { tag: Tag::from_bytes(tag), fingerprint })
}

/// Encodes a label.
pub(super) fn encode_label(label: &Label) -> LabelBytes {
    let mut bytes = [0; LABEL];
    bytes[..TAG_BYTES].copy_from_slice(&label.tag.to_bytes());
    bytes[TAG_BYTES..].copy_from_slice(&label.fingerprint.to_bytes());
    bytes
}

impl<'a, P: ControlMemory> ControlBlock<'a, P> {
    /// Wraps the control block in `page`.
    pub(super) fn new(page: &'a P) -> Self {
        ControlBlock(page)
    }

    /// Returns the offset of the slot of round `round`.
    fn slot(lane: usize, round: u64) -> usize {
        assert!(lane < LANES, "a lane of the control block");
        lane * LANE + (round % 2) as usize * SLOT
    }

    /// Publishes that round `round` of `lane` begins on this rank. Rounds count from 1.
    pub(super) fn post(&self, lane: usize, round: u64, label: &LabelBytes, payload: &[u8]) {
        let slot = Self::slot(lane, round);
        assert!(payload.len() <= PAYLOAD, "a payload fits into its slot");
        // A rank that reads without taking part must not read the slot while it is written.
        self.0.atomic(slot).store(0, Ordering::Relaxed);
        P::Atomic::fence(Ordering::Release);
        self.0.store(slot + 8, label);
        self.0.store(slot + HEAD, payload);
        self.0.atomic(slot).store(round, Ordering::Release);
    }

    /// Clears the slot of round `round`, once all ranks have entered the round before it. By the time of
    /// [`ControlBlock::post`], which would otherwise wait for them, this core then owns the cache lines of the next operation,
    /// whose `payload` is assumed to have the size of the last one.
    pub(super) fn vacate(&self, lane: usize, round: u64, payload: usize) {
        let slot = Self::slot(lane, round);
        self.0.atomic(slot).store(0, Ordering::Relaxed);
        for start in (LINE - HEAD..payload).step_by(LINE).take(VACATED_LINES) {
            self.0.store(slot + HEAD + start, &[0]);
        }
    }

    /// Returns the slot of round `round` once the rank has published it.
    pub(super) fn read(&self, lane: usize, round: u64) -> Option<SlotView<'a, P>> {
        let slot = Self::slot(lane, round);
        (self.0.atomic(slot).load(Ordering::Acquire) == round).then_some(SlotView { page: self.0, slot })
    }

    /// Returns true if the slot still holds round `round`, so that the data read before is that of this round.
    pub(super) fn is_published(&self, lane: usize, round: u64) -> bool {
        P::Atomic::fence(Ordering::Acquire);
        self.0.atomic(Self::slot(lane, round)).load(Ordering::Relaxed) == round
    }

    /// Returns the last operation that the rank has begun on `lane`, for ranks that wait for a different operation of it.
    pub(super) fn latest_native(&self, lane: usize) -> Option<Label> {
        let rounds = [0, 1].map(|round| self.0.atomic(Self::slot(lane, round)).load(Ordering::Acquire));
        let (round, slot) = if rounds[0] > rounds[1] { (rounds[0], 0) } else { (rounds[1], 1) };
        let slot = Self::slot(lane, slot);
        let mut label = [0; LABEL];
        self.0.load(slot + 8, &mut label);
        // The label is complete if the round has not changed in between.
        let whole = round > 0 && self.is_published(lane, round);
        whole.then(|| parse_label(&label)).flatten()
    }

    /// Returns the progress of the rank in round `round` by one of its counters.
    pub(super) fn progress(&self, counter: Counter, lane: usize, round: u64) -> u32 {
        unpack_progress(self.counter(counter, lane).load(Ordering::Acquire), round)
    }

    /// Publishes the progress of this rank in round `round`.
    pub(super) fn set_progress(&self, counter: Counter, lane: usize, round: u64, value: u32) {
        // The published result may come from bytes that a peer wrote after it had withdrawn: a rank that sees this
        // store must see the withdrawal.
        P::Atomic::fence(Ordering::Acquire);
        self.counter(counter, lane).store(pack_progress(round, value), Ordering::Release);
    }

    /// Announces that memory of this rank in round `round` is no longer valid for ranks that have not finished reading
    /// it. Called before that memory is released.
    pub(super) fn withdraw(&self, lane: usize, round: u64) {
        self.counter(Counter::Withdrawn, lane).store(pack_progress(round, 1), Ordering::Release);
        P::Atomic::fence(Ordering::Release);
    }

    /// Returns true if the rank may have overwritten memory that was read from it before in round `round`.
    pub(super) fn has_withdrawn(&self, lane: usize, round: u64) -> bool {
        P::Atomic::fence(Ordering::Acquire);
        unpack_progress(self.counter(Counter::Withdrawn, lane).load(Ordering::Relaxed), round) > 0
    }

    /// Returns the atomic of a counter.
    fn counter(&self, counter: Counter, lane: usize) -> &P::Atomic {
        self.0.atomic(lane * LANE + COUNTERS + 8 * counter as usize)
    }
}

/// Counters of a rank's progress in a long operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counter {
    /// Number of rounds whose contributions are on the rank's stage.
    Staged,
    /// Number of pieces whose result is complete in the rank's memory, or on its stage.
    Reduced,
    /// Number of rounds whose results the rank has copied from all stages.
    Gathered,
    /// 1 once the rank has read all that it needs from its peers.
    Finished,
    /// 1 once the rank has given the operation up.
    Withdrawn,
}

/// Packs a progress value with its round in the upper bits, so that the number never falls.
fn pack_progress(round: u64, count: u32) -> u64 {
    round << COUNT_BITS | u64::from(count)
}

/// Unpacks the progress in `round`: 0 before that round, and the largest number once the rank has begun a later one.
fn unpack_progress(value: u64, round: u64) -> u32 {
    let count = value & ((1 << COUNT_BITS) - 1);
    // Rounds may wrap after years; their distance does not.
    match ((value - count).wrapping_sub(round << COUNT_BITS)) as i64 {
        0 => count as u32,
        distance if distance < 0 => 0,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_belong_to_their_round() {
        for round in [1, 7, (1 << 40) - 1, 1 << 40, (1 << 40) + 5] {
            let value = pack_progress(round, 3);
            assert_eq!(unpack_progress(value, round), 3);
            assert_eq!(unpack_progress(value, round + 1), 0, "a later round has not begun");
            assert_eq!(unpack_progress(value, round - 1), u32::MAX, "an earlier one is over");
        }
    }
}
