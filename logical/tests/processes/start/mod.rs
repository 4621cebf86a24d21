//! Jobs that cannot start, and jobs whose ranks find each other with difficulty, as real processes: what every one of
//! them says in the end.

mod culprits;
mod names;
mod others;
pub(super) mod ranks;
