//! The training thread's records of the current trace.

use crate::trace::{Offset, Stamps, Timeline, TraceClock};
use std::cell::RefCell;

/// Recording of this rank, and the timestamps of its framework.
#[derive(Default)]
pub(crate) struct Traced {
    /// Trace that is being recorded.
    pub(crate) open: RefCell<Option<OpenTrace>>,
    /// Source of timestamps on the device of the framework, if it has one.
    pub(super) stamps: Option<Stamps>,
}

/// The training thread's part of the current trace.
pub(crate) struct OpenTrace {
    pub(crate) clock: TraceClock,
    pub(super) timeline: Timeline,
    /// Offsets of the clocks of all ranks at the beginning, on rank 0.
    pub(crate) first: Vec<Offset>,
}
