//! A directory of checkpoints: one directory per saved step, which is given its name only when it is complete.
//!
//! ```text
//! step-000120/rank-00000-of-00002.safetensors       complete
//! step-000120/rank-00001-of-00002.safetensors
//! step-000120.1/…                                   saved again at the same step
//! .step-000130.partial/rank-00000-of-00002…         being written, or left by a killed run
//! .step-000110.gone/…                               being deleted, or the same
//! .step-000120.copied-3/…                           files that rank 3 receives from other hosts
//! ```
//!
//! The files state which checkpoint a directory holds. A different directory name was given by a user, and must not
//! make an older checkpoint look newer: such a directory counts as the checkpoint in its files, and is never deleted.

use super::file;
use super::held::HeldFiles;
use hexagram_logical::{Error, Result};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum number of ranks in the name of a file: a larger one is not of this library.
pub(super) const MOST_RANKS: usize = 1 << 20;

/// Name of a checkpoint: its step, and the number of earlier checkpoints of that step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) step: u64,
    pub(super) before: u64,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{:06}", self.step)?;
        if self.before > 0 { write!(f, ".{}", self.before) } else { Ok(()) }
    }
}

impl FromStr for Name {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.strip_prefix("step-").unwrap_or_default();
        let (step, before) = numbers.split_once('.').unwrap_or((numbers, "0"));
        Ok(Name { step: step.parse()?, before: before.parse()? })
    }
}

/// A directory that holds a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckpointDirectory {
    pub(super) path: PathBuf,
    /// Name under which the files were saved, or the directory name if the files have none.
    pub(super) name: Name,
    /// Name and number of the save, as the files state it; `None` if they are unreadable or disagree.
    save: Option<String>,
}

impl CheckpointDirectory {
    /// Returns true if the directory name differs from the name of the checkpoint in it.
    pub(super) fn is_renamed(&self) -> bool {
        self.path.file_name() != Some(self.name.to_string().as_ref())
    }
}

/// Directory of checkpoints, as seen by one rank.
pub(super) struct Folder<'a> {
    root: &'a Path,
    rank: usize,
    ranks: usize,
}

impl<'a> Folder<'a> {
    pub(super) fn new(root: &'a Path, rank: usize, ranks: usize) -> Self {
        Folder { root, rank, ranks }
    }

    pub(super) fn path(&self, name: Name) -> PathBuf {
        self.root.join(name.to_string())
    }

    pub(super) fn partial(&self, name: Name) -> PathBuf {
        self.root.join(format!(".{name}.partial"))
    }

    fn file(&self) -> String {
        Self::file_of(self.rank, self.ranks)
    }

    /// Returns the name of the file of `rank` in a checkpoint of `ranks`.
    pub(super) fn file_of(rank: usize, ranks: usize) -> String {
        format!("rank-{rank:05}-of-{ranks:05}.safetensors")
    }

    /// Creates the directory if it does not exist. Fails if this rank cannot write to it.
    pub(super) fn try_writing(&self) -> Result<()> {
        let draft = self.root.join(format!(".{}.draft", self.file()));
        self.make()?;
        // An existing file was left by a killed rank, or is a link.
        let _ = fs::remove_file(&draft);
        let written = File::create_new(&draft).and_then(|_| fs::remove_file(&draft));
        written.map_err(|cause| refused("write in", self.root, cause))
    }

    /// Creates the directory, if it does not exist.
    pub(super) fn make(&self) -> Result<()> {
        fs::create_dir_all(self.root).map_err(|cause| refused("make", self.root, cause))
    }

    /// Returns the file names in the directory; none if it does not exist.
    fn entries(&self) -> Result<Vec<String>> {
        let list = || -> io::Result<Vec<String>> {
            fs::read_dir(self.root)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        match list() {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|cause| refused("read", self.root, cause)),
        }
    }

    /// Returns the complete checkpoints.
    pub(super) fn kept(&self) -> Result<Vec<CheckpointDirectory>> {
        let kept = |(entry, called): (String, Name)| {
            let path = self.root.join(entry);
            path.is_dir().then(|| {
                let (name, save) = inside(&path, called).unzip();
                CheckpointDirectory { name: name.unwrap_or(called), save, path }
            })
        };
        Ok(self.named()?.into_iter().filter_map(kept).collect())
    }

