//! Options of every algorithm: as text, from code, in checkpoints, and out of their ranges. Each file is a module here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod options_of_a_checkpoint;
mod out_of_range;
mod spelling;
