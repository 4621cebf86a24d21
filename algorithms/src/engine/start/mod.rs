//! The start of a training: all ranks agree on model and options, receive the state of rank 0, and create their
//! buckets. Between steps, ranks can change buckets and algorithm.
//!
//! | file | content |
//! |---|---|
//! | `agree` | agreement of all ranks on model and options |
//! | `compatibility` | checks that algorithm, optimizer and options fit each other |
//! | `initial` | the state of rank 0 for all ranks |
//! | `replan` | the final buckets after the first pass; the switch to another algorithm |

mod agree;
mod compatibility;
mod initial;
mod replan;

pub(super) use agree::{agree, are_alike, which_are_alike};
pub(super) use compatibility::{check_algorithm, check_groups, check_is_free, unfit, with_named_optimizer};
pub use initial::Initial;
