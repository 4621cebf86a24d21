//! Checkpoints: the complete state of a training, saved so that the next steps equal those of an uninterrupted run, bit
//! for bit, if the algorithm is deterministic.
//!
//! ```no_run
//! # use hexagram::algorithms::checkpoint::{Checkpoints, Record};
//! # fn train(engine: &mut hexagram::algorithms::DataParallel) -> hexagram::logical::Result<()> {
//! let checkpoints = Checkpoints::new("runs/digits");
//! let mut epoch = 0;
//! if let Some(own) = checkpoints.load(engine)? {
//!     epoch = own.noted("epoch")?;
//! }
//! for epoch in epoch..10 {
//!     // … train …
//!     let mut own = Record::default();
//!     own.note("epoch", epoch + 1);
//!     checkpoints.save(engine, own)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each rank writes one file in the safetensors format: the engine's part ([`Checkpoint::save`]) and, below `own/`, the
//! records that the program adds. A checkpoint is a directory `step-000123`, which is given that name only when every
//! rank of the job has written its file to disk. So the newest directory is complete, whenever a job is killed.
//!
//! Hosts need not share a file system: each holds the files of its ranks, and with [`Checkpoints::peers`] copies of those of
//! other hosts. Ranks load the newest checkpoint of which each file is on some host. A file that is lacking or damaged on a
//! host is copied from another one that has it.
//!
//! Before a directory is given its name, ranks agree that all files are written. Then each host renames its directory.
//! If a job is killed between two such renames, the files of the other hosts remain in `.step-000123.partial`, and
//! `load` renames them.
//!
//! For trainings that continue when ranks die or arrive, without a restart, [`Snapshots`] keeps the last steps in memory.
//!
//! The files state which checkpoint is the newest: a directory that a user has renamed counts as the checkpoint in its
//! files, with a warning, and is never deleted. While a training saves in a directory, a second training is refused
//! there.

mod background;
mod choice;
mod file;
mod files;
mod folder;
mod held;
mod peers;
mod resize;
mod safetensors;
mod snapshots;
mod transfer;

pub use crate::record::{Record, Saved};
pub use background::BackgroundSaves;
pub use snapshots::Snapshots;

#[cfg(doc)]
use crate::engine::Checkpoint;
use crate::engine::DataParallel;
use crate::record::{all_or_none, gather_lists, gather_texts};
use choice::{DamagedFiles, choose};
use file::SAVED_AS;
use files::Files;
use folder::{Folder, Name};
use hexagram_logical::{Communicator, Error, Result, note_checkpoint};
use resize::SavedRanks;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of checkpoints, and the number of checkpoints to keep.
///
/// ```
/// # use hexagram::logical::{Communicator, DType, Result, TransportKind, testing::spawn};
/// # use hexagram::algorithms::testing::Scratch;
/// # use hexagram::algorithms::{Checkpoints, DataParallel, EngineOptions, GradientAllReduce, Parameter, Record, Sgd};
/// # use std::sync::Arc;
/// # fn engine(comm: &Communicator) -> Result<DataParallel> {
/// #     let x = Parameter { name: "x".into(), dtype: DType::F32, shape: vec![1] };
/// #     let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..Default::default() };
/// #     DataParallel::new(comm, vec![x], GradientAllReduce, options)
/// # }
/// # let folder = Scratch::new();
/// # spawn(TransportKind::Thread, 2, |comm| {
/// # let mut old = engine(&comm)?;
/// # let mut new = engine(&comm)?;
/// let checkpoints = Checkpoints::new(folder.path());
/// let mut own = Record::default();
/// own.note("epoch", 7);
/// checkpoints.save(&mut old, own)?;
///
/// let own = checkpoints.load(&mut new)?;
/// assert_eq!(own.map(|own| own.noted::<u64>("epoch")).transpose()?, Some(7));
/// # Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    /// Path of the directory, which is created when needed. Use a separate one for each training.
    pub root: PathBuf,
    /// Number of checkpoints to keep, at least 1; older ones are deleted when a newer one is complete. Default: 2.
    pub keep: usize,
    /// True to load a checkpoint of a different number of ranks: replicas that are not identical begin with the mean of all,
    /// and the state of the algorithm becomes what [`Algorithm::checkpoint`](crate::Algorithm::checkpoint) declares. If no
    /// checkpoint is complete on all hosts together, the newest is loaded without the files that are lost or damaged: means are
    /// then those of the files that are left. The records of the program are those of one file. Default: false, these are errors.
    pub any_ranks: bool,
    /// Number of other hosts that keep a copy of the file of each rank, in the directory of that name there: that many hosts
    /// can be lost with their disks. Each save sends the file that many times. Default: 0. Hosts that share the directory
    /// need none.
    pub peers: usize,
}

/// Prefix of the records that the program adds to a file.
const OWN: &str = "own";

