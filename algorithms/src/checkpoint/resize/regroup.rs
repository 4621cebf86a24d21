//! The fields of an algorithm among a different number of ranks.
//!
//! ```text
//! shared      the value of any rank
//! averaged    (1/n) Σᵢ vᵢ over the n ranks that have saved it, on every rank: the mean stays
//! chunked     v₀ … v₍n₋₁₎ one after another; each rank takes its chunk of them: every element stays
//! others      removed, so that they begin anew
//! ```
//!
//! The entries of one encoding depend on each other: if one cannot survive, all of them begin anew.

use super::sums::{Sum, mean, numbers, put};
use crate::engine::BEGINS_ANEW;
use crate::plugin::Regroup;
use crate::record::{Record, gather_texts};
use hexagram_logical::encoding::chunk;
use hexagram_logical::{Communicator, ReduceOp, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Beginning of the names of fields in a record.
const FIELD: &str = "algorithm/";

/// Fields that survive, and their values in the files that this rank has read.
pub(super) struct Survivors {
    /// Names of fields that are equal on all ranks.
    shared: BTreeSet<String>,
    averaged: BTreeMap<String, Sum>,
    /// Chunks by saved rank.
    chunked: BTreeMap<String, BTreeMap<usize, Vec<f64>>>,
    /// Names in `averaged` and `chunked` that cannot be kept after all.
    lost: BTreeSet<String>,
    /// Number of files that this rank has read.
    files: usize,
}

impl Survivors {
    /// Returns the fields that the records of all ranks list. A collective call.
    pub(super) fn of(comm: &Communicator, record: &Record) -> Result<Self> {
        let list = |rule: Regroup| -> Result<BTreeSet<String>> {
            let fact = rule.fact().unwrap_or_default();
            let mine = record.noted::<String>(fact).unwrap_or_default();
            let lists = gather_texts(comm, &mine)?;
            Ok(lists.iter().flat_map(|list| list.lines()).map(str::to_owned).collect())
        };
        let (shared, averaged, chunked) =
            (list(Regroup::Shared)?, list(Regroup::Averaged)?, list(Regroup::Chunked)?);
        let buckets = buckets(comm, record)?;
        let of_all = |names: BTreeSet<String>| -> Vec<String> {
            let of_bucket = |bucket| names.iter().map(move |name| format!("{FIELD}{bucket}/{name}"));
            (0..buckets).flat_map(of_bucket).collect()
        };
        Ok(Survivors {
            shared: of_all(shared).into_iter().collect(),
            averaged: of_all(averaged).into_iter().map(|name| (name, Sum::default())).collect(),
            chunked: of_all(chunked).into_iter().map(|name| (name, BTreeMap::new())).collect(),
            lost: BTreeSet::new(),
            files: 0,
        })
    }

    /// Returns true if the file of each rank is needed.
    pub(super) fn are_of_each_rank(&self) -> bool {
        !self.averaged.is_empty() || !self.chunked.is_empty()
    }

    /// Gives up chunks: among hosts, it is unknown here which ranks are owners; without some files, chunks are lost.
    pub(super) fn give_up_chunks(&mut self) {
        self.lost.extend(std::mem::take(&mut self.chunked).into_keys());
    }

    /// Adds the file of a saved rank.
    pub(super) fn add(&mut self, rank: usize, file: &Record) -> Result<()> {
        self.files += 1;
        for (name, sum) in &mut self.averaged {
            let Ok(saved) = file.tensor(name) else { continue };
            if sum.weight == 0.0 {
                sum.values = vec![0.0; saved.values.len()];
            }
            if sum.values.len() == saved.values.len() {
                sum.add(&saved.values, 1.0)?;
            }
        }
        for (name, chunks) in &mut self.chunked {
            if let Ok(saved) = file.tensor(name) {
                chunks.insert(rank, numbers(&saved.values)?);
            }
        }
        Ok(())
    }

    /// Replaces the fields in a record by those of this rank among the present ones. A collective call.
    pub(super) fn replace(mut self, comm: &Communicator, record: &mut Record) -> Result<()> {
        let mut files = [self.files as i64];
        comm.blocking().all_reduce(&mut files, ReduceOp::Sum)?;
        let starts = self.starts(comm, files[0] as usize)?;
        self.check_averaged(comm, files[0])?;
        let lost: BTreeSet<String> = self.lost.iter().map(|name| memory_of(name).to_owned()).collect();
        let survives = |name: &String| {
            let is_known = self.shared.contains(name)
                || self.averaged.contains_key(name)
                || self.chunked.contains_key(name);
            is_known && !lost.contains(memory_of(name))
        };
        let fields = record.tensors.keys().filter(|name| name.starts_with(FIELD));
        let removed: Vec<String> = fields.filter(|name| !survives(name)).cloned().collect();
        if !removed.is_empty() {
            record.note(BEGINS_ANEW, true);
        }
        removed.iter().for_each(|name| drop(record.tensors.remove(name)));
        agree_on_operations(comm, record, &self.shared)?;
        for (name, sum) in self.averaged {
            if !lost.contains(memory_of(&name)) {
                mean(comm, record, &name, sum)?;
            }
        }
        keep_mean_of_estimates(record)?;
        for (name, chunks) in self.chunked {
            if let Some(starts) = starts.get(&name).filter(|_| !lost.contains(memory_of(&name))) {
                let whole = joined(comm, &chunks, starts)?;
                put(record, &name, &whole[chunk(whole.len(), comm.size(), comm.rank())])?;
            }
        }
        Ok(())
    }

    /// Gives up the means of fields that are missing in some of the `files`, or have different lengths. A collective call.
    fn check_averaged(&mut self, comm: &Communicator, files: i64) -> Result<()> {
        let len = |sum: &Sum| sum.values.len() as i64;
        let shortest = |sum: &Sum| if sum.weight > 0.0 { len(sum) } else { i64::MAX };
        let mut longest: Vec<i64> = self.averaged.values().map(len).collect();
        let mut shortest: Vec<i64> = self.averaged.values().map(shortest).collect();
        let mut found: Vec<i64> = self.averaged.values().map(|sum| sum.weight as i64).collect();
        let blocking = comm.blocking();
        blocking.all_reduce(&mut longest, ReduceOp::Max)?;
        blocking.all_reduce(&mut shortest, ReduceOp::Min)?;
        blocking.all_reduce(&mut found, ReduceOp::Sum)?;
        for (at, (name, sum)) in self.averaged.iter_mut().enumerate() {
            if longest[at] == shortest[at] && found[at] == files {
                sum.values.resize(longest[at] as usize, 0.0);
            } else {
                self.lost.insert(name.clone());
            }
        }
        let lost = &self.lost;
        self.averaged.retain(|name, _| !lost.contains(name));
        Ok(())
    }

    /// Returns the boundaries of the chunks of each field, by name: the first element of each chunk, and the end of the last
    /// one. Gives up fields whose chunk is missing in a file. A collective call.
    fn starts(&mut self, comm: &Communicator, files: usize) -> Result<BTreeMap<String, Vec<usize>>> {
        let mut all = BTreeMap::new();
        for (name, chunks) in &self.chunked {
            // The length of each chunk plus one, or 0 where it is missing.
            let mut lens = vec![0i64; files];
            chunks.iter().for_each(|(rank, chunk)| lens[*rank] = chunk.len() as i64 + 1);
            comm.blocking().all_reduce(&mut lens, ReduceOp::Sum)?;
            if lens.contains(&0) {
                self.lost.insert(name.clone());
                continue;
            }
            let start = |rank: usize| lens[..rank].iter().map(|len| *len as usize - 1).sum();
            all.insert(name.clone(), (0..=files).map(start).collect());
        }
        Ok(all)
    }
}

/// Gives all ranks the largest number of operations of each encoding: among hosts, only leaders have counted some, and
/// equal random numbers follow from equal counts. A collective call.
fn agree_on_operations(comm: &Communicator, record: &mut Record, shared: &BTreeSet<String>) -> Result<()> {
    let names: Vec<&String> = shared.iter().filter(|name| name.ends_with(".operations")).collect();
    let own = |name: &&String| record.get::<i64>(name).ok().and_then(|count| count.first().copied());
    let mut counts: Vec<i64> = names.iter().map(|name| own(name).unwrap_or(0)).collect();
    comm.blocking().all_reduce(&mut counts, ReduceOp::Max)?;
    for (name, count) in names.into_iter().zip(counts) {
        if record.tensor(name).is_ok() {
            record.put(name, &[count])?;
        }
    }
    Ok(())
}

/// Returns the name of the encoding that an entry belongs to, or of the field itself.
fn memory_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(memory, _)| memory)
}

