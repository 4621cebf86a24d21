//! Streams: the order of work on a GPU, its events and times, and the watch for its end.

pub(super) mod event;
pub(super) mod exchange;
pub(super) mod failure_watch;
pub(super) mod foreign;
pub(super) mod poll_loop;
pub(super) mod stream;
pub(super) mod sweeper;
pub(super) mod timestamp;
