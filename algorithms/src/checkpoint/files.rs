//! The files of a checkpoint that one rank reads: its own, or its share if the number of ranks has changed. Files that are
//! lacking or damaged here are copied from a rank that has them.

use super::choice::Choice;
use super::file::{self, SAVED_AS};
use super::folder::Folder;
use super::resize::SavedRanks;
use super::transfer::{self, Transfer};
use crate::record::{Record, all_or_none, gather_lists};
use hexagram_logical::{Communicator, Error, Result};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Files of one checkpoint.
pub(super) struct Files<'a> {
    folder: &'a Folder<'a>,
    choice: Choice,
    /// Directory of the files on this host.
    directory: PathBuf,
    /// Saved ranks whose files this rank reads; the first one is its own.
    share: Vec<usize>,
    /// True if another rank has the same share.
    is_copy: bool,
    /// Saved ranks whose files are lost.
    lost: Vec<usize>,
}

impl<'a> Files<'a> {
    /// Determines the share of this rank in the files.
    pub(super) fn new(comm: &Communicator, folder: &'a Folder<'a>, choice: Choice) -> Self {
        let (share, is_copy) = match choice.is_resized {
            true => share(&choice.present(), (comm.rank(), comm.size())),
            false => (vec![comm.rank()], false),
        };
        let directory = folder.holding(choice.name);
        let lost = choice.lost();
        Files { folder, choice, directory, share, is_copy, lost }
    }

    /// Returns the checkpoint of the files.
    pub(super) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Copies the files of the share that are lacking or damaged here. Returns the content of the first file; or else, if
    /// `may_lack`, the saved ranks whose files are damaged on every rank. A collective call.
    ///
    /// # Errors
    /// On every rank, if a file is lacking or damaged on one, no other rank has it, and files may not be lacking; if one
    /// cannot be read for another reason.
    pub(super) fn complete(
        &mut self,
        comm: &Communicator,
        may_lack: bool,
    ) -> Result<Result<Arc<Record>, BTreeSet<usize>>> {
        let mut first = None;
        let mut lacking = Vec::new();
        for (at, saved) in self.share.iter().enumerate() {
            match self.read(*saved) {
                Ok(record) if at == 0 => first = Some(record),
                Ok(_) => {}
                Err(error) => lacking.push((*saved, error)),
            }
        }
        let names: Vec<usize> = lacking.iter().map(|(saved, _)| *saved).collect();
        let lacking_by_rank = gather_lists(comm, &names)?;
        let transfers = self.plan(comm, &lacking_by_rank)?;
        let comes =
            |to: usize, saved: usize| transfers.iter().any(|copy| (copy.to, copy.file) == (to, saved));
        let lost = |(to, files): (usize, &Vec<usize>)| -> Vec<usize> {
            files.iter().copied().filter(|saved| !comes(to, *saved)).collect()
        };
        let all_lost: BTreeSet<usize> = lacking_by_rank.iter().enumerate().flat_map(lost).collect();
        let error = lacking.into_iter().find(|(saved, error)| {
            !(comes(comm.rank(), *saved) || may_lack && self.is_damaged(*saved, error))
        });
        all_or_none(comm, error.map_or(Ok(()), |(_, error)| Err(error)))?;
        if !all_lost.is_empty() {
            return Ok(Err(all_lost));
        }
        self.copy(comm, transfers)?;
        all_or_none(comm, first.map_or_else(|| self.read(self.share[0]), Ok)).map(Ok)
    }

    /// Returns the copies after which each rank has the files that it lacks, if another rank has a sound one. The same on all
    /// ranks. A collective call.
    fn plan(&self, comm: &Communicator, lacking: &[Vec<usize>]) -> Result<Vec<Transfer>> {
        let mut held = self.choice.held.clone();
        let mut unsound = lacking.to_vec();
        loop {
            self.leave_out(comm, &unsound, &mut held);
            let transfers = transfer::plan(lacking, &held);
            if transfers.is_empty() {
                return Ok(transfers);
            }
            let sent = transfers.iter().filter(|copy| copy.from == comm.rank()).map(|copy| copy.file);
            let sent: BTreeSet<usize> = sent.collect();
            let found: Vec<usize> = sent.into_iter().filter(|saved| self.read(*saved).is_err()).collect();
            unsound = gather_lists(comm, &found)?;
            if unsound.iter().all(Vec::is_empty) {
                return Ok(transfers);
            }
        }
    }

