//! The board: what one rank tells everyone about its native collectives. One *lane* of it for each lane of operations.
//!
//! ```text
//! board = lane × LANES
//! lane  = slot slot counters
//! slot  = round:u64 tag:16 fingerprint:16 payload      an operation begins: which one, and its few bytes
//! counters = staged:u64 reduced:u64 gathered:u64 finished:u64 withdrawn:u64     how far the rank is with a long one
//! ```
//!
//! Rounds count the native operations of a lane. Round k is posted in slot k mod 2; a rank begins round k + 2 only after
//! everyone has posted round k + 1, which they do when they have read what they need of round k. So nobody ever writes
//! what somebody still reads.
//!
//! A rank that gives an operation up breaks this: it may write what it posted, and all memory that others read, at once.
//! So it withdraws first ([`ControlBlock::withdraw`]), and who has read looks at that last ([`ControlBlock::has_withdrawn`]). Between
//! them, a release fence before the writes and an acquire fence after the reads see to it that whoever has read something
//! that was written too late knows. As results are passed on, every count is published behind such a fence as well.

use super::atomic::SharedAtomic;
use super::bytes::SharedBytes;
use super::link::{LINE_PAIR, Segment};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::native::NOTICE_BYTES;
use crate::tag::{TAG_BYTES, Tag};
use crate::transport::Label;
use std::sync::atomic::Ordering;

/// Lanes with room on the board; operations on others are carried by messages.
pub(super) const LANES: usize = 32;
/// Payload that fits into a slot, in bytes.
pub(super) const PAYLOAD: usize = SLOT - HEAD;
/// Bytes of a whole board.
pub(super) const CONTROL_BLOCK: usize = LANES * LANE;

/// Bytes of a slot: room for 4 KiB. Beyond them, reading everyone's contribution costs more than a second exchange.
pub(super) const SLOT: usize = 4096 + 64;
/// Bytes of a label.
pub(super) const LABEL: usize = TAG_BYTES + FINGERPRINT_BYTES;
/// The first payload bytes share a cache line with what precedes them.
const HEAD: usize = 8 + LABEL;
const _: () = assert!(HEAD == NOTICE_BYTES);
const COUNTERS: usize = 2 * SLOT;
const LANE: usize = 2 * SLOT + LINE_PAIR;
/// Pieces of one operation, at most 2 to this power; the rest of a counter is the round.
const COUNT_BITS: u32 = 24;

/// Where a board is.
pub(super) trait ControlMemory {
    type Atomic: SharedAtomic;
    fn atomic(&self, offset: usize) -> &Self::Atomic;
    /// Stores bytes. Should somebody read them meanwhile, what it gets is any.
    fn store(&self, offset: usize, bytes: &[u8]);
    /// Copies bytes. Should they be written meanwhile, what it gets is any.
    fn load(&self, offset: usize, into: &mut [u8]);
}

/// One rank's board: its own to write, a peer's to read.
pub(super) struct ControlBlock<'a, P>(&'a P);

/// A label, as slots hold it.
pub(super) type LabelBytes = [u8; LABEL];

/// What a posted slot says; it counts only if it is [still there](Board::is_posted) after it was read.
pub(super) struct SlotView<'a, P> {
    page: &'a P,
    slot: usize,
}

impl<P: ControlMemory> SlotView<'_, P> {
    fn encode_label(&self) -> LabelBytes {
        let mut label = [0; LABEL];
        self.page.load(self.slot + 8, &mut label);
        label
    }

    pub(super) fn is_of(&self, label: &LabelBytes) -> bool {
        self.encode_label() == *label
    }

    /// `None` if the peer wrote nonsense.
    pub(super) fn label(&self) -> Option<Label> {
        parse_label(&self.encode_label())
    }

    /// Copies the first bytes of the payload; how many count is known from the label.
    pub(super) fn load(&self, into: &mut [u8]) {
        self.page.load(self.slot + HEAD, into);
    }
}

impl<'a> SlotView<'a, Segment> {
    /// The payload, and what there is behind it.
    pub(super) fn payload(&self) -> SharedBytes<'a> {
        self.page.control_bytes(self.slot + HEAD, PAYLOAD)
    }
}

fn parse_label(bytes: &[u8]) -> Option<Label> {
    let (tag, fingerprint) = bytes.split_first_chunk()?;
    let fingerprint = Fingerprint::from_bytes(fingerprint.first_chunk()?)?;
    Some(Label { tag: Tag::from_bytes(tag), fingerprint })
}

pub(super) fn encode_label(label: &Label) -> LabelBytes {
    let mut bytes = [0; LABEL];
    bytes[..TAG_BYTES].copy_from_slice(&label.tag.to_bytes());
    bytes[TAG_BYTES..].copy_from_slice(&label.fingerprint.to_bytes());
    bytes
}

