//! The state of the algorithm, saved and loaded between two steps.

use super::Scheduler;
use crate::plugin::{Field, Fields, Instance};
use hexagram_logical::{Buffer, Result};
use std::collections::BTreeMap;

impl Scheduler {
    /// Returns the state of the algorithm, by bucket. No communication is in progress.
    pub(crate) fn fields(&self) -> Result<Vec<BTreeMap<String, Field>>> {
        self.call(async |runner| {
            let save = |instance: &mut Box<dyn Instance>| {
                let mut fields = Fields::saving();
                instance.checkpoint(&mut fields)?;
                fields.finish_with_rules()
            };
            runner.instances()?.into_iter().map(save).collect()
        })
    }

    /// Restores fields that `loading` has created, by bucket.
    pub(crate) fn load_fields(
        &self,
        saved: Vec<BTreeMap<String, Buffer>>,
        loading: fn(BTreeMap<String, Buffer>) -> Fields,
    ) -> Result<()> {
        // All ranks must learn of a state that does not fit before the communication thread ends.
        self.call(async move |runner| {
            let load = |(instance, saved): (&mut Box<dyn Instance>, _)| {
                let mut fields = loading(saved);
                instance.checkpoint(&mut fields)?;
                fields.finish().map(drop)
            };
            Ok(runner.instances()?.into_iter().zip(saved).try_for_each(load))
        })?
    }
}
