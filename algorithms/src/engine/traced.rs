//! What the training thread keeps of a trace that is being recorded.

use crate::trace::{Clock, Offset, Stamps, Timeline};
use std::cell::RefCell;

/// Recording of this rank, and what is known of its framework for that.
#[derive(Default)]
pub(super) struct Traced {
    /// Trace that is being recorded.
    pub(super) open: RefCell<Option<OpenTrace>>,
    /// Points in the work of the framework's device, if it has one.
    pub(super) stamps: Option<Stamps>,
}

/// Training thread's part of a trace under way.
pub(super) struct OpenTrace {
    pub(super) clock: Clock,
    pub(super) timeline: Timeline,
    /// Offsets of the ranks' clocks at the beginning, at rank 0.
    pub(super) first: Vec<Offset>,
}
