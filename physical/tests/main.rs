//! The tests of the physical layer that need nothing private, one module a subject. They are one program, since linking
//! takes longer than compiling.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod crowd;
mod descriptors;
mod flood;
mod host_access;
mod rejoin;
mod tcp_only;
mod transport;
