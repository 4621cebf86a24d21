//! The check that all ranks have the same replica: it compares a hash of each tensor.
//!
//! ```text
//! always           the extremes of a digest of all tensors        an all-reduce of 16 bytes
//! if they differ   the extremes of the hash of each tensor        16 bytes per tensor
//!                  the first hash that differs, from every rank   8 bytes each
//! ```

use crate::engine::start::{are_alike, which_are_alike};
use crate::engine::{DataParallel, hooks};
use hexagram_logical::{Buffer, Error, Result, hash};

impl DataParallel {
    /// Fails on all ranks unless they have bit-identical parameters, if the engine has them, and bit-identical
    /// `others`: buffers of the model and parameters of the framework, each with its name. A collective call, between
    /// steps.
    ///
    /// # Errors
    /// [`Error::Usage`] with the name of the first tensor that differs, and a rank; errors of the communication.
    pub fn check_replicas(&mut self, others: &[(String, &Buffer)]) -> Result<()> {
        self.complete()?;
        self.between_passes()?;
        let mut list = Vec::new();
        if self.works_on_parameters() {
            let count = hooks::lock(&self.backward).plan().parameters().len();
            for index in 0..count {
                let name = hooks::lock(&self.backward).plan().parameter(index)?.name.clone();
                list.push((name, hashed(&self.parameter(index)?.bytes_on_host()?)));
            }
        }
        for (name, buffer) in others {
            list.push((name.clone(), hashed(&buffer.read_all()?.bytes_on_host()?)));
        }
        self.check_alike(&list)
    }

    /// Fails unless all ranks have the same hashes.
    fn check_alike(&self, list: &[(String, i64)]) -> Result<()> {
        let digest =
            list.iter().fold(hash::START, |digest, (_, one)| hash::of_bytes(digest, one.to_le_bytes()));
        if are_alike(&self.comm, &[digest as i64])? {
            return Ok(());
        }
        let mut counts = vec![0; self.comm.size()];
        self.comm.blocking().all_gather(&[list.len() as i64], &mut counts)?;
        let remedy =
            "find what changes the model of one rank only, and load a checkpoint of rank 0 on all ranks";
        if let Some(rank) = counts.iter().position(|count| *count != counts[0]) {
            let what =
                format!("replicas differ: rank {rank} has {} tensors, rank 0 {}", counts[rank], counts[0]);
            return Err(Error::usage(what, remedy));
        }
        let hashes: Vec<i64> = list.iter().map(|(_, hash)| *hash).collect();
        let alike = which_are_alike(&self.comm, &hashes)?;
        let Some(first) = alike.iter().position(|alike| !alike) else { return Ok(()) };
        let mut all = vec![0; self.comm.size()];
        self.comm.blocking().all_gather(&[hashes[first]], &mut all)?;
        let rank = all.iter().position(|hash| *hash != all[0]).unwrap_or_default();
        let differ = alike.iter().filter(|alike| !**alike).count();
        let what = format!(
            "replicas differ: `{}` of rank {rank} differs from that of rank 0; in all, {differ} of {} tensors differ",
            list[first].0,
            list.len()
        );
        Err(Error::usage(what, remedy))
    }
}

fn hashed(bytes: &[u8]) -> i64 {
    hash::of_bytes(hash::START, bytes.iter().copied()) as i64
}