    /// Returns the names of the complete checkpoints, sorted and without duplicates.
    pub(super) fn names(&self) -> Result<Vec<Name>> {
        let mut names: Vec<Name> = self.kept()?.into_iter().map(|kept| kept.name).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Returns the names that a new checkpoint cannot have: those of all directories, and those of the checkpoints in
    /// them.
    pub(super) fn taken(&self) -> Result<Vec<Name>> {
        Ok(self.named()?.into_iter().map(|(_, name)| name).chain(self.names()?).collect())
    }

    /// Returns the entries that are named like a checkpoint.
    fn named(&self) -> Result<Vec<(String, Name)>> {
        let named = |entry: String| entry.parse().ok().map(|name| (entry, name));
        Ok(self.entries()?.into_iter().filter_map(named).collect())
    }

    /// Returns the files of each complete checkpoint in these directories: those of this number of ranks, or else of one other number.
    pub(super) fn held(&self, mut directories: Vec<CheckpointDirectory>) -> Result<Vec<HeldFiles>> {
        directories.sort_by_key(|kept| (kept.name, kept.is_renamed()));
        directories.dedup_by_key(|kept| kept.name);
        let held = |CheckpointDirectory { path, name, save }| {
            let mut files = files(&path)?;
            let ranks = match files.iter().find(|(_, ranks)| *ranks == self.ranks).or(files.first()) {
                Some((_, ranks)) => *ranks,
                None => self.ranks,
            };
            files.retain(|file| file.1 == ranks);
            let saved = files.into_iter().map(|(rank, _)| rank).collect();
            Ok(HeldFiles { name, save: save.unwrap_or_default(), ranks, saved })
        };
        directories.into_iter().map(held).collect()
    }

    /// Returns the directory that holds a checkpoint: the one with its name, if it exists.
    pub(super) fn holding(&self, name: Name) -> PathBuf {
        let mut kept = self.kept().unwrap_or_default();
        kept.retain(|kept| kept.name == name);
        kept.into_iter().min_by_key(CheckpointDirectory::is_renamed).map_or(self.path(name), |kept| kept.path)
    }

    fn copied_path(&self, name: Name) -> PathBuf {
        self.root.join(format!(".{name}.copied-{}", self.rank))
    }

    /// Discards files that this rank received before it was killed.
    pub(super) fn discard_copied(&self, name: Name) {
        delete(&self.copied_path(name));
    }

    /// Returns the directory for files of a complete checkpoint that this rank receives, and creates it.
    pub(super) fn copied(&self, name: Name) -> Result<PathBuf> {
        let path = self.copied_path(name);
        fs::create_dir_all(&path).map_err(|cause| refused("make", &path, cause))?;
        Ok(path)
    }

    /// Moves the files that this rank has received to the directory of their checkpoint. A directory with a different `save` of the
    /// same name, from before this host left the job, is renamed.
    pub(super) fn take_copied(&self, name: Name, save: &str) -> Result<()> {
        let path = self.holding(name);
        if path.is_dir() && inside(&path, name).is_none_or(|(_, inside)| inside != save) {
            let aside = self.free(&format!("{name}-of-another-save"));
            fs::rename(&path, &aside).map_err(|cause| refused("rename", &path, cause))?;
            let (path, aside) = (path.display(), aside.display());
            tracing::warn!("{path} was not of the same save as on other hosts, and is now {aside}");
        }
        fs::create_dir_all(&path).map_err(|cause| refused("make", &path, cause))?;
        let copied = self.copied(name)?;
        for (rank, ranks) in files(&copied)? {
            let file = Self::file_of(rank, ranks);
            fs::rename(copied.join(&file), path.join(&file))
                .map_err(|cause| refused("rename", &copied, cause))?;
        }
        delete(&copied);
        sync(&path)?;
        sync(self.root)
    }

    /// Returns the first path of `name`, `name.1`, `name.2`, … that is free.
    fn free(&self, name: &str) -> PathBuf {
        let mut path = self.root.join(name);
        let mut number = 0;
        while fs::symlink_metadata(&path).is_ok() {
            number += 1;
            path = self.root.join(format!("{name}.{number}"));
        }
        path
    }

    /// Removes the leftovers of a killed run, if permitted. Must not be called while a rank writes.
    pub(super) fn sweep(&self) -> Result<()> {
        for entry in self.entries()?.iter().filter(|entry| entry.starts_with(".step-")) {
            delete(&self.root.join(entry));
        }
        Ok(())
    }

    /// Creates the directory of an incomplete checkpoint, and returns the path for the file of this rank.
    pub(super) fn begin(&self, name: Name) -> Result<PathBuf> {
        let partial = self.partial(name);
        fs::create_dir_all(&partial).map_err(|cause| refused("make", &partial, cause))?;
        Ok(partial.join(self.file()))
    }

    /// Waits until the directory entry of this rank's file is on disk.
    pub(super) fn written(&self, name: Name) -> Result<()> {
        sync(&self.partial(name))
    }

    /// Gives a checkpoint its name, once all ranks have written their files. Every rank that sees this directory calls
    /// it; the first one succeeds.
    pub(super) fn complete(&self, name: Name) -> Result<()> {
        let partial = self.partial(name);
        let path = self.path(name);
        match fs::rename(&partial, &path) {
            Err(cause) if !path.is_dir() => Err(refused("rename", &partial, cause)),
            _ => sync(self.root),
        }
    }

    /// Returns true if a checkpoint on this host lacks only its name.
    pub(super) fn is_partial(&self, name: Name) -> bool {
        files(&self.partial(name)).is_ok_and(|files| !files.is_empty())
    }

    /// Discards the files of a save that failed.
    pub(super) fn abandon(&self, name: Name) {
        // Another rank may complete it at this moment: only one of the two renames succeeds.
        let gone = self.root.join(format!(".{name}.gone"));
        if fs::rename(self.partial(name), &gone).is_ok() {
            delete(&gone);
        }
    }

    /// Removes a checkpoint, in one step: it is complete or gone. Does not remove a renamed directory.
    pub(super) fn remove(&self, name: Name) {
        if inside(&self.path(name), name).is_some_and(|(inside, _)| inside != name) {
            return;
        }
        let gone = self.root.join(format!(".{name}.gone"));
        // Another rank may have removed it first.
        if fs::rename(self.path(name), &gone).is_ok() {
            delete(&gone);
        }
    }
}

/// Returns rank and number of ranks of each file in a directory, in ascending order.
fn files(directory: &Path) -> Result<Vec<(usize, usize)>> {
    let entries = fs::read_dir(directory).map_err(|cause| refused("read", directory, cause))?;
    let files = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let numbers = name.strip_prefix("rank-")?.strip_suffix(".safetensors")?;
        let (rank, ranks) = numbers.split_once("-of-")?;
        let [rank, ranks]: [usize; 2] = [rank.parse().ok()?, ranks.parse().ok()?];
        (rank < ranks && ranks <= MOST_RANKS).then_some((rank, ranks))
    });
    let mut files: Vec<(usize, usize)> = files.collect();
    files.sort_unstable();
    Ok(files)
}

