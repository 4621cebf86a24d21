//! The files of a checkpoint that one rank reads when their number differs from that of the ranks, and sums over them.

use super::super::folder::{Folder, Name};
use super::super::{SAVED_AS, file};
use super::regroup::Survivors;
use crate::record::Record;
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result};
use std::path::PathBuf;

/// Files that a rank reads.
pub(super) struct Shares {
    /// Paths of the files of all saved ranks.
    paths: Vec<PathBuf>,
    /// Saved ranks whose files this rank reads, the first of which is its own.
    ranks: Vec<usize>,
    /// True if another rank has the same file.
    is_copy: bool,
}

impl Shares {
    pub(super) fn new(folder: &Folder<'_>, name: Name, saved: usize, comm: &Communicator) -> Self {
        let paths = (0..saved).map(|rank| folder.file_of(name, rank, saved)).collect();
        let ranks = shares(comm.rank(), comm.size(), saved).collect();
        Shares { paths, ranks, is_copy: comm.rank() >= saved }
    }

    /// Returns true if all files that this rank reads are on this host.
    pub(super) fn are_here(&self) -> bool {
        self.ranks.iter().all(|rank| self.paths[*rank].is_file())
    }

    /// Returns the path of the first file that this rank reads.
    pub(super) fn own(&self) -> PathBuf {
        self.paths[self.ranks[0]].clone()
    }

    /// Returns the path of a file that is on this host, or of the first that this rank reads.
    pub(super) fn any(&self) -> PathBuf {
        let from_own = (0..self.paths.len()).map(|at| (self.ranks[0] + at) % self.paths.len());
        from_own
            .map(|rank| &self.paths[rank])
            .find(|path| path.is_file())
            .cloned()
            .unwrap_or_else(|| self.own())
    }

    /// Adds all files to `sums` and to `survivors`, one by one; the first is `record`. Ranks with a copy add nothing.
    pub(super) fn read(
        &self,
        record: &Record,
        sums: &mut [(String, Sum)],
        survivors: &mut Survivors,
    ) -> Result<()> {
        if self.is_copy {
            return Ok(());
        }
        let save: String = record.noted(SAVED_AS)?;
        for (at, rank) in self.ranks.iter().enumerate() {
            let read = if at == 0 { None } else { Some(file::read(&self.paths[*rank])?) };
            let file = read.as_ref().unwrap_or(record);
            if file.noted::<String>(SAVED_AS)? != save {
                let what = format!("{} is not of the save {save}", self.paths[*rank].display());
                return Err(Error::usage(what, "restore the file that is out of place"));
            }
            for (name, sum) in &mut *sums {
                sum.add(&file.tensor(name)?.values, weight(file, name)?)?;
            }
            survivors.add(*rank, file)?;
        }
        Ok(())
    }
}

/// Returns the saved ranks whose files a rank reads, the first of which is its own.
fn shares(rank: usize, size: usize, saved: usize) -> impl Iterator<Item = usize> {
    (rank % saved..if rank < saved { saved } else { rank % saved + 1 }).step_by(size)
}

/// Returns the weight of a tensor in the mean over ranks.
fn weight(file: &Record, name: &str) -> Result<f64> {
    let weight = name.strip_prefix("parameter/").map(|parameter| format!("weight/{parameter}"));
    match weight.filter(|weight| file.notes(weight)) {
        Some(weight) => file.noted(&weight),
        None => Ok(1.0),
    }
}

/// Weighted sum of one tensor over files.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) values: Vec<f64>,
    /// Sum of the weights.
    pub(super) weight: f64,
}

impl Sum {
    /// Returns empty sums for the parameters and the optimizer state, if `is_mean`.
    pub(super) fn of_replicas(record: &Record, is_mean: bool) -> Result<Vec<(String, Sum)>> {
        let of_replica = |name: &&str| name.starts_with("parameter/") || name.starts_with("optimizer/");
        let names = record.tensors().map(|(name, _)| name).filter(|name| is_mean && of_replica(name));
        names
            .map(|name| {
                let values = vec![0.0; record.tensor(name)?.values.len()];
                Ok((name.to_owned(), Sum { values, weight: 0.0 }))
            })
            .collect()
    }

    /// Adds the values of one file.
    ///
    /// # Errors
    /// [`Error::Usage`] if their number differs.
    pub(super) fn add(&mut self, values: &Buffer, weight: f64) -> Result<()> {
        let values = numbers(values)?;
        if values.len() != self.values.len() {
            let what =
                format!("a file has {} elements where another has {}", values.len(), self.values.len());
            return Err(Error::usage(what, "restore the file that is out of place"));
        }
        self.values.iter_mut().zip(values).for_each(|(sum, x)| *sum += weight * x);
        self.weight += weight;
        Ok(())
    }
}

/// Replaces a tensor of `record` by the mean over the files of all ranks. A collective call.
pub(super) fn mean(comm: &Communicator, record: &mut Record, name: &str, sum: Sum) -> Result<()> {
    let Sum { mut values, weight } = sum;
    values.push(weight);
    comm.blocking().all_reduce(&mut values, ReduceOp::Sum)?;
    let weight = values.pop().unwrap_or(1.0);
    values.iter_mut().for_each(|sum| *sum /= weight);
    put(record, name, &values)
}

/// Replaces the values of a tensor of `record`, or adds a vector of 32-bit floats.
pub(super) fn put(record: &mut Record, name: &str, values: &[f64]) -> Result<()> {
    let (shape, dtype) = match record.tensor(name) {
        Ok(saved) if saved.values.len() == values.len() => (saved.shape.clone(), saved.values.dtype()),
        Ok(saved) => (vec![values.len()], saved.values.dtype()),
        Err(_) => (vec![values.len()], DType::F32),
    };
    let values = match dtype {
        DType::F64 => Buffer::from_slice(values),
        _ => Buffer::from_slice(&values.iter().map(|x| *x as f32).collect::<Vec<_>>()),
    };
    record.put_tensor(name, &shape, values?)
}

/// Returns the values of a saved tensor, f32 or f64, which are also the types under which 16-bit parameters are saved.
pub(super) fn numbers(values: &Buffer) -> Result<Vec<f64>> {
    match values.dtype() {
        DType::F64 => Ok(values.host::<f64>()?.to_vec()),
        _ => Ok(values.host::<f32>()?.iter().map(|x| f64::from(*x)).collect()),
    }
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
