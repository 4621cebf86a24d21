//! New buckets between two steps: the state of each parameter moves with it.

use super::super::plan::ModelPlan;
use super::super::{DataParallel, EngineOptions, hooks};
use hexagram_logical::{Buffer, DType, ReduceOp, Result};
use std::collections::BTreeMap;

/// Algorithm's state of each bucket, by name.
type States = Vec<BTreeMap<String, Buffer>>;

impl DataParallel {
    /// Returns the plan of the model in buckets of at most `bucket_bytes` bytes.
    pub(super) fn cut(&self, bucket_bytes: usize) -> ModelPlan {
        let first_bucket_bytes = self.options.first_bucket_bytes.min(bucket_bytes);
        let options = EngineOptions { bucket_bytes, first_bucket_bytes, ..self.options.clone() };
        hooks::lock(&self.backward).plan().recut(&options, self.algorithm.needs().buckets)
    }

    /// Continues with buckets of at most `bucket_bytes` bytes, if the state of the algorithm can be moved on every
    /// rank; returns true if it could.
    pub(super) fn recut(&mut self, bucket_bytes: usize) -> Result<bool> {
        let old = hooks::lock(&self.backward).plan().clone();
        let new = self.cut(bucket_bytes);
        self.settle()?;
        let moved = moved(&self.algorithm_state()?, &old, &new)?;
        let mut all = [i32::from(moved.is_some())];
        self.comm.blocking().all_reduce(&mut all, ReduceOp::Min)?;
        let Some(states) = moved.filter(|_| all == [1]) else {
            let algorithm = self.algorithm.name();
            tracing::info!(
                algorithm,
                "bucket sizes are not tuned: the algorithm's state is bound to its buckets"
            );
            return Ok(false);
        };
        self.install(new)?;
        self.set_algorithm_state(states)?;
        Ok(true)
    }
}

/// Returns the states in the new buckets; `None` if one does not have one number per element.
fn moved(states: &States, old: &ModelPlan, new: &ModelPlan) -> Result<Option<States>> {
    let mut to: States = new.buckets().iter().map(|_| BTreeMap::new()).collect();
    let Some(first) = states.first() else { return Ok(Some(to)) };
    if states.iter().any(|state| !state.keys().eq(first.keys())) {
        return Ok(None);
    }
    for name in first.keys() {
        let from: Vec<&Buffer> = states.iter().map(|state| &state[name]).collect();
        let Some(buffers) = moved_one(&from, old, new)? else { return Ok(None) };
        to.iter_mut().zip(buffers).for_each(|(state, buffer)| drop(state.insert(name.clone(), buffer)));
    }
    Ok(Some(to))
}

/// Returns one part of the state in the new buckets: with one number per element, or one number that is equal in all
/// buckets, such as a count.
fn moved_one(from: &[&Buffer], old: &ModelPlan, new: &ModelPlan) -> Result<Option<Vec<Buffer>>> {
    let fits = from.iter().zip(old.buckets()).all(|(buffer, bucket)| buffer.len() == bucket.len);
    if !fits {
        return the_same(from, new.buckets().len());
    }
    // Buckets of one element type have states of one element type.
    let mut types: Vec<(DType, DType)> = Vec::new();
    for (buffer, bucket) in from.iter().zip(old.buckets()) {
        match types.iter().find(|(of, _)| *of == bucket.dtype) {
            Some((_, dtype)) if *dtype != buffer.dtype() => return Ok(None),
            Some(_) => {}
            None => types.push((bucket.dtype, buffer.dtype())),
        }
    }
    let mut to = Vec::new();
    for bucket in new.buckets() {
        let Some((_, dtype)) = types.iter().find(|(of, _)| *of == bucket.dtype) else { return Ok(None) };
        to.push(Buffer::zeroed(*dtype, bucket.len)?);
    }
    old.relocate(from, new, &to)?;
    Ok(Some(to))
}

fn the_same(from: &[&Buffer], buckets: usize) -> Result<Option<Vec<Buffer>>> {
    let Some(first) = from.first() else { return Ok(None) };
    let view = first.read_all()?;
    let bytes = view.bytes_on_host()?;
    for buffer in from {
        let alike = (buffer.dtype(), buffer.len()) == (first.dtype(), 1);
        if !alike || buffer.read_all()?.bytes_on_host()? != bytes {
            return Ok(None);
        }
    }
    (0..buckets).map(|_| first.copied()).collect::<Result<_>>().map(Some)
}