/// Makes the mean of the estimates of all ranks, which each rank stores, that of the estimates as they are now: without the
/// file of a rank, its estimate is no part of them, and a difference would stay in every later mean.
fn keep_mean_of_estimates(record: &mut Record) -> Result<()> {
    let is_mean = |name: &&String| name.starts_with(FIELD) && name.ends_with(".mean");
    let means: Vec<String> = record.tensors.keys().filter(is_mean).cloned().collect();
    for name in means {
        let estimate = record.tensors.get(&format!("{}.estimate", memory_of(&name)));
        // A shorter mean is the chunk of its owner.
        let estimate =
            estimate.filter(|estimate| estimate.values.len() == record.tensors[&name].values.len());
        if let Some(values) = estimate.map(|estimate| numbers(&estimate.values)).transpose()? {
            put(record, &name, &values)?;
        }
    }
    Ok(())
}

/// Returns the chunks of all ranks one after another. A collective call.
fn joined(comm: &Communicator, chunks: &BTreeMap<usize, Vec<f64>>, starts: &[usize]) -> Result<Vec<f64>> {
    let mut whole = vec![0.0; starts.last().copied().unwrap_or(0)];
    for (rank, chunk) in chunks {
        whole[starts[*rank]..starts[rank + 1]].copy_from_slice(chunk);
    }
    comm.blocking().all_reduce(&mut whole, ReduceOp::Sum)?;
    Ok(whole)
}

/// Returns the number of buckets. A collective call.
fn buckets(comm: &Communicator, record: &Record) -> Result<usize> {
    let own = record.get::<i64>("plan/counts").map_or(0, |counts| counts.len());
    let mut most = [own as i64];
    comm.blocking().all_reduce(&mut most, ReduceOp::Max)?;
    Ok(most[0] as usize)
}
