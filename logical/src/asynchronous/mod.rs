//! Primitives in which no rank waits for another's step: windows, pair exchanges, servers, operations in the background.

#![allow(dead_code, reason = "what stands on the service comes next")]

mod background;
mod companion;
mod core;
mod service;
mod thread;
mod wire;

pub use background::{Background, Handle, Model, Outcome};
pub use service::{Pending, Service};
pub use wire::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES};

#[cfg(test)]
mod tests;
