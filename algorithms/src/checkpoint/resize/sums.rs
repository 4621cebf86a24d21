//! Sums over the files of a checkpoint.

use super::SavedRanks;
use super::regroup::Survivors;
use crate::record::Record;
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result};

/// Adds the records that this rank reads to `sums` and to `survivors`, one by one; `first` is the first.
pub(super) fn add(
    saved: &dyn SavedRanks,
    first: &Record,
    sums: &mut [(String, Sum)],
    survivors: &mut Survivors,
) -> Result<()> {
    for (at, rank) in saved.own().iter().enumerate() {
        let read = if at == 0 { None } else { Some(saved.read(*rank)?) };
        let record = read.as_deref().unwrap_or(first);
        for (name, sum) in &mut *sums {
            sum.add(&record.tensor(name)?.values, weight(record, name)?)?;
        }
        survivors.add(*rank, record)?;
    }
    Ok(())
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
