//! The training thread's records of the current trace.

use crate::trace::{Offset, Stamps, Timeline, TraceClock};
use std::cell::RefCell;

/// Recording of this rank, and the timestamps of its framework.
#[derive(Default)]
pub(in crate::engine) struct Traced {
    /// Trace that is being recorded.
    pub(in crate::engine) open: RefCell<Option<OpenTrace>>,
    /// Source of timestamps on the device of the framework, if it has one.
    pub(in crate::engine) stamps: Option<Stamps>,
}

/// The training thread's part of the current trace.
pub(in crate::engine) struct OpenTrace {
    pub(in crate::engine) clock: TraceClock,
    pub(in crate::engine) timeline: Timeline,
    /// Offsets of the clocks of all ranks at the beginning, on rank 0.
    pub(in crate::engine) first: Vec<Offset>,
}
