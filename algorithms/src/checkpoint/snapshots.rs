//! The state of the last steps in the memory of each rank, for trainings that continue without a restart when ranks die or
//! arrive.
//!
//! ```text
//! synchronous      every rank keeps its last two steps; all continue from the newest step that all who have any have, so
//!                  that they take back one step at most
//! asynchronous     every rank continues from its own newest step
//! records          as from a checkpoint of a different number of ranks (resize/): those of ranks that died are lost; ranks
//!                  that have none get them from the others
//! ```

use super::files::share;
use super::resize::SavedRanks;
use super::transfer;
use super::{OWN, file, resize};
use crate::engine::DataParallel;
use crate::record::{Record, all_or_none, gather_texts};
use hexagram_logical::{Communicator, Error, Result};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Steps from one snapshot to the next, if the algorithm has background work, which a snapshot has to complete.
const PERIOD: u64 = 16;

/// The state of the last steps of a training, on one rank, from which the ranks that are left continue together with new ones.
///
/// The memory for it is twice the size of the state, on the host.
///
/// ```
/// # use hexagram::algorithms::checkpoint::{Record, Snapshots};
/// # use hexagram::algorithms::DataParallel;
/// # use hexagram::logical::Result;
/// /// Trains until the members of the world change; call it again then, with an engine among the new members.
/// fn train(engine: &mut DataParallel, snapshots: &mut Snapshots) -> Result<()> {
///     let own = snapshots.load(engine)?;
///     let batch = own.map_or(Ok(0), |own| own.noted("batch"))?;
///     for batch in batch..1000 {
///         // … a step …
///         snapshots.keep(engine, || {
///             let mut own = Record::default();
///             own.note("batch", batch + 1);
///             own
///         })?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Default)]
pub struct Snapshots {
    /// In the order of time.
    kept: Vec<Snapshot>,
    era: u64,
}

/// State of one rank after one step.
struct Snapshot {
    about: About,
    record: Arc<Record>,
}

/// Place of a snapshot: era, step, and its rank among the members of that time. An era begins with each load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct About {
    era: u64,
    step: u64,
    rank: usize,
    ranks: usize,
}

impl Snapshots {
    /// Creates the memory of a rank, without any state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the state of the engine, and the record that the program adds, in place of those of the step before the last.
    /// Call it after each step, on every rank. Algorithms with background work, such as asynchronous ones, are kept in every
    /// 16th step only; the call is collective then.
    ///
    /// # Errors
    /// As [`Checkpoint::save`](crate::engine::Checkpoint::save).
    pub fn keep(&mut self, engine: &mut DataParallel, own: impl FnOnce() -> Record) -> Result<()> {
        if engine.algorithm().written().settle && !engine.steps().is_multiple_of(PERIOD) {
            return Ok(());
        }
        self.push(engine, own())
    }

    fn push(&mut self, engine: &mut DataParallel, own: Record) -> Result<()> {
        let mut record = engine.checkpoint().save_unchecked()?;
        record.absorb(OWN, own);
        let comm = engine.communicator();
        let about = About { era: self.era, step: engine.steps(), rank: comm.rank(), ranks: comm.size() };
        self.kept.push(Snapshot { about, record: Arc::new(record) });
        // Ranks that have not loaded yet continue from an earlier era. Once this one has made a step, all have.
        let present = self.kept.iter().filter(|snapshot| snapshot.about.era == self.era).count();
        if present >= 2 {
            self.kept.drain(..self.kept.len() - 2);
        }
        Ok(())
    }

    /// Loads the state of the newest step that the ranks have in common, and returns the record that the program added; `None`
    /// if no rank has kept any. A collective call, before the first step, of ranks that may have been members before.
    ///
    /// # Errors
    /// As [`Checkpoints::load`](super::Checkpoints::load).
    pub fn load(&mut self, engine: &mut DataParallel) -> Result<Option<Record>> {
        let comm = engine.communicator().clone();
        let lists = gather(&comm, &self.kept)?;
        self.era = lists.iter().flatten().map(|about| about.era).max().unwrap_or(0) + 1;
        let is_synchronous = engine.algorithm().trigram().synchronous;
        let Some(chosen) = Chosen::of(&lists, is_synchronous) else { return Ok(None) };
        let records = InMemory::gather(&comm, &self.kept, &chosen)?;
        let mut record = all_or_none(&comm, records.first().and_then(|record| record.copied()))?;
        let own = record.detach(OWN);
        if chosen.is_resized(comm.size()) {
            resize::load(engine, &records, record)?;
        } else {
            engine.checkpoint().load(record)?;
        }
        drop(records);
        self.push(engine, own.copied()?)?;
        Ok(Some(own))
    }
}

/// Returns the snapshots of all ranks. A collective call.
fn gather(comm: &Communicator, kept: &[Snapshot]) -> Result<Vec<Vec<About>>> {
    let line = |Snapshot { about: About { era, step, rank, ranks }, .. }: &Snapshot| {
        format!("{era} {step} {rank} {ranks}")
    };
    let texts = gather_texts(comm, &kept.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    let about = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
        let [era, step, rank, ranks] = numbers[..] else { return None };
        (rank < ranks).then_some(About { era, step, rank: rank as usize, ranks: ranks as usize })
    };
    Ok(texts.iter().map(|text| text.lines().filter_map(about).collect()).collect())
}

/// Snapshots from which the ranks continue.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    /// Number of ranks that have made them.
    ranks: usize,
    /// Snapshot of each present rank, if it has one of them.
    held: Vec<Option<About>>,
}

