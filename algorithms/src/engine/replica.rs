//! The replica's parameters in flat memory, with what the engine's optimizer remembers of them.

use super::EngineOptions;
use super::plan::Plan;
use crate::optimizer::{Optimizer, Update};
use crate::plugin::Turn;
use hexagram_logical::physical::memory::ReadView;
use hexagram_logical::{Buffer, DType, Device, Error, Host, Result};

/// By bucket.
#[derive(Default)]
struct Slot {
    /// `None` while the communication thread has them.
    parameters: Option<Buffer>,
    /// Of the optimizer.
    memory: Vec<Buffer>,
}

pub(super) struct Replica {
    /// None if neither optimizer nor algorithm works on parameters.
    slots: Option<Vec<Slot>>,
}

impl Replica {
    pub(super) fn new(plan: &Plan, options: &EngineOptions, algorithm: bool) -> Result<Self> {
        if options.optimizer.is_none() && !algorithm {
            return Ok(Replica { slots: None });
        }
        let count = options.optimizer.as_ref().map_or(0, |optimizer| optimizer.slots().len());
        let slot = |bucket: &super::plan::BucketPlan| -> Result<Slot> {
            let zeroed = || Buffer::zeroed(bucket.dtype, bucket.len);
            let memory = (0..count).map(|_| zeroed()).collect::<Result<_>>()?;
            Ok(Slot { parameters: Some(zeroed()?), memory })
        };
        Ok(Replica { slots: Some(plan.buckets().iter().map(slot).collect::<Result<_>>()?) })
    }

    pub(super) fn has_parameters(&self) -> bool {
        self.slots.is_some()
    }

    fn parameters(&self) -> Result<Vec<&Buffer>> {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| slot.parameters.as_ref().ok_or_else(at_work)).collect()
    }

    fn of(&self, plan: &Plan, parameter: usize) -> Result<(&Buffer, std::ops::Range<usize>)> {
        let (bucket, range) = plan.place(parameter)?;
        let slot = self.slots.as_ref().and_then(|slots| slots.get(bucket)).ok_or_else(not_here)?;
        Ok((slot.parameters.as_ref().ok_or_else(at_work)?, range))
    }

    pub(super) fn set(&mut self, plan: &Plan, parameter: usize, values: &Buffer) -> Result<()> {
        let (parameters, range) = self.of(plan, parameter)?;
        Host.copy(&values.read(0..values.len())?, &mut parameters.write(range)?)
    }

    pub(super) fn get(&self, plan: &Plan, parameter: usize) -> Result<ReadView> {
        let (parameters, range) = self.of(plan, parameter)?;
        parameters.read(range)
    }

    /// Moves everything into the buckets of another plan; into `registered` buffers where there are any.
    pub(super) fn relocate(&mut self, old: &Plan, new: &Plan, registered: Vec<Option<Buffer>>) -> Result<()> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let moved = |from: Vec<&Buffer>, to: Vec<Buffer>| -> Result<Vec<Buffer>> {
            old.relocate(&from, new, &to.iter().collect::<Vec<_>>())?;
            Ok(to)
        };
        let room = || -> Result<Vec<Buffer>> {
            new.buckets().iter().map(|bucket| Buffer::zeroed(bucket.dtype, bucket.len)).collect()
        };
        let to = registered.into_iter().zip(room()?).map(|(registered, plain)| registered.unwrap_or(plain));
        let parameters = moved(self.parameters()?, to.collect())?;
        let mut made: Vec<Slot> = parameters
            .into_iter()
            .map(|parameters| Slot { parameters: Some(parameters), memory: Vec::new() })
            .collect();
        let count = slots.first().map_or(0, |slot| slot.memory.len());
        for at in 0..count {
            let memory = moved(slots.iter().map(|slot| &slot.memory[at]).collect(), room()?)?;
            made.iter_mut().zip(memory).for_each(|(slot, memory)| slot.memory.push(memory));
        }
        self.slots = Some(made);
        Ok(())
    }

    /// A bucket's parameters for the hooks, if these ask for them.
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

    /// One step of the optimizer on every bucket.
    pub(super) fn step(
        &mut self,
        optimizer: &dyn Optimizer,
        turn: Turn,
        gradients: &[&Buffer],
    ) -> Result<()> {
        let Some(learning_rate) = turn.learning_rate else {
            return Err(Error::usage("there is no learning rate", "call DataParallel::set_learning_rate"));
        };
        let slots = self.slots.as_mut().ok_or_else(not_here)?;
        for (slot, gradients) in slots.iter_mut().zip(gradients) {
            let parameters = slot.parameters.as_mut().ok_or_else(at_work)?;
            let slots = &mut slot.memory;
            optimizer.step(Update { step: turn.step, learning_rate, gradients, parameters, slots })?;
        }
        Ok(())
    }

    /// Scales gradients down if their norm, over all buckets, exceeds the limit.
    pub(super) fn clip(&self, gradients: &[&Buffer], limit: f64) -> Result<()> {
        let mut sum = 0.0;
        for gradients in gradients {
            sum += match gradients.dtype() {
                DType::F32 => gradients.host::<f32>()?.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>(),
                DType::F64 => gradients.host::<f64>()?.iter().map(|g| g.powi(2)).sum(),
                other => {
                    let what = format!("gradients of {other} cannot be clipped");
                    return Err(Error::usage(what, "use f32 or f64"));
                }
            };
        }
        let norm = sum.sqrt();
        if norm <= limit {
            return Ok(());
        }
        gradients.iter().try_for_each(|g| Host.scale(limit / norm, &mut g.write(0..g.len())?))
    }
}

fn at_work() -> Error {
    Error::usage("the parameters are being worked on", "read and set them between two steps")
}

fn not_here() -> Error {
    let remedy = "set EngineOptions::optimizer, or use an algorithm that works on parameters";
    Error::usage("the engine does not have the parameters", remedy)
}
