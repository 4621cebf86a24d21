//! Primitives in which no rank waits for another's step: windows, pair exchanges, servers, operations in the background.

mod background;
mod companion;

pub use background::{Background, Handle, Model, Outcome};
