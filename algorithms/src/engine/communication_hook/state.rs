//! Saving and loading the state of a hook.
//!
//! A framework may pass different buckets in its first passes, as PyTorch's DDP does. A loaded state takes effect in the first
//! pass with the buckets of the save; passes before that average gradients in full precision, and leave the state as it is.

use super::{BucketTensors, CommunicationHook};
use crate::GradientAllReduce;
use crate::engine::captured::put_fields;
use crate::plugin::{AnyAlgorithm, Fields};
use crate::record::{Record, does_not_fit};
use hexagram_logical::{Buffer, Error, Result};
use std::collections::BTreeMap;

/// State to load, by bucket, and the buckets that it is of.
pub(super) struct LoadedState {
    buckets: String,
    begun: u64,
    fields: Vec<BTreeMap<String, Buffer>>,
}

impl CommunicationHook {
    /// Returns the state of the algorithm, such as its error feedback, and the number of passes; for
    /// [`load`](Self::load) in a new hook of the same rank. Between passes.
    ///
    /// # Errors
    /// [`Error::Usage`] during a pass, and before a loaded state has taken effect; errors of the communication thread.
    pub fn save(&mut self) -> Result<Record> {
        self.between_passes()?;
        if self.loaded.is_some() {
            let what = "a hook was asked for its state before the loaded one has taken effect";
            return Err(Error::usage(what, "save after the second pass, or keep the state that was loaded"));
        }
        let mut record = self.facts();
        record.note("buckets", described(&self.layout));
        record.note("step", self.present.step);
        record.note("algorithm-begun", self.present.begun);
        put_fields(&mut record, self.scheduler.fields()?)?;
        Ok(record)
    }

    /// Continues from a state that [`save`](Self::save) returned on this rank. Call it on every rank, before the first pass. The
    /// next steps equal those of an uninterrupted run, bit for bit, if the buckets of the first pass are those of the save.
    /// Otherwise the state takes effect once they are, and gradients are averaged in full precision until then.
    ///
    /// # Errors
    /// [`Error::Usage`] after the first pass, and for the state of another algorithm, rank or number of ranks. A later pass
    /// fails if the buckets settle to others than those of the save.
    pub fn load(&mut self, mut record: Record) -> Result<()> {
        self.between_passes()?;
        if !self.layout.is_empty() {
            let what = "a hook was given a state after its first pass";
            return Err(Error::usage(what, "load the state into a new hook"));
        }
        for (name, own) in self.facts().facts() {
            let saved: String = record.noted(name)?;
            if saved != own {
                return Err(does_not_fit(format!("is of {name} {saved}, not {own}")));
            }
        }
        self.present.step = record.noted("step")?;
        let buckets: String = record.noted("buckets")?;
        let begun = record.noted("algorithm-begun")?;
        let count = buckets.lines().count();
        let mut states = record.detach("algorithm");
        let fields = (0..count).map(|bucket| states.detach(&bucket.to_string()));
        let fields = fields.map(|of_bucket| {
            of_bucket.tensors.into_iter().map(|(name, saved)| (name, saved.values)).collect()
        });
        self.loaded = (count > 0).then(|| LoadedState { buckets, begun, fields: fields.collect() });
        Ok(())
    }

    /// Returns the algorithm for buckets that have just arrived: the mean of the gradients until those of a loaded state come.
    pub(super) fn algorithm_of_pass(&self) -> AnyAlgorithm {
        match &self.loaded {
            Some(loaded) if loaded.buckets != described(&self.layout) => GradientAllReduce.into(),
            _ => self.algorithm.clone(),
        }
    }

    /// Loads the state if the buckets are those of its save.
    pub(super) fn take_loaded(&mut self) -> Result<()> {
        let buckets = described(&self.layout);
        let Some(loaded) = self.loaded.take_if(|loaded| loaded.buckets == buckets) else { return Ok(()) };
        self.present.begun = loaded.begun;
        self.scheduler.load_fields(loaded.fields, Fields::loading)
    }

    /// Fails if a state was loaded that is of other buckets than those that the framework has settled on.
    pub(super) fn check_loaded(&self) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let (saved, own) = (loaded.buckets.lines().count(), self.layout.len());
        let what =
            format!("the state of the hook has {saved} buckets that differ from the {own} of this model");
        Err(Error::usage(what, "load the state of the same model, with the same bucket sizes"))
    }

    fn between_passes(&self) -> Result<()> {
        if self.arrived.is_empty() {
            return Ok(());
        }
        Err(Error::usage("a state was requested within a pass", "save and load between two passes"))
    }

    fn facts(&self) -> Record {
        let mut record = Record::default();
        record.note("algorithm", self.algorithm.name());
        record.note("algorithm-options", format!("{:?}", self.algorithm));
        record.note("ranks", self.ranks.1);
        record.note("rank", self.ranks.0);
        record
    }
}

/// Returns a line for each bucket: element type and shapes.
fn described(layout: &[BucketTensors]) -> String {
    let line = |(dtype, tensors): &BucketTensors| {
        let shapes: Vec<_> = tensors.iter().map(|tensor| &tensor.shape).collect();
        format!("{dtype} {shapes:?}")
    };
    layout.iter().map(line).collect::<Vec<_>>().join("\n")
}
