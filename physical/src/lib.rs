//! hexagram's physical layer: bytes between the ranks of one world.

pub mod dtype;
pub mod error;
pub mod fingerprint;
pub mod tag;

pub use dtype::{DType, Element, ReduceOp};
pub use error::{Error, Peer, Result};
