//! Tags: which message is which. Built here and nowhere else, so that two operations can never mix.
//!
//! A tag contains the communicator, the lane within it (one per bucket in flight), the sequence number of the
//! operation in that lane, and the step within the operation. Two messages between the same two ranks with equal tags
//! would belong to the same step of the same operation, which happens once.
//!
//! Messages with user tags do not belong to an operation of a lane: any number of them have the same tag, and tags
//! are unordered with respect to each other. They use the last lane exclusively, and the user tag instead of the
//! sequence number.

use crate::error::{Error, Result};
use std::fmt;

/// Identity of one message between two ranks; 16 bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    communicator: u32,
    lane: u16,
    step: u16,
    sequence: u64,
}

/// Lane of the messages that users tag.
const USERS: u16 = u16::MAX;

/// Length of a tag on the wire, in bytes.
pub(crate) const TAG_BYTES: usize = 16;

impl Tag {
    /// Names one message.
    ///
    /// # Errors
    /// [`Error::Usage`] if the lane is above 65 534, or the step above 65 535.
    #[inline]
    pub fn new(communicator: u32, lane: usize, sequence: u64, step: usize) -> Result<Self> {
        let lane = narrow("lane", lane, USERS - 1)?;
        Ok(Tag { communicator, lane, step: narrow("step", step, u16::MAX)?, sequence })
    }

    /// Creates the tag of messages with the user tag `tag`: those between two ranks are matched in the order of
    /// sending.
    pub fn of_user(communicator: u32, tag: u32) -> Self {
        Tag { communicator, lane: USERS, step: 0, sequence: tag.into() }
    }

    /// Returns the tag of another step of the same operation.
    ///
    /// # Errors
    /// Fails like [`Tag::new`].
    pub fn at_step(self, step: usize) -> Result<Self> {
        Ok(Tag { step: narrow("step", step, u16::MAX)?, ..self })
    }

    /// Returns the number of the operation in its lane, or the tag that a user gave.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns true if it belongs to the communicator of all ranks, on whose lanes backends may have native
    /// collectives.
    pub(crate) fn is_of_world(&self) -> bool {
        self.communicator == 0
    }

    /// Returns true if a user gave it.
    fn is_of_user(&self) -> bool {
        self.lane == USERS
    }

    /// Returns the lane, below 65 536.
    pub(crate) fn lane(&self) -> usize {
        self.lane.into()
    }

    /// Returns the tag of the same operation at step 0.
    pub(crate) fn operation(&self) -> Tag {
        Tag { step: 0, ..*self }
    }

    /// Returns the tag of the same lane at its first operation. Each user tag is a separate series.
    pub(crate) fn series(&self) -> Tag {
        if self.is_of_user() { *self } else { Tag { step: 0, sequence: 0, ..*self } }
    }

    /// Returns true if both tags belong to the same lane of the same communicator.
    pub(crate) fn same_lane(&self, other: &Tag) -> bool {
        self.series() == other.series()
    }

    pub(crate) fn to_bytes(self) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes[0..4].copy_from_slice(&self.communicator.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.lane.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.step.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; TAG_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, sequence @ ..] = *bytes;
        Tag {
            communicator: u32::from_le_bytes([a, b, c, d]),
            lane: u16::from_le_bytes([e, f]),
            step: u16::from_le_bytes([g, h]),
            sequence: u64::from_le_bytes(sequence),
        }
    }
}

#[inline]
fn narrow(what: &str, value: usize, most: u16) -> Result<u16> {
    u16::try_from(value).ok().filter(|value| *value <= most).ok_or_else(|| {
        let remedy = format!("use at most {} of them", u32::from(most) + 1);
        Error::usage(format!("{what} {value} does not fit in a tag"), remedy)
    })
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag { lane, step, sequence, .. } = self;
        if self.is_of_user() {
            return write!(f, "tag {sequence}");
        }
        write!(f, "operation #{sequence} (lane {lane}, step {step})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let tag = Tag::new(0xdead_beef, 65_534, u64::MAX - 3, 513).unwrap();
        assert_eq!(Tag::from_bytes(&tag.to_bytes()), tag);
        let tag = Tag::of_user(7, u32::MAX);
        assert_eq!(Tag::from_bytes(&tag.to_bytes()), tag);
    }

    #[test]
    fn tags_of_users_are_of_no_lane() {
        let tag = Tag::of_user(1, 0);
        assert!(
            tag.same_lane(&tag) && !tag.same_lane(&Tag::of_user(1, 1)) && !tag.same_lane(&Tag::of_user(5, 0))
        );
        assert!(!tag.same_lane(&Tag::new(1, 65_534, 0, 0).unwrap()));
        assert_eq!(tag.to_string(), "tag 0");
    }

    #[test]
    fn a_step_that_would_wrap_is_refused() {
        assert!(matches!(Tag::new(0, 0, 0, 65_536), Err(Error::Usage { .. })));
        assert!(matches!(Tag::new(0, 65_535, 0, 0), Err(Error::Usage { .. })));
    }
}
