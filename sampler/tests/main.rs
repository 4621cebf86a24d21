//! The tests of samplers and loader, one module a subject. They are one program, since linking takes longer than
//! compiling.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod balance;
mod datasets;
mod elastic;
mod golden;
mod loader;
mod parts;
mod properties;
mod refusals;
