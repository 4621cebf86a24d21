//! Autotune: finds bucket size, number of streams and hierarchy by trials during the training.
//!
//! The bucket size balances overlap against overhead: communication of small buckets starts early, but each bucket adds
//! latency. The best size depends on the network, the model and the time of its layers, so it is measured: after a
//! warm-up, each candidate trains a few steps, first bucket sizes, then streams, then hierarchy, each with the best
//! values so far of the others. The cost is the median step time on the slowest rank. So all ranks see the same numbers
//! and make the same choice, without a central decision.
//!
//! It pays if communication is a large part of the step (exposed communication above some 10 %), step times vary
//! little, and training takes thousands of steps: a search takes warm-up + (1 + steps) · candidates steps, about 150
//! with the defaults, most of them hardly slower than the best. It does not pay for a model that fits in one bucket, on
//! one host with shared memory, or for algorithms with a period. If you know good settings, set them directly.
//!
//! Training continues without a restart: parameters and the state of optimizer and algorithm move to the new buckets,
//! element by element. If an algorithm has state that is not one number per element (the error of a server's chunk, a
//! low-rank factor), bucket sizes stay, with a message in the log. Hierarchy is tried only if it changes nothing but
//! rounding: in centralized, synchronous algorithms of full precision, on several hosts with several ranks.
//! Asynchronous algorithms are not tuned, since trials would make ranks wait for each other.

mod options;
mod rebucket;
mod search;
mod tuner;

pub use options::{Autotune, Cost, Tuning};
pub(super) use tuner::Tuner;

use super::{DataParallel, EngineOptions};
use crate::plugin::Buckets;
use crate::record::Record;
use hexagram_logical::{ReduceOp, Result};
use search::{Search, TrialSetting};
use tuner::median;

impl DataParallel {
    /// Returns the result of autotune, or the result in the checkpoint that was loaded.
    pub(super) fn tuned(&self) -> Option<Tuning> {
        self.tuner.as_ref().filter(|tuner| tuner.done).map(|_| self.tuning())
    }

    fn tuning(&self) -> Tuning {
        let EngineOptions { bucket_bytes, streams, hierarchical, .. } = self.options;
        Tuning { bucket_bytes, streams, hierarchical }
    }

    /// Counts a completed step, and tries other settings if it was the last of a trial.
    pub(super) fn tune(&mut self) -> Result<()> {
        let Some(mut tuner) = self.tuner.take() else { return Ok(()) };
        let present = self.tuning();
        let outcome = if tuner.done || !tuner.count(present) { Ok(()) } else { self.try_next(&mut tuner) };
        self.tuner = Some(tuner);
        self.checked(outcome)
    }

    /// Continues with the result in a checkpoint, whose buckets are already restored; or searches again.
    pub(super) fn restore_tuning(&mut self, record: &Record) -> Result<()> {
        self.tune_anew();
        let Some(tuner) = self.tuner.as_mut().filter(|_| record.notes("tuned/streams")) else {
            return Ok(());
        };
        tuner.done = true;
        self.options.bucket_bytes = record.noted("tuned/bucket-bytes")?;
        let streams = record.noted("tuned/streams")?;
        let hierarchical = record.noted("tuned/hierarchical")?;
        self.apply(Tuning { bucket_bytes: self.options.bucket_bytes, streams, hierarchical }).map(drop)
    }

    /// Starts over, with the present settings: a new algorithm may need different ones.
    pub(super) fn tune_anew(&mut self) {
        self.tuner = Tuner::new(&self.options);
    }

    fn try_next(&mut self, tuner: &mut Tuner) -> Result<()> {
        self.complete()?;
        let present = self.tuning();
        let Some(search) = &mut tuner.search else {
            let candidates = self.candidates(tuner);
            tuner.done = candidates.iter().all(Vec::is_empty);
            tuner.search = Some(Search::new(present, candidates));
            tuner.start_over();
            return Ok(());
        };
        let mut slowest = [median(&mut tuner.taken)];
        self.comm.blocking().all_reduce(&mut slowest, ReduceOp::Max)?;
        search.measured(slowest[0]);
        while let Some(next) = search.next() {
            if self.apply(next)? {
                tuner.start_over();
                return Ok(());
            }
            search.keep_buckets(present.bucket_bytes);
        }
        self.apply(search.best())?;
        tuner.done = true;
        tracing::info!(tuned = ?self.tuning(), "autotune is done");
        Ok(())
    }

    /// Returns the useful trials, by kind, for this model, algorithm and these hosts.
    fn candidates(&self, tuner: &Tuner) -> Vec<Vec<TrialSetting>> {
        let trigram = self.algorithm.trigram();
        if !trigram.synchronous || self.comm.size() == 1 {
            tracing::info!(algorithm = self.algorithm.name(), "autotune is off: asynchronous, or one rank");
            return Vec::new();
        }
        let Autotune { bucket_bytes, streams, .. } = &tuner.autotune;
        let mut cuts = vec![self.cut(self.options.bucket_bytes).layout()];
        let mut sizes = Vec::new();
        for bytes in bucket_bytes.iter().copied() {
            let cut = self.cut(bytes).layout();
            if self.algorithm.needs().buckets == Buckets::BySize && !cuts.contains(&cut) {
                cuts.push(cut);
                sizes.push(TrialSetting::BucketBytes(bytes));
            }
        }
        let most = cuts.iter().map(|cut| cut.counts.len()).max().unwrap_or(1);
        let streams = streams.iter().copied().filter(|streams| (1..most).contains(streams));
        let hierarchy = trigram.centralized && trigram.full_precision && self.has_hierarchy();
        let both = [false, true].map(TrialSetting::Hierarchical);
        vec![
            sizes,
            streams.map(TrialSetting::Streams).collect(),
            if hierarchy { both.to_vec() } else { Vec::new() },
        ]
    }

    /// Returns true if there are several hosts, and at least one has several ranks.
    fn has_hierarchy(&self) -> bool {
        let hosts = self.comm.world().hosts();
        let of = |rank: &usize| hosts.get(*rank).copied().unwrap_or_default();
        let mut own: Vec<usize> = self.comm.world_ranks().iter().map(of).collect();
        let ranks = own.len();
        own.sort_unstable();
        own.dedup();
        own.len() > 1 && own.len() < ranks
    }

    /// Continues with these settings, if possible; returns true if it was possible on all ranks.
    fn apply(&mut self, next: Tuning) -> Result<bool> {
        let Tuning { bucket_bytes, streams, hierarchical } = next;
        if bucket_bytes != self.options.bucket_bytes && !self.recut(bucket_bytes)? {
            return Ok(false);
        }
        self.scheduler.call(async move |runner| runner.tune(streams, hierarchical).await)?;
        self.options.bucket_bytes = bucket_bytes;
        self.options.streams = streams;
        self.options.hierarchical = hierarchical;
        Ok(true)
    }
}
