//! The replica's parameters in flat memory, with what the engine's optimizer remembers of them.

use super::EngineOptions;
use super::plan::Plan;
use super::precision::{narrow, widen};
use crate::optimizer::{Optimizer, Update};
use crate::plugin::StepInfo;
use hexagram_logical::{Buffer, Error, Queue, ReadView, Result};

/// Parameters of one bucket, and the optimizer's state of them.
#[derive(Default)]
struct ReplicaBucket {
    /// Parameters; `None` while the communication thread has them.
    parameters: Option<Buffer>,
    /// State of the optimizer, one buffer for each of its slots.
    memory: Vec<Buffer>,
}

pub(super) struct Replica {
    /// Buckets of the replica; `None` if neither optimizer nor algorithm works on parameters.
    slots: Option<Vec<ReplicaBucket>>,
    /// Names of the optimizer's slots.
    names: &'static [&'static str],
}

impl Replica {
    pub(super) fn new(plan: &Plan, options: &EngineOptions, algorithm: bool) -> Result<Self> {
        if options.optimizer.is_none() && !algorithm {
            return Ok(Replica { slots: None, names: &[] });
        }
        let names: &[&str] = options.optimizer.as_ref().map_or(&[], |optimizer| optimizer.slots());
        let slot = |bucket: &super::plan::BucketPlan| -> Result<ReplicaBucket> {
            let parameters = Buffer::zeroed_on(&options.queue, bucket.dtype, bucket.len)?;
            let beside = |_| parameters.beside(bucket.dtype, bucket.len);
            let memory = names.iter().map(beside).collect::<Result<_>>()?;
            Ok(ReplicaBucket { parameters: Some(parameters), memory })
        };
        Ok(Replica { slots: Some(plan.buckets().iter().map(slot).collect::<Result<_>>()?), names })
    }

    pub(super) fn has_parameters(&self) -> bool {
        self.slots.is_some()
    }

    fn parameters(&self) -> Result<Vec<&Buffer>> {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| slot.parameters.as_ref().ok_or_else(at_work)).collect()
    }

    /// Returns everything that makes the replica: parameters, and the optimizer's state if asked for.
    pub(super) fn buffers(&mut self, memory: bool) -> Result<Vec<&mut Buffer>> {
        let mut all = Vec::new();
        for slot in self.slots.iter_mut().flatten() {
            all.push(slot.parameters.as_mut().ok_or_else(at_work)?);
            all.extend(slot.memory.iter_mut().filter(|_| memory));
        }
        Ok(all)
    }

    /// Returns the parameters and the optimizer's state of them, each by name and bucket.
    pub(super) fn memories(&self) -> Result<Vec<(String, Vec<&Buffer>)>> {
        let Some(slots) = &self.slots else { return Ok(Vec::new()) };
        let mut all = vec![("parameter".to_owned(), self.parameters()?)];
        for (at, name) in self.names.iter().enumerate() {
            all.push((format!("optimizer/{name}"), slots.iter().map(|slot| &slot.memory[at]).collect()));
        }
        Ok(all)
    }

    fn of(&self, plan: &Plan, parameter: usize) -> Result<(&Buffer, std::ops::Range<usize>)> {
        let (bucket, range) = plan.place(parameter)?;
        let slot = self.slots.as_ref().and_then(|slots| slots.get(bucket)).ok_or_else(not_here)?;
        Ok((slot.parameters.as_ref().ok_or_else(at_work)?, range))
    }

    pub(super) fn set(&mut self, plan: &Plan, parameter: usize, values: &Buffer) -> Result<()> {
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

    pub(super) fn get(&self, plan: &Plan, parameter: usize) -> Result<ReadView> {
        let (parameters, range) = self.of(plan, parameter)?;
        narrow(parameters, range, plan.parameter(parameter)?.dtype)
    }

    /// Moves everything into the buckets of another plan; into `registered` buffers where there are any.
    pub(super) fn relocate(
        &mut self,
        old: &Plan,
        new: &Plan,
        queue: &Queue,
        registered: Vec<Option<Buffer>>,
    ) -> Result<()> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let moved = |from: Vec<&Buffer>, to: Vec<Buffer>| -> Result<Vec<Buffer>> {
            old.relocate(&from, new, &to.iter().collect::<Vec<_>>())?;
            Ok(to)
        };
        let room = || -> Result<Vec<Buffer>> {
            new.buckets().iter().map(|bucket| Buffer::zeroed_on(queue, bucket.dtype, bucket.len)).collect()
        };
        let to = registered.into_iter().zip(room()?).map(|(registered, plain)| registered.unwrap_or(plain));
        let parameters = moved(self.parameters()?, to.collect())?;
        let mut made: Vec<ReplicaBucket> = parameters
            .into_iter()
            .map(|parameters| ReplicaBucket { parameters: Some(parameters), memory: Vec::new() })
            .collect();
        let count = slots.first().map_or(0, |slot| slot.memory.len());
        for at in 0..count {
            let memory = moved(slots.iter().map(|slot| &slot.memory[at]).collect(), room()?)?;
            made.iter_mut().zip(memory).for_each(|(slot, memory)| slot.memory.push(memory));
        }
        self.slots = Some(made);
        Ok(())
    }

    /// Takes a bucket's parameters for the hooks, if these ask for them.
    pub(super) fn lend(&mut self, bucket: usize, asked: bool) -> Result<Option<Buffer>> {
        match &mut self.slots {
            Some(slots) if asked => slots[bucket].parameters.take().map(Some).ok_or_else(at_work),
            _ => Ok(None),
        }
    }

    pub(super) fn take_back(&mut self, bucket: usize, parameters: Option<Buffer>) {
        if let (Some(slots), Some(parameters)) = (&mut self.slots, parameters) {
            slots[bucket].parameters = Some(parameters);
        }
    }

    /// Makes one step of the optimizer on a bucket.
    pub(super) fn step(
        &mut self,
        optimizer: &dyn Optimizer,
        present: StepInfo,
        bucket: usize,
        gradients: &Buffer,
    ) -> Result<()> {
        let Some(learning_rate) = present.learning_rate else {
            return Err(Error::usage("there is no learning rate", "call DataParallel::set_learning_rate"));
        };
        let slot = &mut self.slots.as_mut().ok_or_else(not_here)?[bucket];
        let parameters = slot.parameters.as_mut().ok_or_else(at_work)?;
        optimizer.step(Update {
            step: present.step,
            learning_rate,
            gradients,
            parameters,
            slots: &mut slot.memory,
        })
    }
}

fn at_work() -> Error {
    Error::usage(
        "the algorithm is working on the parameters",
        "read and set them before the forward pass or after `finish`",
    )
}

fn not_here() -> Error {
    let remedy = "set EngineOptions::optimizer, or use an algorithm that works on parameters";
    Error::usage("the engine does not have the parameters", remedy)
}
