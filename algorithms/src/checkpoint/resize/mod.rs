//! Loading a checkpoint that a different number of ranks has saved.
//!
//! ```text
//! n ranks have saved, m load:  rank i reads the files of the ranks i, i + m, i + 2m, …; rank i ≥ n that of rank i mod n
//! identical replicas           any file has the parameters
//! other replicas               every rank begins with the mean of all n
//! ```
//!
//! The optimizer state is that of the first file of each rank. The algorithm begins anew, as after
//! [`switch`](crate::DataParallel::switch): what it has kept for one rank (an error feedback, copies of neighbours, a weight)
//! means nothing among other ranks. That includes moments that the algorithm keeps in place of an optimizer, as qadam,
//! zero-one-adam and signsgd-vote do: their loss rises for some steps.

use super::folder::{Folder, Name};
use super::{OWN, SAVED_AS, file, of_one_save};
use crate::engine::DataParallel;
use crate::record::{Record, all_or_none};
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result};
use std::path::PathBuf;

/// Beginning of the names of parameters in a record.
const PARAMETER: &str = "parameter/";

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
    let mut shares = shares(comm.rank(), comm.size(), saved);
    let first = shares.next().unwrap_or_default();
    // Any file has the parameters of identical replicas: one that is on this host.
    let any =
        (0..saved).map(|at| (first + at) % saved).find(|rank| folder.file_of(name, *rank, saved).is_file());
    let path = folder.file_of(name, if is_mean { first } else { any.unwrap_or(first) }, saved);
    let mut record = all_or_none(&comm, file::read(&path))?;
    of_one_save(&comm, &path, &record)?;
    let own = record.detach(OWN);
    all_or_none(&comm, fits(&own))?;
    if is_mean {
        let paths: Vec<PathBuf> = shares.map(|rank| folder.file_of(name, rank, saved)).collect();
        let sums = all_or_none(&comm, sums(&record, &paths))?;
        mean(&comm, &mut record, sums, saved)?;
    }
    engine.checkpoint().load_resized(record)?;
    Ok(own)
}

/// Returns the saved ranks whose files a rank reads, the first of which is its own.
fn shares(rank: usize, size: usize, saved: usize) -> impl Iterator<Item = usize> {
    (rank % saved..if rank < saved { saved } else { rank % saved + 1 }).step_by(size)
}

/// Returns the sum of each parameter over `record` and the files of other ranks, which are read one by one.
fn sums(record: &Record, others: &[PathBuf]) -> Result<Vec<(String, Vec<f64>)>> {
    let parameters = record.tensors().filter(|(name, _)| name.starts_with(PARAMETER));
    let mut sums = parameters
        .map(|(name, saved)| Ok((name.to_owned(), numbers(&saved.values)?)))
        .collect::<Result<Vec<_>>>()?;
    let save: String = record.noted(SAVED_AS)?;
    for path in others {
        let other = file::read(path)?;
        if other.noted::<String>(SAVED_AS)? != save {
            let what = format!("{} is not of the save {save}", path.display());
            return Err(Error::usage(what, "restore the file that is out of place"));
        }
        for (name, sum) in &mut sums {
            let more = numbers(&other.tensor(name)?.values)?;
            if more.len() != sum.len() {
                let what =
                    format!("{} has {} elements of `{name}`, not {}", path.display(), more.len(), sum.len());
                return Err(Error::usage(what, "restore the file that is out of place"));
            }
            sum.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        }
    }
    Ok(sums)
}

/// Replaces the parameters of `record` by the mean over all saved ranks. Ranks beyond them add nothing.
fn mean(comm: &Communicator, record: &mut Record, sums: Vec<(String, Vec<f64>)>, saved: usize) -> Result<()> {
    let is_copy = comm.rank() >= saved;
    for (name, mut sum) in sums {
        let tensor = record.tensor(&name)?;
        let (shape, dtype) = (tensor.shape.clone(), tensor.values.dtype());
        if is_copy {
            sum.fill(0.0);
        }
        comm.blocking().all_reduce(&mut sum, ReduceOp::Sum)?;
        sum.iter_mut().for_each(|sum| *sum /= saved as f64);
        record.put_tensor(&name, &shape, of_numbers(&sum, dtype)?)?;
    }
    Ok(())
}

/// Returns the values of a saved tensor, f32 or f64, which are also the types under which 16-bit parameters are saved.
fn numbers(values: &Buffer) -> Result<Vec<f64>> {
    match values.dtype() {
        DType::F64 => Ok(values.host::<f64>()?.to_vec()),
        _ => Ok(values.host::<f32>()?.iter().map(|x| f64::from(*x)).collect()),
    }
}

fn of_numbers(numbers: &[f64], dtype: DType) -> Result<Buffer> {
    match dtype {
        DType::F64 => Buffer::from_slice(numbers),
        _ => Buffer::from_slice(&numbers.iter().map(|x| *x as f32).collect::<Vec<_>>()),
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
