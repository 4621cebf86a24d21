//! The binding over an NCCL, real or fake. Without one, or without as many GPUs, tests say that they are skipped.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod collectives;
mod gpus;
mod lifetime;
mod refusals;
