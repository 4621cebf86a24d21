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

use crate::engine::DataParallel;
use crate::record::{Record, all_or_none};
use hexagram_logical::{Error, Result};
use regroup::Survivors;
use std::sync::Arc;
use sums::{Sum, mean};

/// Records of the saved ranks of one checkpoint, on one rank.
pub(super) trait SavedRanks {
    /// Returns the saved ranks whose records this rank reads and no other.
    fn own(&self) -> &[usize];

    /// Returns the saved ranks without a record.
    fn lost(&self) -> &[usize];

    /// Returns the record of a saved rank.
    ///
    /// # Errors
    /// If it is lacking or damaged.
    fn read(&self, saved: usize) -> Result<Arc<Record>>;
}

/// Loads the records of a different number of ranks, or those that are left; `record` is the first that this rank reads. A
/// collective call.
pub(super) fn load(engine: &mut DataParallel, saved: &dyn SavedRanks, mut record: Record) -> Result<()> {
    let comm = engine.communicator().clone();
    let is_mean = !engine.algorithm().keeps_replicas_identical();
    if is_mean && !engine.works_on_parameters() {
        let name = engine.algorithm().name();
        let what = format!("{name} keeps a replica for each rank, and the framework has the parameters");
        return Err(Error::usage(what, "start as many ranks as have saved the checkpoint"));
    }
    let mut survivors = Survivors::of(&comm, &record)?;
    if engine.is_hierarchical() || !saved.lost().is_empty() {
        survivors.give_up_chunks();
    }
    let mut sums = Sum::of_replicas(&record, is_mean)?;
    if is_mean || survivors.are_of_each_rank() {
        all_or_none(&comm, sums::add(saved, &record, &mut sums, &mut survivors))?;
    }
    for (name, sum) in sums {
        mean(&comm, &mut record, &name, sum)?;
    }
    survivors.replace(&comm, &mut record)?;
    engine.checkpoint().load_resized(record)
}