impl Checkpoints {
    /// Creates checkpoints in this directory, and keeps two.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Checkpoints { root: root.into(), keep: 2, any_ranks: false, peers: 0 }
    }

    fn folder(&self, comm: &Communicator) -> Folder<'_> {
        Folder::new(&self.root, comm.rank(), comm.size())
    }

    /// Saves the state of the engine and the records that the program adds. A collective call, between steps. Returns
    /// the path of the directory, which is complete and on disk on every host.
    ///
    /// Ranks that have made different numbers of steps save under the largest.
    ///
    /// # Errors
    /// [`Error::Usage`] on every rank, if the directory has checkpoints that this engine has neither saved nor loaded:
    /// those of another training would be pruned, or be taken for this one's. On every rank, if one cannot write:
    /// [`Error::System`] there, [`Error::Usage`] that names it elsewhere. Nothing has changed then: earlier checkpoints
    /// are still there, and training can continue. As [`Checkpoint::save`]; errors of the communication. While one rank
    /// writes, the others wait for it: keep the deadline of the communicator above the time of a write.
    pub fn save(&self, engine: &mut DataParallel, own: Record) -> Result<PathBuf> {
        let snapshot = self.snapshot(engine, own)?;
        let path = self.write(engine.communicator(), snapshot)?;
        self.adopt(engine);
        Ok(path)
    }

    /// Copies the state to save, if this directory admits it. A collective call.
    fn snapshot(&self, engine: &mut DataParallel, own: Record) -> Result<Snapshot> {
        let mut record = engine.checkpoint().save()?;
        record.absorb(OWN, own);
        let comm = engine.communicator();
        let folder = self.folder(comm);
        all_or_none(comm, self.admits(engine, &folder).and_then(|()| self.claim(engine, &folder)))?;
        Ok(Snapshot { record, steps: engine.steps() })
    }

    /// Writes a snapshot, and returns when it is complete and on disk on every host. A collective call.
    fn write(&self, comm: &Communicator, snapshot: Snapshot) -> Result<PathBuf> {
        let Snapshot { mut record, steps } = snapshot;
        let folder = self.folder(comm);
        all_or_none(comm, folder.sweep())?;
        let name = agree_on_name(comm, steps, &folder)?;
        let names = all_or_none(comm, folder.names())?;
        let common = in_all(&gather_lists(comm, &names)?);
        record.note(SAVED_AS, format!("{name} ({})", draw_id(comm)?));
        let written = folder.begin(name).and_then(|path| file::write(&path, &record));
        let written = written.and_then(|bytes| folder.written(name).map(|()| bytes));
        let copied = all_or_none(comm, written)
            .and_then(|bytes| peers::copy(comm, (&folder, name), &bytes, self.peers));
        if let Err(error) = copied {
            folder.abandon(name);
            return Err(error);
        }
        all_or_none(comm, folder.complete(name))?;
        self.prune(&folder, name, common);
        note_checkpoint(true);
        Ok(folder.path(name))
    }

    /// Checks, at the start of a training, that [`save`](Self::save) can work here: that the directory, which is
    /// created if needed, is writable, and contains only checkpoints from which this engine continues. A collective
    /// call, after [`load`](Self::load) if the training continues an earlier one.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save), on every rank, if any rank is refused.
    pub fn check(&self, engine: &DataParallel) -> Result<()> {
        let comm = engine.communicator();
        let folder = self.folder(comm);
        note_checkpoint(false);
        let fit = self.admits(engine, &folder).and_then(|()| folder.try_writing());
        all_or_none(comm, fit.and_then(|()| self.claim(engine, &folder)))?;
        self.adopt(engine);
        Ok(())
    }

    /// Locks out other trainings from now on.
    fn claim(&self, engine: &DataParallel, folder: &Folder<'_>) -> Result<()> {
        if engine.communicator().rank() > 0 {
            return Ok(());
        }
        folder.make()?;
        engine.claims.claim(&self.root)
    }

    /// Fails if the directory contains checkpoints of other trainings.
    fn admits(&self, engine: &DataParallel, folder: &Folder<'_>) -> Result<()> {
        if self.keep == 0 {
            return Err(Error::usage("the number of checkpoints to keep is 0", "keep 1 or more"));
        }
        if engine.kept_in.borrow().contains(&self.root) {
            return Ok(());
        }
        match folder.kept()?.iter().max_by_key(|kept| kept.name) {
            Some(newest) => {
                let newest = newest.path.display();
                let what = format!("{newest} exists, from a training that this one does not continue");
                Err(Error::usage(what, "resume from it, choose another directory, or remove this one"))
            }
            None => Ok(()),
        }
    }

    /// Records that the checkpoints here belong to this training from now on.
    fn adopt(&self, engine: &DataParallel) {
        let mut folders = engine.kept_in.borrow_mut();
        if !folders.contains(&self.root) {
            folders.push(self.root.clone());
        }
    }

    /// Removes the oldest of the checkpoints that all ranks had before the newest.
    fn prune(&self, folder: &Folder<'_>, newest: Name, mut common: Vec<Name>) {
        common.sort_unstable();
        let surplus = (common.len() + 1).saturating_sub(self.keep);
        let kept = &common[surplus..];
        let outdated = |name: &Name| *name < newest && !kept.contains(name);
        // Checkpoints of only some ranks are no longer useful either. Unreadable ones are not removed.
        folder.names().unwrap_or_default().into_iter().filter(outdated).for_each(|name| folder.remove(name));
    }

    /// Loads the newest complete checkpoint into an engine, like [`Checkpoint::load`], before the first step or between
    /// steps. Returns the records that the program added; `None`, without any effect, if no rank has a checkpoint. A
    /// collective call. Logs a warning if a newer checkpoint lacks files.
    ///
    /// # Errors
    /// On every rank, if a file of any rank cannot be read, is damaged, belongs to another training, or is from a
    /// different save than the files of the other ranks, and no other host has a copy: the message states the remedy. With
    /// [`any_ranks`](Self::any_ranks), damaged files and those of a different save count as lost instead.
    /// [`Error::Usage`] if there are checkpoints, but none is complete, or the newest lacks files in a directory that all ranks
    /// have, or is of a different number of ranks, unless [`any_ranks`](Self::any_ranks) permits that.
    pub fn load(&self, engine: &mut DataParallel) -> Result<Option<Record>> {
        self.load_if(engine, |_| Ok(()))
    }

    /// Loads like [`load`](Self::load), if `fits` accepts the records that the program added: for programs that save
    /// their options, and continue only with the same.
    ///
    /// # Errors
    /// As [`load`](Self::load); the errors of `fits`, on every rank if it fails on any. The engine is unchanged then.
    pub fn load_if(
        &self,
        engine: &mut DataParallel,
        fits: impl FnOnce(&Record) -> Result<()>,
    ) -> Result<Option<Record>> {
        note_checkpoint(false);
        let comm = engine.communicator();
        let folder = self.folder(comm);
        let Some((files, first)) = self.gather(comm, &folder)? else { return Ok(None) };
        if comm.rank() == 0 && !files.lost().is_empty() {
            let (lost, name) = (files.lost(), files.choice().name);
            tracing::warn!(
                "the files of the ranks {lost:?} of {name} are lost, and their part of the state with them"
            );
        }
        let mut record = Arc::try_unwrap(first).or_else(|first| first.copied())?;
        let own = record.detach(OWN);
        all_or_none(comm, fits(&own))?;
        if files.choice().is_resized {
            resize::load(engine, &files, record)?;
        } else {
            engine.checkpoint().load(record)?;
        }
        self.adopt(engine);
        Ok(Some(own))
    }

    /// Chooses a checkpoint, and gathers the files of it that this rank reads. Returns also the first of them. Chooses again if
    /// a file is damaged on every host that has it, and any number of ranks is permitted.
    fn gather<'a>(
        &self,
        comm: &Communicator,
        folder: &'a Folder<'a>,
    ) -> Result<Option<(Files<'a>, Arc<Record>)>> {
        let mut damaged = DamagedFiles::default();
        loop {
            let choice = choose(comm, folder, self.any_ranks, &damaged)?;
            let Some(choice) = choice else { return Ok(None) };
            if choice.is_resized && !self.any_ranks {
                return Err(of_other_ranks(&folder.path(choice.name), choice.ranks, comm.size()));
            }
            let mut files = Files::new(comm, folder, choice);
            match files.complete(comm, self.any_ranks)? {
                Ok(first) => return Ok(Some((files, first))),
                Err(lost) => {
                    if comm.rank() == 0 {
                        let name = files.choice().name;
                        tracing::warn!("the files of the ranks {lost:?} of {name} are damaged on every host");
                    }
                    damaged.add(files.choice(), lost);
                }
            }
        }
    }
}

