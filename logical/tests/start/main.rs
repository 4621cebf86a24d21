//! Jobs that cannot start, and jobs whose ranks find each other with difficulty, as real processes: what every one of
//! them says in the end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod culprits;
#[allow(dead_code, reason = "shared with the tests of failures")]
#[path = "../failures/hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "shared with the tests of failures")]
#[path = "../failures/job.rs"]
mod job;
mod names;
mod others;
mod ranks;
