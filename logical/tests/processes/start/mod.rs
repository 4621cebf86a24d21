//! Jobs that cannot start, and jobs whose ranks find each other with difficulty, as real processes: the final message
//! of each rank.

mod culprits;
mod names;
mod others;
pub(super) mod ranks;
