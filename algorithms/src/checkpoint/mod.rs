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
//! rank of the job has written its file to disk. So the newest directory is complete, whenever a job is killed. Hosts
//! need not share a file system: each holds the files of its ranks, and ranks agree on the newest checkpoint that all
//! of them have.
//!
//! Before a directory is given its name, ranks agree that all files are written. Then each host renames its directory.
//! If a job is killed between two such renames, the files of the other hosts remain in `.step-000123.partial`, and
//! `load` renames them.
//!
//! The files state which checkpoint is the newest: a directory that a user has renamed counts as the checkpoint in its
//! files, with a warning, and is never deleted. While a training saves in a directory, a second training is refused
//! there.

mod background;
mod file;
mod folder;
mod resize;
mod safetensors;

pub use crate::record::{Record, Saved};
pub use background::BackgroundSaves;

#[cfg(doc)]
use crate::engine::Checkpoint;
use crate::engine::DataParallel;
use crate::record::{all_or_none, gather_texts};
use folder::{CheckpointDirectory, Folder, Name};
use hexagram_logical::{Communicator, Error, Result, note_checkpoint};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

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
    /// and the state of the algorithm becomes what [`Algorithm::checkpoint`](crate::Algorithm::checkpoint) declares. All
    /// ranks need a directory with all files, as on a shared file system; without them, identical replicas continue, and
    /// the state of single ranks begins anew. The records of the program are those of one file. Default: false, that is
    /// an error.
    pub any_ranks: bool,
}

/// Prefix of the records that the program adds to a file.
const OWN: &str = "own";

/// Name of the fact that all files of one checkpoint share, and no others: its name, and a random number.
const SAVED_AS: &str = "saved-as";

impl Checkpoints {
    /// Creates checkpoints in this directory, and keeps two.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Checkpoints { root: root.into(), keep: 2, any_ranks: false }
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
        let common = in_all(&gather_names(comm, &names)?);
        record.note(SAVED_AS, format!("{name} ({})", draw_id(comm)?));
        let written = folder.begin(name).and_then(|path| file::write(&path, &record));
        let written = written.and_then(|()| folder.written(name));
        if let Err(error) = all_or_none(comm, written) {
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
        all_or_none(comm, fit.and_then(|()| self.claim(engine, &folder)))
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
        if engine.kept_in.contains(&self.root) {
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
    fn adopt(&self, engine: &mut DataParallel) {
        if !engine.kept_in.contains(&self.root) {
            engine.kept_in.push(self.root.clone());
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

    /// Loads the newest checkpoint that all ranks have into an engine, like [`Checkpoint::load`], before the first step
    /// or between steps. Returns the records that the program added; `None`, without any effect, if no rank has a
    /// checkpoint. A collective call.
    ///
    /// # Errors
    /// On every rank, if a file of any rank cannot be read, is damaged, belongs to another training, or is from a
    /// different save than the files of the other ranks: the message states the remedy. An older checkpoint is never
    /// loaded silently. [`Error::Usage`] if there are checkpoints, but none that all ranks have, or of a different number of
    /// ranks, unless [`any_ranks`](Self::any_ranks) permits that.
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
        let Some(name) = newest(comm, &folder)? else { return Ok(None) };
        if self.any_ranks
            && let Some(saved) = all_or_none(comm, folder.saved_by(name))?
        {
            let own = resize::load(engine, &folder, (name, saved), fits)?;
            self.adopt(engine);
            return Ok(Some(own));
        }
        let found = folder.find(name).and_then(|path| Ok((file::read(&path)?, path)));
        let (mut record, path) = all_or_none(comm, found)?;
        of_one_save(comm, &path, &record)?;
        let own = record.detach(OWN);
        all_or_none(comm, fits(&own))?;
        engine.checkpoint().load(record)?;
        self.adopt(engine);
        Ok(Some(own))
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

/// Fails on every rank unless all files were written by one call of [`Checkpoints::save`]. With files of
/// different saves, ranks would hang, or train with replicas that differ.
fn of_one_save(comm: &Communicator, path: &Path, record: &Record) -> Result<()> {
    let mine = all_or_none(comm, record.noted::<String>(SAVED_AS))?;
    let saves = gather_texts(comm, &mine)?;
    let Some(other) = saves.iter().position(|save| *save != saves[0]) else { return Ok(()) };
    let paths = gather_texts(comm, &path.to_string_lossy())?;
    let file = |rank: usize| format!("rank {rank}'s {} of {}", paths[rank], saves[rank]);
    let what = format!("the files of this checkpoint are not of one save: {} and {}", file(0), file(other));
    let remedy = "restore the file that is out of place, or remove the directory on all hosts to continue from the \
                  previous checkpoint";
    Err(Error::usage(what, remedy))
}

/// Returns the name of the next checkpoint, the same on every rank.
fn agree_on_name(comm: &Communicator, steps: u64, folder: &Folder<'_>) -> Result<Name> {
    let texts = gather_texts(comm, &steps.to_string())?;
    let step = texts.iter().filter_map(|text| text.parse().ok()).max().unwrap_or(steps);
    let lists = gather_names(comm, &all_or_none(comm, folder.taken())?)?;
    let taken = lists.iter().flatten().filter(|name| name.step == step).map(|name| name.before + 1);
    Ok(Name { step, before: taken.max().unwrap_or(0) })
}

/// Returns the names of the checkpoints of each rank.
fn gather_names(comm: &Communicator, names: &[Name]) -> Result<Vec<Vec<Name>>> {
    let mine: Vec<String> = names.iter().map(Name::to_string).collect();
    let texts = gather_texts(comm, &mine.join(" "))?;
    Ok(texts.iter().map(|text| text.split(' ').filter_map(|name| name.parse().ok()).collect()).collect())
}

fn in_all(lists: &[Vec<Name>]) -> Vec<Name> {
    let Some((first, others)) = lists.split_first() else { return Vec::new() };
    first.iter().copied().filter(|name| others.iter().all(|list| list.contains(name))).collect()
}

/// Renames the checkpoints that lack only their name, and returns the newest one that all ranks have.
fn newest(comm: &Communicator, folder: &Folder<'_>) -> Result<Option<Name>> {
    let names = all_or_none(comm, folder.names())?;
    for name in gather_names(comm, &names)?.into_iter().flatten() {
        if !names.contains(&name) && folder.is_partial(name) {
            // On failure, the checkpoint does not count.
            let _ = folder.complete(name);
        }
    }
    let kept = all_or_none(comm, folder.kept())?;
    for CheckpointDirectory { path, name } in kept.iter().filter(|kept| kept.is_renamed()) {
        tracing::warn!("{} contains {name}, and counts as that checkpoint", path.display());
    }
    let names: Vec<Name> = kept.iter().map(|kept| kept.name).collect();
    let lists = gather_names(comm, &names)?;
    let newest = in_all(&lists).into_iter().max();
    match (newest, lists.iter().position(Vec::is_empty), lists.iter().flatten().max()) {
        (Some(name), ..) => Ok(Some(name)),
        (None, _, None) => Ok(None),
        (None, lacking, Some(name)) => {
            let who = lacking
                .map_or("no two ranks have the same".to_owned(), |rank| format!("rank {rank} has none"));
            let what = format!("no checkpoint is complete on all ranks: {name} exists, but {who}");
            Err(Error::usage(what, "start ranks on the hosts they were on, or use an empty directory"))
        }
    }
}
