//! The loader's guarantees, in the order of its documentation.
mod asynchronous;
mod failures;
mod iterable;
mod memory;
mod options;
mod order;
mod restarts;
mod resume;
mod support;
mod threads;
