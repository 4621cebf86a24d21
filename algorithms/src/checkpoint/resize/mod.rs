//! Loading a checkpoint that a different number of ranks has saved.
//!
//! ```text
//! n files are left, m ranks:   rank i reads the files i, i + m, i + 2m, …; rank i ≥ n the file i mod n
//! identical replicas           any file has the parameters and the optimizer state
//! other replicas               every rank begins with the mean of all n, weighted as the algorithm does
//! fields of the algorithm      as it declares them: equal on all ranks, averaged, or begun anew
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the procedure |
//! | `sums.rs` | sums over the files that a rank reads |
//! | `regroup.rs` | the fields of the algorithm |

mod regroup;
mod sums;

use super::choice::Choice;
use super::files::Files;
use crate::engine::DataParallel;
use crate::record::{Record, all_or_none};
use hexagram_logical::{Communicator, Error, Result};
use regroup::Survivors;
use sums::{Sum, mean};

/// Loads the files of a checkpoint that a different number of ranks has saved, or of which some are lost; `record` is the
/// content of the first. A collective call.
pub(super) fn load(
    engine: &mut DataParallel,
    choice: &Choice,
    files: &Files<'_>,
    mut record: Record,
) -> Result<()> {
    let comm = engine.communicator().clone();
    let is_mean = !engine.algorithm().keeps_replicas_identical();
    if is_mean && !engine.works_on_parameters() {
        let name = engine.algorithm().name();
        let what = format!("{name} keeps a replica for each rank, and the framework has the parameters");
        return Err(Error::usage(what, "start as many ranks as have saved the checkpoint"));
    }
    let mut survivors = Survivors::of(&comm, &record)?;
    if !choice.is_complete() {
        warn_of_lost(&comm, choice);
    }
    if engine.is_hierarchical() || !choice.is_complete() {
        survivors.give_up_chunks();
    }
    let mut sums = Sum::of_replicas(&record, is_mean)?;
    if is_mean || survivors.are_of_each_rank() {
        all_or_none(&comm, sums::add(files, &record, &mut sums, &mut survivors))?;
    }
    for (name, sum) in sums {
        mean(&comm, &mut record, &name, sum)?;
    }
    survivors.replace(&comm, &mut record)?;
    engine.checkpoint().load_resized(record)
}

/// Warns, on rank 0, of the ranks whose files are lost.
fn warn_of_lost(comm: &Communicator, choice: &Choice) {
    if comm.rank() == 0 {
        let Choice { name, .. } = choice;
        let lost = choice.lost();
        tracing::warn!(
            "the files of the ranks {lost:?} of {name} are lost, and their part of the state with them"
        );
    }
}
