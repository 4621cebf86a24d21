//! Loading a checkpoint that a different number of ranks has saved.
//!
//! ```text
//! n ranks have saved, m load:  rank i reads the files of the ranks i, i + m, i + 2m, …; rank i ≥ n that of rank i mod n
//! identical replicas           any file has the parameters and the optimizer state
//! other replicas               every rank begins with the mean of all n, weighted as the algorithm does
//! fields of the algorithm      as it declares them: equal on all ranks, averaged, or begun anew
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the procedure |
//! | `files.rs` | the files that a rank reads, and their sums |
//! | `regroup.rs` | the fields of the algorithm |

mod files;
mod regroup;

use super::folder::{Folder, Name};
use super::{OWN, file, of_one_save};
use crate::engine::DataParallel;
use crate::record::{Record, all_or_none};
use files::{Shares, Sum, mean};
use hexagram_logical::{Error, ReduceOp, Result};
use regroup::Survivors;

/// Loads the checkpoint `name`, which `saved` ranks have saved. Returns the records that the program added.
pub(super) fn load(
    engine: &mut DataParallel,
    folder: &Folder<'_>,
    (name, saved): (Name, usize),
    fits: impl FnOnce(&Record) -> Result<()>,
) -> Result<Record> {
    let comm = engine.communicator().clone();
    let is_mean = !engine.algorithm().keeps_replicas_identical();
    if is_mean && !engine.works_on_parameters() {
        let name = engine.algorithm().name();
        let what = format!("{name} keeps a replica for each rank, and the framework has the parameters");
        return Err(Error::usage(what, "start as many ranks as have saved the checkpoint"));
    }
    let shares = Shares::new(folder, name, saved, &comm);
    let mut has_all = [i32::from(shares.are_here())];
    comm.blocking().all_reduce(&mut has_all, ReduceOp::Min)?;
    let has_all = has_all == [1];
    let path = if is_mean || has_all { shares.own() } else { shares.any() };
    let mut record = all_or_none(&comm, file::read(&path))?;
    of_one_save(&comm, &path, &record)?;
    let own = record.detach(OWN);
    all_or_none(&comm, fits(&own))?;
    let mut survivors = Survivors::of(&comm, &record)?;
    if engine.is_hierarchical() {
        survivors.give_up_chunks();
    }
    if !has_all && !is_mean && survivors.are_of_each_rank() {
        tracing::warn!(
            "the files of some ranks are missing in {}: what the algorithm has kept for each rank begins anew",
            path.display()
        );
        survivors.give_up_own();
    }
    let mut sums = Sum::of_replicas(&record, is_mean)?;
    if is_mean || survivors.are_of_each_rank() {
        all_or_none(&comm, shares.read(&record, &mut sums, &mut survivors))?;
    }
    for (name, sum) in sums {
        mean(&comm, &mut record, &name, sum)?;
    }
    survivors.replace(&comm, &mut record)?;
    engine.checkpoint().load_resized(record)?;
    Ok(own)
}
