//! The loader's promises, in the order of its documentation.
#![allow(clippy::unwrap_used)]

#[path = "loader/async.rs"]
mod asynchronous;
#[path = "loader/failures.rs"]
mod failures;
#[path = "loader/iterable.rs"]
mod iterable;
#[path = "loader/memory.rs"]
mod memory;
#[path = "loader/options.rs"]
mod options;
#[path = "loader/order.rs"]
mod order;
#[path = "loader/resume.rs"]
mod resume;
#[path = "loader/support.rs"]
mod support;
#[path = "loader/threads.rs"]
mod threads;
