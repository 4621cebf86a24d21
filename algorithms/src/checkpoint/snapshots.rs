//! The state of the last steps in the memory of each rank, for trainings that continue without a restart when ranks die or
//! arrive.
//!
//! ```text
//! identical replicas   every rank keeps its last two steps. No rank is more than one step ahead of another, so that all who
//!                      have kept any have one step in common: they take back one step at most
//! others               ranks may be many steps apart. They meet in every 16th step, and keep that and the one before
//! records              as from a checkpoint of a different number of ranks (resize/): those of ranks that died are lost;
//!                      new ranks receive them from the others
//! ```

use super::choice::absent;
use super::files::share;
use super::folder::MOST_RANKS;
use super::resize::SavedRanks;
use super::transfer;
use super::{OWN, file, resize};
use crate::engine::{CapturedState, DataParallel};
use crate::plugin::AnyAlgorithm;
use crate::record::{Record, all_or_none, gather_lists};
use hexagram_logical::{Communicator, Error, Result};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Steps from one snapshot to the next, if ranks have to meet for one.
const PERIOD: u64 = 16;

/// Prefix of the record with the folders that hold checkpoints of the training.
const KEPT_IN: &str = "kept-in";

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
    state: State,
}

/// State of the engine, record of the program, and folders with checkpoints: without names until a load needs them.
enum State {
    Captured { engine: Box<CapturedState>, own: Record, kept_in: Vec<PathBuf> },
    Recorded(Arc<Record>),
}

/// Place of a snapshot: era, step, and its rank among the members of that time. An era begins with each load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct About {
    era: u64,
    step: u64,
    rank: usize,
    ranks: usize,
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kept.iter().map(|snapshot| snapshot.about)).finish()
    }
}

impl Snapshots {
    /// Creates the memory of a rank, without any state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the state of the engine, and the record that the program adds, in place of those of the step before the last.
    /// Call it after each step, on every rank. Unless the algorithm keeps replicas identical and has no background work, only
    /// calls after a multiple of 16 steps keep a state, and these are collective calls.
    ///
    /// # Errors
    /// As [`Checkpoint::save`](crate::engine::Checkpoint::save).
    pub fn keep(&mut self, engine: &mut DataParallel, own: impl FnOnce() -> Record) -> Result<()> {
        if !Self::is_due(engine) {
            return Ok(());
        }
        if !is_in_step(engine.algorithm()) {
            engine.communicator().blocking().barrier()?;
        }
        self.push(engine, own())
    }

    /// Returns true if [`keep`](Self::keep) keeps a state after the last step of the engine.
    pub fn is_due(engine: &DataParallel) -> bool {
        is_in_step(engine.algorithm()) || engine.steps().is_multiple_of(PERIOD)
    }

    fn push(&mut self, engine: &mut DataParallel, own: Record) -> Result<()> {
        let state = Box::new(engine.checkpoint().capture(|| self.oldest())?);
        let state = State::Captured { engine: state, own, kept_in: engine.kept_in.borrow().clone() };
        let comm = engine.communicator();
        let about = About { era: self.era, step: engine.steps(), rank: comm.rank(), ranks: comm.size() };
        self.kept.push(Snapshot { about, state });
        // Ranks that have not loaded yet continue from an earlier era. Once this one has made a step, all have.
        if self.present() >= 2 {
            self.kept.drain(..self.kept.len() - 2);
        }
        Ok(())
    }

    /// Returns the number of snapshots of this era.
    fn present(&self) -> usize {
        self.kept.iter().filter(|snapshot| snapshot.about.era == self.era).count()
    }

    /// Removes and returns the state of the step before the last, for its memory; `None` if the ranks may need it. This rank
    /// has made another step, so that all have kept the last.
    fn oldest(&mut self) -> Option<CapturedState> {
        let oldest = (self.present() >= 2).then(|| self.kept.remove(0))?;
        match oldest.state {
            State::Captured { engine, .. } => Some(*engine),
            State::Recorded(_) => None,
        }
    }

