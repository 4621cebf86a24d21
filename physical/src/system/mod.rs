//! Services of the system for a process: variables, streams, limits, libraries and files in memory.

pub(crate) mod environment;
pub mod input;
#[doc(hidden)]
pub mod launcher;
pub(crate) mod library;
pub(crate) mod limits;
pub(crate) mod memory_file;
pub mod output;
pub(crate) mod process;
pub mod stdout;
