//! The tests of the program `hexagram`, one module a command. They are one program, since linking takes longer than
//! compiling.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod advise;
mod bench;
mod check;
mod denied;
mod elastic;
mod faults;
mod harness;
mod node_restarts;
mod nodes;
mod output;
mod restart;
mod run;
mod run_logs;
mod sample;
mod simulate;
mod step;
