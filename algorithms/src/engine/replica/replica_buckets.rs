//! The parameters of the replica in flat memory, with the state of the engine optimizer.

use super::queues::Queues;
use crate::engine::EngineOptions;
use crate::engine::plan::{BucketRange, ModelPlan, relocate};
use crate::engine::precision::{narrow, widen};
use crate::optimizer::{Optimizer, ParameterGroup, Section, Update, check_names, sections};
use crate::plugin::{Slots, StepInfo, Tensor};
use hexagram_logical::{Buffer, Error, ReadView, Result};
use std::ops::Range;
use std::sync::Arc;

/// Parameters of one bucket, and their optimizer state.
struct ReplicaBucket {
    /// Parameters; `None` while the communication thread owns them.
    parameters: Option<Buffer>,
    /// Address of the parameters when this thread last owned them.
    place: usize,
    /// State of the optimizer, one buffer per slot.
    memory: Vec<Buffer>,
    tensors: Arc<[Tensor]>,
    sections: Vec<Section>,
}

pub(crate) struct ReplicaBuckets {
    /// Buckets of the replica; `None` if neither optimizer nor algorithm works on parameters.
    buckets: Option<Vec<ReplicaBucket>>,
    optimizer: Option<Arc<dyn Optimizer>>,
    groups: Vec<ParameterGroup>,
    /// Number of times that a hook has replaced the buffer of the parameters of a bucket.
    moved: u64,
}

/// Part of a replica that is saved by name: the parameters, or a slot of the optimizer.
pub(crate) struct SavedPart<'a> {
    /// Prefix of the names of the parameters.
    pub(crate) name: String,
    buffers: Vec<&'a Buffer>,
    places: Vec<BucketRange>,
}

impl SavedPart<'_> {
    /// Returns the buffer and range of a parameter; `None` if this part has nothing for it.
    pub(crate) fn of(&self, parameter: usize) -> Option<(&Buffer, Range<usize>)> {
        let (bucket, range) = self.places.get(parameter)?;
        let buffer = self.buffers.get(*bucket)?;
        let slot_without = range.is_empty() && self.name != PARAMETER;
        (!slot_without).then(|| (*buffer, range.clone()))
    }
}

/// Name of the part with the parameters themselves.
const PARAMETER: &str = "parameter";

impl ReplicaBuckets {
    pub(crate) fn new(
        plan: &ModelPlan,
        options: &EngineOptions,
        queues: &Queues,
        algorithm: bool,
    ) -> Result<Self> {
        let tensors = plan.tensors();
        check_names(&options.groups, tensors.iter().flat_map(|tensors| tensors.iter()))?;
        let optimizer = options.optimizer.clone();
        let mut replica =
            ReplicaBuckets { buckets: None, optimizer, groups: options.groups.clone(), moved: 0 };
        if options.optimizer.is_some() || algorithm {
            replica.buckets = Some(replica.zeroed(plan, queues, Vec::new())?);
        }
        Ok(replica)
    }

    /// Creates zeroed buckets of a plan, with the given buffers for parameters, if any.
    fn zeroed(
        &self,
        plan: &ModelPlan,
        queues: &Queues,
        registered: Vec<Option<Buffer>>,
    ) -> Result<Vec<ReplicaBucket>> {
        let lens: Vec<Vec<usize>> = self.slots().map(|slot| self.places(plan, slot).1).collect();
        let mut registered = registered.into_iter();
        let mut buckets = Vec::new();
        for (at, (bucket, tensors)) in plan.buckets().iter().zip(plan.tensors()).enumerate() {
            let given = registered.next().flatten();
            let parameters =
                given.map_or_else(|| Buffer::zeroed_on(queues.of(at), bucket.dtype, bucket.len), Ok)?;
            let beside = |lens: &Vec<usize>| parameters.zeroed_same_device(bucket.dtype, lens[at]);
            let memory = lens.iter().map(beside).collect::<Result<_>>()?;
            let sections = sections(&self.groups, &tensors);
            let place = parameters.address().addr().get();
            buckets.push(ReplicaBucket { parameters: Some(parameters), place, memory, tensors, sections });
        }
        Ok(buckets)
    }