    /// Leaves out the files that a rank of the same host has found `unsound`: it may be the same file.
    fn leave_out(&self, comm: &Communicator, unsound: &[Vec<usize>], held: &mut [BTreeSet<usize>]) {
        let host = |rank: usize| comm.world().hosts()[comm.world_ranks()[rank]];
        for (rank, files) in unsound.iter().enumerate() {
            for file in files.iter().filter(|file| self.choice.held[rank].contains(file)) {
                for (other, files) in held.iter_mut().enumerate() {
                    if host(other) == host(rank) {
                        files.remove(file);
                    }
                }
            }
        }
    }

    /// Returns true if the error of a file means that it is damaged, lacking or out of place.
    fn is_damaged(&self, saved: usize, error: &Error) -> bool {
        matches!(error, Error::Usage { .. }) && !file::is_of_another_version(&self.path(saved))
    }

    /// Makes copies of files, which are the same list on all ranks. A collective call.
    fn copy(&mut self, comm: &Communicator, transfers: Vec<Transfer>) -> Result<()> {
        if transfers.is_empty() {
            return Ok(());
        }
        let Choice { name, save, .. } = &self.choice;
        self.folder.discard_copied(*name);
        let place =
            |saved, bytes: &[u8]| file::put(&self.folder.copied(*name)?.join(self.name(saved)), bytes);
        let bytes = |saved| file::bytes(&self.path(saved)).map(Cow::Owned);
        transfer::make(comm, &transfers, bytes, place)?;
        // One rank after another, since those of a host may share the directory.
        let receivers: BTreeSet<usize> = transfers.iter().map(|copy| copy.to).collect();
        for receiver in receivers {
            let is_mine = receiver == comm.rank();
            all_or_none(comm, if is_mine { self.folder.take_copied(*name, save) } else { Ok(()) })?;
        }
        self.directory = self.folder.holding(*name);
        Ok(())
    }

    fn name(&self, saved: usize) -> String {
        Folder::file_of(saved, self.choice.ranks)
    }

    fn path(&self, saved: usize) -> PathBuf {
        self.directory.join(self.name(saved))
    }
}

impl SavedRanks for Files<'_> {
    fn own(&self) -> &[usize] {
        if self.is_copy { &[] } else { &self.share }
    }

    fn lost(&self) -> &[usize] {
        &self.lost
    }

    fn read(&self, saved: usize) -> Result<Arc<Record>> {
        let path = self.path(saved);
        if !path.is_file() {
            let what = format!("the checkpoint {} lacks {}", self.directory.display(), self.name(saved));
            let remedy = "restore the file, or remove the directory on all hosts to continue from the previous checkpoint";
            return Err(Error::usage(what, remedy));
        }
        let record = file::read(&path)?;
        let save: String = record.noted(SAVED_AS)?;
        if save == self.choice.save {
            return Ok(Arc::new(record));
        }
        let what = format!(
            "the files of this checkpoint are not of one save: {} is of {save}, and others of {}",
            path.display(),
            self.choice.save
        );
        let remedy = "restore the file that is out of place, or remove the directory on all hosts to continue from the \
                      previous checkpoint";
        Err(Error::usage(what, remedy))
    }
}

/// Returns the saved ranks, of those that are `present`, whose records a rank reads, the first of which is its own; and true
/// if another rank reads the same.
pub(super) fn share(present: &[usize], (rank, size): (usize, usize)) -> (Vec<usize>, bool) {
    let places = shares(rank, size, present.len());
    (places.map(|at| present[at]).collect(), rank >= present.len())
}

/// Returns the places of the files, of `files`, that a rank reads; the first one is its own.
fn shares(rank: usize, size: usize, files: usize) -> impl Iterator<Item = usize> {
    (rank % files..if rank < files { files } else { rank % files + 1 }).step_by(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_by_one_rank_and_every_rank_reads_one() {
        for (size, saved) in [(1, 4), (2, 4), (3, 4), (4, 4), (7, 4), (9, 2)] {
            let mut read = vec![0; saved];
            for rank in 0..size {
                let files: Vec<usize> = shares(rank, size, saved).collect();
                assert!(!files.is_empty(), "rank {rank} of {size}");
                if rank < saved {
                    files.iter().for_each(|file| read[*file] += 1);
                }
            }
            assert!(read.iter().all(|times| *times == 1), "{size} {saved}: {read:?}");
        }
    }
}