impl Chosen {
    /// Returns the newest snapshots that most ranks have; `None` if there are none.
    fn of(lists: &[Vec<About>], is_synchronous: bool) -> Option<Self> {
        let key = |about: &About| (about.era, if is_synchronous { about.step } else { 0 });
        let keys: BTreeSet<_> = lists.iter().flatten().map(key).collect();
        let held = |of: &(u64, u64)| -> Vec<Option<About>> {
            // The last one is the newest.
            lists.iter().map(|list| list.iter().rfind(|about| key(about) == *of).copied()).collect()
        };
        let most = |of: &(u64, u64)| (held(of).iter().flatten().count(), of.1, of.0);
        let held = held(&keys.into_iter().max_by_key(most)?);
        Some(Chosen { ranks: held.iter().flatten().next()?.ranks, held })
    }

    /// Returns the saved ranks that are left, in ascending order.
    fn present(&self) -> Vec<usize> {
        let ranks: BTreeSet<usize> = self.held.iter().flatten().map(|about| about.rank).collect();
        ranks.into_iter().collect()
    }

    fn is_resized(&self, size: usize) -> bool {
        self.ranks != size || self.present().len() != self.ranks
    }
}

/// The records of saved ranks that this rank reads.
struct InMemory {
    records: BTreeMap<usize, Arc<Record>>,
    share: Vec<usize>,
    is_copy: bool,
    lost: Vec<usize>,
}

impl InMemory {
    /// Copies the records of this rank's share that are on other ranks. A collective call.
    fn gather(comm: &Communicator, kept: &[Snapshot], chosen: &Chosen) -> Result<Self> {
        let present = chosen.present();
        let lost = (0..chosen.ranks).filter(|rank| present.binary_search(rank).is_err()).collect();
        let (share, is_copy) = match chosen.is_resized(comm.size()) {
            true => share(&present, (comm.rank(), comm.size())),
            false => (vec![comm.rank()], false),
        };
        let mine = chosen.held[comm.rank()];
        let mine = mine.and_then(|mine| kept.iter().find(|snapshot| snapshot.about == mine));
        let mut records: BTreeMap<usize, Arc<Record>> =
            mine.map(|Snapshot { about, record }| (about.rank, Arc::clone(record))).into_iter().collect();
        let lacking: Vec<usize> =
            share.iter().copied().filter(|saved| !records.contains_key(saved)).collect();
        let held: Vec<BTreeSet<usize>> =
            chosen.held.iter().map(|held| held.iter().map(|about| about.rank).collect()).collect();
        let transfers = transfer::plan(&transfer::gather_lists(comm, &lacking)?, &held);
        let own = mine.map(|snapshot| Arc::clone(&snapshot.record));
        let read = |_| {
            let record = own.as_ref().ok_or_else(|| lacks(comm.rank()))?;
            file::to_bytes(&"the state of a member", record).map(Cow::Owned)
        };
        transfer::make(comm, &transfers, read, |saved, bytes| {
            records.insert(saved, Arc::new(file::from_bytes(&"the state from another member", bytes)?));
            Ok(())
        })?;
        Ok(InMemory { records, share, is_copy, lost })
    }

    /// Returns the first record of the share.
    fn first(&self) -> Result<Arc<Record>> {
        self.read(self.share[0])
    }
}

impl SavedRanks for InMemory {
    fn own(&self) -> &[usize] {
        if self.is_copy { &[] } else { &self.share }
    }

    fn lost(&self) -> &[usize] {
        &self.lost
    }

    fn read(&self, saved: usize) -> Result<Arc<Record>> {
        self.records.get(&saved).cloned().ok_or_else(|| lacks(saved))
    }
}

fn lacks(rank: usize) -> Error {
    let what = format!("the state of rank {rank} is on no member");
    Error::usage(what, "continue from the last checkpoint")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about((era, step): (u64, u64), rank: usize) -> About {
        About { era, step, rank, ranks: 3 }
    }

    fn chosen(lists: &[Vec<About>], is_synchronous: bool) -> Vec<Option<(u64, u64)>> {
        let chosen = Chosen::of(lists, is_synchronous).unwrap();
        chosen.held.iter().map(|held| held.map(|about| (about.era, about.step))).collect()
    }

    #[test]
    fn synchronous_ranks_continue_from_the_newest_step_that_all_have() {
        let ahead = vec![about((1, 7), 0), about((1, 8), 0)];
        let behind = vec![about((1, 6), 2), about((1, 7), 2)];
        assert_eq!(
            chosen(&[ahead.clone(), vec![], behind.clone()], true),
            [Some((1, 7)), None, Some((1, 7))]
        );
        assert_eq!(chosen(&[ahead.clone(), behind.clone()], false), [Some((1, 8)), Some((1, 7))]);
        assert_eq!(chosen(&[behind.clone(), behind.clone()], true), [Some((1, 7)); 2]);
        assert_eq!(Chosen::of(&[vec![], vec![]], true), None);
    }

    #[test]
    fn a_load_that_not_all_have_finished_does_not_count() {
        let loaded = vec![about((1, 6), 0), about((1, 7), 0), about((2, 7), 0)];
        let not_yet = vec![about((1, 6), 2), about((1, 7), 2)];
        let new = vec![about((2, 7), 2)];
        assert_eq!(chosen(&[loaded.clone(), not_yet, new.clone()], true), [Some((1, 7)), Some((1, 7)), None]);
        // All have: the later era has the places of all.
        assert_eq!(chosen(&[loaded, vec![about((1, 7), 1), about((2, 7), 1)], new], true), [Some((2, 7)); 3]);
    }
}
