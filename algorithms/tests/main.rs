//! The tests of the algorithms and of the engine, one module per subject; those of one function are with its code. They
//! are one program, since linking takes longer than compiling.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod asynchronous;
mod checkpoint;
mod dion;
mod engine;
#[cfg(feature = "cuda")]
mod framework;
mod gossip;
mod gradients;
mod optimizers;
mod options;
mod replicas;
mod rounds;
mod virtual_ranks;
