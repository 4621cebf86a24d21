//! A copy of the engine state in host memory, which gets its names only when it is saved or loaded: a training that keeps each
//! step in memory drops most of them unread.

use super::Parameter;
use super::autotune::Tuning;
use super::plan::{ModelPlan, PlanLayout};
use crate::optimizer::LearningRate;
use crate::plugin::{Field, StepInfo};
use crate::record::Record;
use hexagram_logical::{Buffer, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State of an engine between two steps.
pub(crate) struct CapturedState {
    pub(super) facts: Facts,
    pub(super) plan: ModelPlan,
    /// True if the buckets are final and the algorithm has its states.
    pub(super) started: bool,
    /// Copies of parameters and optimizer state: names of the parts, and for each the parameters by index.
    pub(super) parts: Vec<(String, Vec<(usize, Buffer)>)>,
    pub(super) scaler: BTreeMap<String, Buffer>,
    /// State of the algorithm, by bucket.
    pub(super) fields: Vec<BTreeMap<String, Field>>,
    /// Weights of the replica, by bucket.
    pub(super) weights: Vec<f64>,
}

/// Facts of an engine at a step.
pub(super) struct Facts {
    /// Those that stay until the algorithm is switched.
    pub(super) fixed: Arc<BTreeMap<String, String>>,
    pub(super) present: StepInfo,
    pub(super) rate: Option<LearningRate>,
    pub(super) tuned: Option<Tuning>,
}

impl CapturedState {
    /// Returns the copies of parameters and optimizer state, for their memory.
    pub(super) fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        self.parts.into_iter().flat_map(|(_, copies)| copies).map(|(_, copy)| copy)
    }

    /// Returns the state by name.
    pub(crate) fn into_record(self) -> Result<Record> {
        let CapturedState { facts, plan, started, parts, scaler, fields, weights } = self;
        let mut record = facts.into_record();
        for (part, copies) in parts {
            for (index, values) in copies {
                let parameter = &plan.parameters()[index];
                let shape = kept_shape(parameter, values.len());
                record.put_tensor(&format!("{part}/{}", parameter.name), &shape, values)?;
            }
        }
        for (name, values) in scaler {
            record.put_tensor(&format!("scaler/{name}"), &[1], values)?;
        }
        if started {
            let PlanLayout { order, members, counts } = plan.layout();
            record.put("plan/order", &order)?;
            record.put("plan/members", &members)?;
            record.put("plan/counts", &counts)?;
        }
        put_fields(&mut record, fields)?;
        for (bucket, weight) in plan.buckets().iter().zip(weights) {
            for (index, _) in bucket.members.iter().filter(|_| weight != 1.0) {
                record.note(&format!("weight/{}", plan.parameters()[*index].name), weight);
            }
        }
        Ok(record)
    }
}

impl Facts {
    pub(super) fn into_record(self) -> Record {
        let mut record = Record { facts: (*self.fixed).clone(), ..Record::default() };
        record.note("step", self.present.step);
        record.note("updates", self.present.updates);
        record.note("algorithm-begun", self.present.begun);
        if let Some(rate) = self.rate {
            record.note("learning-rate", rate);
        }
        if let Some(Tuning { bucket_bytes, streams, hierarchical }) = self.tuned {
            record.note("tuned/bucket-bytes", bucket_bytes);
            record.note("tuned/streams", streams);
            record.note("tuned/hierarchical", hierarchical);
        }
        record
    }
}

/// Adds the fields of an algorithm to a record, and lists the names of those that survive among a different number of
/// ranks.
pub(super) fn put_fields(record: &mut Record, buckets: Vec<BTreeMap<String, Field>>) -> Result<()> {
    let mut lists: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (bucket, fields) in buckets.into_iter().enumerate() {
        for (name, Field { values, rule }) in fields {
            record.put_tensor(&format!("algorithm/{bucket}/{name}"), &[values.len()], values)?;
            if let Some(fact) = rule.fact() {
                lists.entry(fact).or_default().insert(name);
            }
        }
    }
    for (fact, names) in lists {
        record.note(fact, names.into_iter().collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}

/// Returns the shape under which `elements` elements of a parameter are saved: its own shape, if the numbers are equal.
pub(super) fn kept_shape(parameter: &Parameter, elements: usize) -> Vec<usize> {
    if elements == parameter.len() { parameter.shape.clone() } else { vec![elements] }
}
