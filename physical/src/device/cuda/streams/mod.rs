//! Streams: the order of work on a GPU, its events and times, and what watches its end.

pub(super) mod event;
pub(super) mod exchange;
pub(super) mod foreign;
pub(super) mod rounds;
pub(super) mod stream;
pub(super) mod sweeper;
pub(super) mod timestamp;
pub(super) mod watch;