/// Returns name and save that the files of the directory `called` state, if one can be read and the others agree. Reads all
/// files only if the directory name differs.
fn inside(directory: &Path, called: Name) -> Option<(Name, String)> {
    let entries = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect();
    files.sort();
    let mut saved = files.iter().filter_map(|path| file::saved_as(path));
    let first = saved.next()?;
    let name = first.split(' ').next()?.parse().ok()?;
    (name == called || saved.all(|other| other == first)).then_some((name, first))
}

/// Deletes a directory; on failure it only takes space.
fn delete(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            tracing::warn!("{} could not be deleted: {cause}", path.display());
        }
        _ => {}
    }
}

/// Returns when the entries of a directory are on disk.
fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(|cause| refused("sync", path, cause))
}

fn refused(verb: &str, path: &Path, cause: io::Error) -> Error {
    let remedy = "use a directory that all ranks of this host may write to, with free space";
    Error::system(format!("{verb} {}", path.display()), cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_sorted_by_step() {
        let name = |step, before| Name { step, before };
        for name in [name(0, 0), name(123, 0), name(123, 4), name(12_345_678, 1)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!(name(9, 3) < name(10, 0) && name(10, 0) < name(10, 1));
        for other in ["step-", "step-x", ".step-000001.partial", "step-1.x", "000001", "latest"] {
            assert!(other.parse::<Name>().is_err(), "{other}");
        }
    }
}