    /// Loads the state of the newest step that the ranks have in common, and returns the record that the program added; `None`
    /// if no rank has kept any. A collective call, before the first step, of ranks that may have been members before.
    ///
    /// # Errors
    /// As [`Checkpoints::load`](super::Checkpoints::load).
    pub fn load(&mut self, engine: &mut DataParallel) -> Result<Option<Record>> {
        let comm = engine.communicator().clone();
        let mine: Vec<About> = self.kept.iter().map(|snapshot| snapshot.about).collect();
        let lists = gather_lists(&comm, &mine)?;
        self.era = lists.iter().flatten().map(|about| about.era).max().unwrap_or(0).saturating_add(1);
        let Some(chosen) = Chosen::of(&lists) else { return Ok(None) };
        let held = chosen.held[comm.rank()];
        let mine = self.kept.iter_mut().find(|snapshot| Some(snapshot.about) == held);
        let mine = mine.map(|Snapshot { about, state }| Ok((about.rank, state.record()?))).transpose();
        let records = InMemory::gather(&comm, all_or_none(&comm, mine)?, &chosen)?;
        // Those of other steps are of no use any more: all ranks have chosen the same.
        self.kept.retain(|snapshot| Some(snapshot.about) == held);
        let mut record = all_or_none(&comm, records.first().and_then(|record| record.copied()))?;
        let own = record.detach(OWN);
        // A new member continues the training of these folders, too.
        *engine.kept_in.borrow_mut() = folders_in(&record.detach(KEPT_IN))?;
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

impl State {
    /// Returns the state by name.
    fn record(&mut self) -> Result<Arc<Record>> {
        let record = match std::mem::replace(self, State::Recorded(Arc::default())) {
            State::Recorded(record) => record,
            State::Captured { engine, own, kept_in } => {
                let mut record = engine.into_record()?;
                record.absorb(OWN, own);
                record.absorb(KEPT_IN, of_folders(&kept_in)?);
                Arc::new(record)
            }
        };
        *self = State::Recorded(Arc::clone(&record));
        Ok(record)
    }
}

/// Returns a record of paths, as their bytes: they need not be UTF-8.
fn of_folders(folders: &[PathBuf]) -> Result<Record> {
    let mut record = Record::default();
    for (number, folder) in folders.iter().enumerate() {
        record.put(&number.to_string(), folder.as_os_str().as_bytes())?;
    }
    Ok(record)
}

/// Returns the paths in a record.
fn folders_in(record: &Record) -> Result<Vec<PathBuf>> {
    let path = |name: &String| Ok(OsString::from_vec(record.get(name)?).into());
    record.tensors.keys().map(path).collect()
}

/// Returns true if no rank can be more than one step ahead of another.
fn is_in_step(algorithm: &AnyAlgorithm) -> bool {
    algorithm.keeps_replicas_identical() && !algorithm.written().settle
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { era, step, rank, ranks } = self;
        write!(f, "{era} {step} {rank} {ranks}")
    }
}

impl FromStr for About {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
        let [era, step, rank, ranks] = numbers[..] else { return Err(()) };
        let about = About { era, step, rank: rank as usize, ranks: ranks as usize };
        if rank < ranks && ranks <= MOST_RANKS as u64 { Ok(about) } else { Err(()) }
    }
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
    /// Returns the newest snapshots that most ranks have; `None` if there are none. Those of an earlier era are the same state
    /// before its load.
    fn of(lists: &[Vec<About>]) -> Option<Self> {
        let held = |(step, era): (u64, u64)| -> Vec<Option<About>> {
            let is_it = |about: &&About| (about.step, about.era) == (step, era);
            lists.iter().map(|list| list.iter().find(is_it).copied()).collect()
        };
        let keys: BTreeSet<_> = lists.iter().flatten().map(|about| (about.step, about.era)).collect();
        let most = |key: &(u64, u64)| (held(*key).iter().flatten().count(), key.0, Reverse(key.1));
        let held = held(keys.into_iter().max_by_key(most)?);
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
    /// Copies the records of this rank's share that are on other ranks, to those that this rank has: its own record, and the
    /// saved rank of it. A collective call.
    fn gather(comm: &Communicator, mine: Option<(usize, Arc<Record>)>, chosen: &Chosen) -> Result<Self> {
        let present = chosen.present();
        let lost = absent(&present, chosen.ranks);
        let (share, is_copy) = match chosen.is_resized(comm.size()) {
            true => share(&present, (comm.rank(), comm.size())),
            false => (vec![comm.rank()], false),
        };
        let own = mine.as_ref().map(|(_, record)| Arc::clone(record));
        let mut records: BTreeMap<usize, Arc<Record>> = mine.into_iter().collect();
        let lacking: Vec<usize> =
            share.iter().copied().filter(|saved| !records.contains_key(saved)).collect();
        let held: Vec<BTreeSet<usize>> =
            chosen.held.iter().map(|held| held.iter().map(|about| about.rank).collect()).collect();
        let transfers = transfer::plan(&gather_lists(comm, &lacking)?, &held);
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

    fn chosen(lists: &[Vec<About>]) -> Vec<Option<(u64, u64)>> {
        let chosen = Chosen::of(lists).unwrap();
        chosen.held.iter().map(|held| held.map(|about| (about.era, about.step))).collect()
    }

    #[test]
    fn ranks_continue_from_the_newest_step_that_all_have() {
        let ahead = vec![about((1, 7), 0), about((1, 8), 0)];
        let behind = vec![about((1, 6), 2), about((1, 7), 2)];
        assert_eq!(chosen(&[ahead, vec![], behind.clone()]), [Some((1, 7)), None, Some((1, 7))]);
        assert_eq!(chosen(&[behind.clone(), behind]), [Some((1, 7)); 2]);
        assert_eq!(Chosen::of(&[vec![], vec![]]), None);
    }

    #[test]
    fn a_load_that_not_all_have_finished_does_not_count() {
        let loaded = vec![about((1, 6), 0), about((1, 7), 0), about((2, 7), 0)];
        let not_yet = vec![about((1, 6), 2), about((1, 7), 2)];
        let new = vec![about((2, 7), 2)];
        assert_eq!(chosen(&[loaded.clone(), not_yet, new.clone()]), [Some((1, 7)), Some((1, 7)), None]);
        // All have.
        assert_eq!(chosen(&[loaded, vec![about((1, 7), 1), about((2, 7), 1)], new]), [Some((2, 7)); 3]);
    }
}