/// State to save, of one rank.
struct Snapshot {
    record: Record,
    /// Number of steps of the engine.
    steps: u64,
}

/// Returns a number that identifies a save, drawn by rank 0.
fn draw_id(comm: &Communicator) -> Result<String> {
    // The hasher of the standard library has random keys from the system.
    let keys = RandomState::new();
    let drawn = format!("{:016x}{:016x}", keys.hash_one(0), keys.hash_one(1));
    Ok(gather_texts(comm, &drawn)?.swap_remove(0))
}

/// Creates the error for a checkpoint of a different number of ranks.
fn of_other_ranks(path: &Path, saved: usize, size: usize) -> Error {
    let what = format!("the checkpoint {} is of {saved} ranks, not {size}", path.display());
    let remedy =
        format!("start {saved} ranks, or permit any number: with any_ranks, or by the option --change");
    Error::usage(what, remedy)
}

/// Returns the name of the next checkpoint, the same on every rank.
fn agree_on_name(comm: &Communicator, steps: u64, folder: &Folder<'_>) -> Result<Name> {
    let texts = gather_texts(comm, &steps.to_string())?;
    let step = texts.iter().filter_map(|text| text.parse().ok()).max().unwrap_or(steps);
    let lists = gather_lists(comm, &all_or_none(comm, folder.taken())?)?;
    let taken = lists.iter().flatten().filter(|name| name.step == step).map(|name| name.before + 1);
    Ok(Name { step, before: taken.max().unwrap_or(0) })
}

fn in_all(lists: &[Vec<Name>]) -> Vec<Name> {
    let Some((first, others)) = lists.split_first() else { return Vec::new() };
    first.iter().copied().filter(|name| others.iter().all(|list| list.contains(name))).collect()
}
