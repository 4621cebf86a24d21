//! The agreement of all ranks on the checkpoint that they load.
//!
//! ```text
//! newest      of the checkpoints of which each file is on some rank; missing files are copied (transfer.rs)
//! otherwise   without any_ranks: an error. With it: the newest, without the files that are lost
//! again       with any_ranks, if a file is damaged on every host that has it: it counts as lost then
//! ```
//!
//! Directories of different hosts may hold different saves of one name, if a host was absent while the others saved that
//! step again. They count as different checkpoints.

use super::folder::{CheckpointDirectory, Folder, Name};
use super::held::HeldFiles;
use crate::record::{all_or_none, gather_lists};
use hexagram_logical::{Communicator, Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Checkpoint that all ranks load.
pub(super) struct Choice {
    pub(super) name: Name,
    /// Name and number of the save.
    pub(super) save: String,
    /// Number of ranks that have saved it.
    pub(super) ranks: usize,
    /// Saved ranks whose files are in the directory of each rank.
    pub(super) held: Vec<BTreeSet<usize>>,
    /// Number of ranks whose directory has this checkpoint, with or without files.
    ranks_with_it: usize,
    /// True if its ranks, or the files that are left, are not one for each rank of this job.
    pub(super) is_resized: bool,
}

/// Files of checkpoints that are damaged on every host: name, save and number of ranks of the checkpoint, and the saved
/// ranks. The same on all ranks.
#[derive(Default)]
pub(super) struct DamagedFiles(BTreeMap<(Name, String, usize), BTreeSet<usize>>);

impl DamagedFiles {
    /// Adds files of a checkpoint, by saved rank.
    pub(super) fn add(&mut self, of: &Choice, files: BTreeSet<usize>) {
        self.0.entry(of.key()).or_default().extend(files);
    }
}

impl Choice {
    fn key(&self) -> (Name, String, usize) {
        (self.name, self.save.clone(), self.ranks)
    }

    /// Leaves out files that are damaged.
    fn without(mut self, damaged: &DamagedFiles) -> Self {
        for saved in damaged.0.get(&self.key()).into_iter().flatten() {
            for held in &mut self.held {
                held.remove(saved);
            }
        }
        self
    }

    /// Returns the saved ranks whose files are on any rank, in ascending order.
    pub(super) fn present(&self) -> Vec<usize> {
        self.held.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the saved ranks whose files are on no rank.
    pub(super) fn lost(&self) -> Vec<usize> {
        absent(&self.present(), self.ranks)
    }

    /// Returns true if each file is on some rank.
    pub(super) fn is_complete(&self) -> bool {
        self.lost().is_empty()
    }
}

/// Returns the saved ranks, of `ranks`, that are not `present`, a list in ascending order.
pub(super) fn absent(present: &[usize], ranks: usize) -> Vec<usize> {
    (0..ranks).filter(|rank| present.binary_search(rank).is_err()).collect()
}

/// Renames the checkpoints that lack only their name, and returns the one to load; `None` if no rank has any. With
/// `any_ranks`, files may be missing; those that are `damaged` are. A collective call.
///
/// # Errors
/// [`Error::Usage`] on all ranks if some rank has a checkpoint, but none is complete.
pub(super) fn choose(
    comm: &Communicator,
    folder: &Folder<'_>,
    any_ranks: bool,
    damaged: &DamagedFiles,
) -> Result<Option<Choice>> {
    rename_partial(comm, folder)?;
    let kept = all_or_none(comm, folder.kept())?;
    for CheckpointDirectory { path, name, .. } in kept.iter().filter(|kept| kept.is_renamed()) {
        tracing::warn!("{} contains {name}, and counts as that checkpoint", path.display());
    }
    let choices = choices(gather_lists(comm, &all_or_none(comm, folder.held(kept))?)?);
    let choices: Vec<_> = choices.into_iter().map(|choice| choice.without(damaged)).collect();
    let newest = choices.iter().max_by_key(|choice| choice.name).map(|choice| (choice.name, choice.lost()));
    let Some(newest) = newest else { return Ok(None) };
    let is_known_to_all = |choice: &Choice| choice.ranks_with_it == comm.size();
    let (fit, others): (Vec<_>, Vec<_>) = choices
        .into_iter()
        .partition(|choice| choice.is_complete() || (!any_ranks && is_known_to_all(choice)));
    let fit = match any_ranks && fit.is_empty() {
        true => others.into_iter().filter(|choice| !choice.present().is_empty()).collect(),
        false => fit,
    };
    let chosen = fit.into_iter().max_by_key(|choice| (choice.name, choice.ranks_with_it));
    let mut chosen = chosen.ok_or_else(|| nowhere_complete(newest.clone()))?;
    chosen.is_resized |= any_ranks && !chosen.is_complete();
    let (newest, lost) = newest;
    if comm.rank() == 0 && chosen.name < newest {
        let older = chosen.name;
        tracing::warn!("{newest} lacks the files of the ranks {lost:?}: {older} is loaded, which is older");
    }
    Ok(Some(chosen))
}

/// Gives a checkpoint its name if a rank of this job has completed it elsewhere. A collective call.
fn rename_partial(comm: &Communicator, folder: &Folder<'_>) -> Result<()> {
    let names = all_or_none(comm, folder.names())?;
    for name in gather_lists(comm, &names)?.into_iter().flatten() {
        if !names.contains(&name) && folder.is_partial(name) {
            // On failure, the checkpoint does not count.
            let _ = folder.complete(name);
        }
    }
    Ok(())
}

/// Returns the different checkpoints in the lists of all ranks.
fn choices(lists: Vec<Vec<HeldFiles>>) -> Vec<Choice> {
    let mut by_save: BTreeMap<(Name, String, usize), Choice> = BTreeMap::new();
    let size = lists.len();
    for (rank, list) in lists.into_iter().enumerate() {
        for HeldFiles { name, save, ranks, saved } in list {
            let choice = by_save.entry((name, save.clone(), ranks)).or_insert_with(|| Choice {
                name,
                save,
                ranks,
                held: vec![BTreeSet::new(); size],
                ranks_with_it: 0,
                is_resized: ranks != size,
            });
            choice.held[rank].extend(saved);
            choice.ranks_with_it += 1;
        }
    }
    by_save.into_values().collect()
}

/// Creates the error for checkpoints of which no one is complete.
fn nowhere_complete((newest, lost): (Name, Vec<usize>)) -> Error {
    let what = format!("no checkpoint is complete: {newest} lacks the files of the ranks {lost:?}");
    let remedy = "start ranks on the hosts they were on, permit to continue without these files (with any_ranks, or by the \
                  option --change), or use an empty directory";
    Error::usage(what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<HeldFiles> {
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn files_of_several_hosts_make_one_checkpoint_and_different_saves_do_not() {
        let found =
            choices(vec![list("step-1 2 0 a\nstep-2 2 0 b"), list("step-1 2 1 a\nstep-2 2 1 c"), list("")]);
        let about: Vec<_> =
            found.iter().map(|found| (found.name.step, &*found.save, found.is_complete())).collect();
        assert_eq!(about, [(1, "a", true), (2, "b", false), (2, "c", false)]);
        assert_eq!(found[0].present(), [0, 1]);
        assert_eq!(found[2].held, [vec![], vec![1], vec![]].map(BTreeSet::from_iter));
    }
}