impl<'a, P: ControlMemory> ControlBlock<'a, P> {
    pub(super) fn new(page: &'a P) -> Self {
        ControlBlock(page)
    }

    fn slot(lane: usize, round: u64) -> usize {
        assert!(lane < LANES, "a lane of the control block");
        lane * LANE + (round % 2) as usize * SLOT
    }

    /// Tells everyone that round `round` of `lane` begins here. Rounds count from 1.
    pub(super) fn post(&self, lane: usize, round: u64, label: &LabelBytes, payload: &[u8]) {
        let slot = Self::slot(lane, round);
        assert!(payload.len() <= PAYLOAD, "a payload fits into its slot");
        // For those who look without taking part: not to be read while it is written.
        self.0.atomic(slot).store(0, Ordering::Relaxed);
        P::Atomic::fence(Ordering::Release);
        self.0.store(slot + 8, label);
        self.0.store(slot + HEAD, payload);
        self.0.atomic(slot).store(round, Ordering::Release);
    }

    /// What the rank has posted for round `round`, once it has.
    pub(super) fn read(&self, lane: usize, round: u64) -> Option<SlotView<'a, P>> {
        let slot = Self::slot(lane, round);
        (self.0.atomic(slot).load(Ordering::Acquire) == round).then_some(SlotView { page: self.0, slot })
    }

    /// Whether what was read of round `round` before is what the rank had posted: whether it has not posted another since.
    pub(super) fn is_published(&self, lane: usize, round: u64) -> bool {
        P::Atomic::fence(Ordering::Acquire);
        self.0.atomic(Self::slot(lane, round)).load(Ordering::Relaxed) == round
    }

    /// The last operation that the rank has begun on `lane`, for those who wait for something else of it.
    pub(super) fn latest_native(&self, lane: usize) -> Option<Label> {
        let rounds = [0, 1].map(|round| self.0.atomic(Self::slot(lane, round)).load(Ordering::Acquire));
        let (round, slot) = if rounds[0] > rounds[1] { (rounds[0], 0) } else { (rounds[1], 1) };
        let slot = Self::slot(lane, slot);
        let mut label = [0; LABEL];
        self.0.load(slot + 8, &mut label);
        // Whole if the round has not changed meanwhile.
        let whole = round > 0 && self.is_published(lane, round);
        whole.then(|| parse_label(&label)).flatten()
    }

    /// How far the rank is in round `round`, by one of its counters.
    pub(super) fn progress(&self, counter: Counter, lane: usize, round: u64) -> u32 {
        unpack_progress(self.counter(counter, lane).load(Ordering::Acquire), round)
    }

    pub(super) fn set_progress(&self, counter: Counter, lane: usize, round: u64, value: u32) {
        // What is passed on with this may come of bytes that a peer wrote after it had withdrawn: whoever sees the one has
        // to see the other.
        P::Atomic::fence(Ordering::Acquire);
        self.counter(counter, lane).store(pack_progress(round, value), Ordering::Release);
    }

    /// Tells everyone that what they read of this rank in round `round` does not count, unless they have read it already.
    /// Called before the memory that they read is given back.
    pub(super) fn withdraw(&self, lane: usize, round: u64) {
        self.counter(Counter::Withdrawn, lane).store(pack_progress(round, 1), Ordering::Release);
        P::Atomic::fence(Ordering::Release);
    }

    /// Whether the rank may have written over anything that was read of it before in round `round`.
    pub(super) fn has_withdrawn(&self, lane: usize, round: u64) -> bool {
        P::Atomic::fence(Ordering::Acquire);
        unpack_progress(self.counter(Counter::Withdrawn, lane).load(Ordering::Relaxed), round) > 0
    }

    fn counter(&self, counter: Counter, lane: usize) -> &P::Atomic {
        self.0.atomic(lane * LANE + COUNTERS + 8 * counter as usize)
    }
}

/// What a rank counts of a long operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counter {
    /// Rounds whose contributions are on the rank's stage.
    Staged,
    /// Pieces whose result is complete in the rank's memory, or on its stage.
    Reduced,
    /// Rounds whose results the rank has copied from all stages.
    HostSegments,
    /// 1 once the rank has read all that it needs of its peers.
    Finished,
    /// 1 once the rank has given the operation up.
    Withdrawn,
}

/// A count that belongs to one round: the round in the upper bits, so that it never falls.
fn pack_progress(round: u64, count: u32) -> u64 {
    round << COUNT_BITS | u64::from(count)
}

/// The count of `round`: nothing before it, everything once the rank has gone on to a later one.
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
