//! The steps of centralized primitives, in terms of send, receive and reduce. Each primitive chooses by the size of its
//! buffer.
//!
//! | file | content |
//! |---|---|
//! | `ring` | reduce-scatter and all-gather around a ring: large buffers |
//! | `halving_doubling` | all-reduce in few, large steps: medium buffers |
//! | `exchange` | all-reduce of a few bytes, which every rank reduces itself |
//! | `recursive_gather` | all-gather of small blocks |

mod exchange;
mod halving_doubling;
pub(super) mod recursive_gather;
mod ring;

pub(super) use halving_doubling::HalvingDoubling;
pub(super) use ring::RingLayout;
pub(crate) use ring::{AHEAD, SEGMENT};