    /// Returns the names of the slots of the optimizer.
    fn slots(&self) -> impl Iterator<Item = &'static str> {
        self.optimizer.iter().flat_map(|optimizer| optimizer.slots()).copied()
    }

    /// Returns the place of each parameter in a slot, and the total for each bucket.
    fn places(&self, plan: &ModelPlan, slot: &str) -> (Vec<BucketRange>, Vec<usize>) {
        plan.packed(|tensor| self.optimizer.as_ref().map_or(0, |optimizer| optimizer.slot_len(slot, tensor)))
    }

    /// Replaces the parameter groups of the optimizer.
    pub(super) fn set_groups(&mut self, groups: Vec<ParameterGroup>) {
        self.groups = groups;
        for bucket in self.buckets.iter_mut().flatten() {
            bucket.sections = sections(&self.groups, &bucket.tensors);
        }
    }

    pub(crate) fn has_parameters(&self) -> bool {
        self.buckets.is_some()
    }

    /// Returns the complete replica: parameters, and the optimizer state if requested.
    pub(crate) fn buffers(&mut self, memory: bool) -> Result<Vec<&mut Buffer>> {
        let mut all = Vec::new();
        for bucket in self.buckets.iter_mut().flatten() {
            all.push(bucket.parameters.as_mut().ok_or_else(at_work)?);
            all.extend(bucket.memory.iter_mut().filter(|slot| memory && !slot.is_empty()));
        }
        Ok(all)
    }

    /// Returns the parameters and their optimizer state, by name.
    pub(crate) fn memories(&self, plan: &ModelPlan) -> Result<Vec<SavedPart<'_>>> {
        self.buckets.as_ref().map_or_else(|| Ok(Vec::new()), |buckets| self.kept(plan, buckets))
    }

    fn kept<'a>(&self, plan: &ModelPlan, buckets: &'a [ReplicaBucket]) -> Result<Vec<SavedPart<'a>>> {
        let parameters = buckets.iter().map(|bucket| bucket.parameters.as_ref().ok_or_else(at_work));
        let buffers = parameters.collect::<Result<_>>()?;
        let places = plan.packed(|tensor| tensor.elements.len()).0;
        let mut all = vec![SavedPart { name: PARAMETER.to_owned(), buffers, places }];
        for (at, slot) in self.slots().enumerate() {
            let buffers = buckets.iter().map(|bucket| &bucket.memory[at]).collect();
            all.push(SavedPart {
                name: format!("optimizer/{slot}"),
                buffers,
                places: self.places(plan, slot).0,
            });
        }
        Ok(all)
    }

    /// Returns the number of times that a hook has replaced the parameter buffer of a bucket.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the parameters of a bucket, if the engine has them.
    pub(crate) fn parameters(&self, bucket: usize) -> Result<Option<&Buffer>> {
        let Some(buckets) = &self.buckets else { return Ok(None) };
        buckets.get(bucket).map(|bucket| bucket.parameters.as_ref().ok_or_else(at_work)).transpose()
    }

    fn of(&self, plan: &ModelPlan, parameter: usize) -> Result<(&Buffer, Range<usize>)> {
        let (bucket, range) = plan.place(parameter)?;
        let bucket = self.buckets.as_ref().and_then(|buckets| buckets.get(bucket)).ok_or_else(not_here)?;
        Ok((bucket.parameters.as_ref().ok_or_else(at_work)?, range))
    }

    pub(crate) fn set(&mut self, plan: &ModelPlan, parameter: usize, values: &Buffer) -> Result<()> {
        let announced = &plan.parameter(parameter)?;
        if (values.dtype(), values.len()) != (announced.dtype, announced.len()) {
            let given =
                format!("parameter `{}` was given {} × {}", announced.name, values.len(), values.dtype());
            let remedy = format!("{} × {} were announced", announced.len(), announced.dtype);
            return Err(Error::usage(given, remedy));
        }
        let (parameters, range) = self.of(plan, parameter)?;
        widen(&values.read_all()?, &mut parameters.write(range)?, false)
    }

    pub(crate) fn get(&self, plan: &ModelPlan, parameter: usize) -> Result<ReadView> {
        let (parameters, range) = self.of(plan, parameter)?;
        narrow(parameters, range, plan.parameter(parameter)?.dtype)
    }

    /// Moves everything into the buckets of another plan, and into `registered` buffers where given.
    pub(crate) fn relocate(
        &mut self,
        old: &ModelPlan,
        new: &ModelPlan,
        queues: &Queues,
        registered: Vec<Option<Buffer>>,
    ) -> Result<()> {
        if self.buckets.is_none() {
            return Ok(());
        }
        let made = self.zeroed(new, queues, registered)?;
        for (from, to) in self.memories(old)?.iter().zip(self.kept(new, &made)?) {
            relocate(&from.buffers, &from.places, &to.buffers, &to.places)?;
        }
        self.buckets = Some(made);
        Ok(())
    }

    /// Takes the parameters of a bucket for the hooks, if `asked`.
    pub(crate) fn lend(&mut self, bucket: usize, asked: bool) -> Result<Option<Buffer>> {
        match &mut self.buckets {
            Some(buckets) if asked => buckets[bucket].parameters.take().map(Some).ok_or_else(at_work),
            _ => Ok(None),
        }
    }

    /// Takes the optimizer state of a bucket, for a hook after its step; `None` without an optimizer of the engine.
    pub(crate) fn lend_slots(&mut self, bucket: usize) -> Option<Slots> {
        let names = self.optimizer.as_ref()?.slots();
        let memory = std::mem::take(&mut self.buckets.as_mut()?[bucket].memory);
        Some(Slots::new(names, memory))
    }

    pub(crate) fn take_back(&mut self, bucket: usize, parameters: Option<Buffer>, slots: Option<Slots>) {
        let Some(buckets) = &mut self.buckets else { return };
        if let Some(parameters) = parameters {
            let now = parameters.address().addr().get();
            if std::mem::replace(&mut buckets[bucket].place, now) != now {
                self.moved += 1;
            }
            buckets[bucket].parameters = Some(parameters);
        }
        if let Some(slots) = slots {
            buckets[bucket].memory = slots.into_buffers();
        }
    }

    /// Returns the ranges of the `chosen` parameters in the memory of a bucket: buffer index (0 for the parameters,
    /// then the slots of the optimizer) and elements.
    pub(crate) fn parts_of(
        &self,
        plan: &ModelPlan,
        bucket: usize,
        chosen: &[bool],
    ) -> Vec<(usize, Range<usize>)> {
        let members = plan.buckets()[bucket].members.iter().filter(|(index, _)| chosen[*index]);
        let members: Vec<&(usize, Range<usize>)> = members.collect();
        if members.is_empty() {
            return Vec::new();
        }
        let mut parts: Vec<_> = members.iter().map(|(_, range)| (0, range.clone())).collect();
        for (at, slot) in self.slots().enumerate() {
            let places = self.places(plan, slot).0;
            parts.extend(members.iter().map(|(index, _)| (at + 1, places[*index].1.clone())));
        }
        parts
    }

    /// Makes one optimizer step on a bucket, and leaves the given parts of its memory unchanged.
    pub(crate) fn step(
        &mut self,
        optimizer: &dyn Optimizer,
        present: StepInfo,
        bucket: usize,
        gradients: &Buffer,
        idle: &[(usize, Range<usize>)],
    ) -> Result<()> {
        let Some(learning_rate) = present.learning_rate else {
            return Err(Error::usage(
                "the learning rate is not set",
                "set the option `learning_rate`, or call `set_learning_rate`",
            ));
        };
        let bucket = &mut self.buckets.as_mut().ok_or_else(not_here)?[bucket];
        let parameters = bucket.parameters.as_mut().ok_or_else(at_work)?;
        let kept = kept_apart(parameters, &bucket.memory, idle)?;
        optimizer.step(Update {
            step: present.updates,
            learning_rate,
            tensors: &bucket.tensors,
            sections: &bucket.sections,
            gradients,
            parameters,
            slots: &mut bucket.memory,
        })?;
        for ((buffer, range), values) in idle.iter().zip(kept) {
            let to = buffer.checked_sub(1).map_or(&*parameters, |slot| &bucket.memory[slot]);
            to.write(range.clone())?.copy_from(&values.read_all()?)?;
        }
        Ok(())
    }
}

/// Returns copies of parts of the memory of a bucket.
fn kept_apart(parameters: &Buffer, slots: &[Buffer], parts: &[(usize, Range<usize>)]) -> Result<Vec<Buffer>> {
    let copy = |(buffer, range): &(usize, Range<usize>)| {
        let from = buffer.checked_sub(1).map_or(parameters, |slot| &slots[slot]);
        let copy = from.zeroed_same_device(from.dtype(), range.len())?;
        copy.write_all()?.copy_from(&from.read(range.clone())?)?;
        Ok(copy)
    };
    parts.iter().map(copy).collect()
}

fn at_work() -> Error {
    Error::usage(
        "the algorithm is working on the parameters",
        "read and set them before the forward pass or after `finish`",
    )
}

fn not_here() -> Error {
    let remedy = "set the option `optimizer`, or use an algorithm that works on parameters";
    Error::usage("the engine does not have the parameters", remedy)
}
