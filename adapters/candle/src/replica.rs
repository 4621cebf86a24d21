//! One rank's copy of a candle model, trained together with the other ranks' copies.

use crate::error::{Error, Result};
use crate::parameters::{Entries, Entry, Tapped};
use crate::tap::{Engine, refresh};
use crate::values::{dtype, same_elements, to_buffer, to_tensor};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor};
use candle_nn::{Optimizer, VarBuilder, VarMap};
use hexagram_algorithms::logical::{Communicator, ReduceOp};
use hexagram_algorithms::{AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter};
use std::sync::Arc;

/// How a model is built and trained. All ranks must use the same.
#[derive(Clone)]
pub struct ReplicaOptions {
    /// What the ranks communicate.
    pub algorithm: Arc<dyn AnyAlgorithm>,
    /// Buckets, and what to do with unused parameters.
    pub engine: EngineOptions,
    /// Type of the parameters that the model creates.
    pub dtype: candle_core::DType,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        ReplicaOptions {
            algorithm: Arc::new(GradientAllReduce),
            engine: EngineOptions::default(),
            dtype: candle_core::DType::F32,
        }
    }
}

/// This rank's copy of a model, and its connection to the others.
///
/// A `Var` that the model did not get from the builder is neither synchronized nor, so that replicas cannot drift apart
/// through it, ever given a gradient.
pub struct Replica {
    engine: DataParallel,
    /// Parameters, in the engine's numbering.
    parameters: Vec<Entry>,
    /// Everything that makes the replica, running statistics included.
    tensors: Vec<Entry>,
}

/// Synchronized gradients, to be used in one optimizer step.
#[must_use = "without a step the gradients are lost"]
pub struct Synchronized<'a> {
    replica: &'a Replica,
    gradients: GradStore,
}

impl Replica {
    /// Builds the model with `model`, from a builder over `varmap`; gives it rank 0's values, on every rank.
    ///
    /// A collective call. Values that `varmap` already holds (a loaded checkpoint) are kept, as an ordinary builder does.
    ///
    /// # Errors
    /// What `model` returns; [`Error::Hexagram`] if the ranks build different models.
    pub fn build<M>(
        comm: &Communicator,
        varmap: &VarMap,
        options: ReplicaOptions,
        model: impl FnOnce(VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<(M, Self)> {
        let (entries, engine) = (Entries::default(), Engine::default());
        let (varmap, seen, hooks) = (varmap.clone(), entries.clone(), Arc::clone(&engine));
        let backend = Box::new(Tapped { varmap, entries: seen, engine: hooks });
        let builder = VarBuilder::from_backend(backend, options.dtype, Device::Cpu);
        let model = model(builder).inspect_err(|error| {
            comm.give_up(&hexagram_algorithms::logical::Error::usage(
                format!("the model could not be built: {error}"),
                "see this rank's own error",
            ));
        })?;
        let tensors = entries.lock().clone();
        let parameters: Vec<Entry> = tensors.iter().filter(|entry| entry.tap.is_some()).cloned().collect();
        let listed: Result<Vec<Parameter>> = parameters.iter().map(announce).collect();
        let data_parallel = DataParallel::new(comm, listed?, options.algorithm, options.engine)?;
        // Set once, here.
        let _ = engine.set(data_parallel.hooks());
        let replica = Replica { engine: data_parallel, parameters, tensors };
        replica.broadcast()?;
        Ok((model, replica))
    }

    /// Gives every replica rank 0's parameters and running statistics.
    fn broadcast(&self) -> Result<()> {
        for Entry { var, .. } in &self.tensors {
            let mut values = to_buffer(var)?;
            self.engine.broadcast(&mut values)?;
            let view = values.read(0..values.len())?;
            var.set(&to_tensor(&view, values.dtype(), var.shape())?)?;
        }
        self.refresh()
    }

    /// The backward pass of `loss`, the synchronization of its gradients, and one step of `optimizer`: what
    /// `optimizer.backward_step(&loss)` is in an ordinary program.
    ///
    /// # Errors
    /// As [`Replica::backward`], and the optimizer's own.
    pub fn backward_step(&mut self, optimizer: &mut impl Optimizer, loss: &Tensor) -> Result<()> {
        self.backward(loss)?.step(optimizer)
    }

    /// The backward pass of `loss`, with gradients as the algorithm left them, including what
    /// [`Replica::backward_no_sync`] has accumulated. Communication overlaps with the pass.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if a parameter got no gradient or was changed behind the replica's back, or if communication
    /// failed; [`Error::Candle`] from the pass itself. No rank can go on afterwards.
    pub fn backward(&mut self, loss: &Tensor) -> Result<Synchronized<'_>> {
        self.pass(loss, Mode::Synchronize)?;
        let mut gradients = GradStore::default();
        for (index, Entry { var, .. }) in self.parameters.iter().enumerate() {
            let gradient = to_tensor(&self.engine.gradient(index)?, dtype(var)?, var.shape())?;
            gradients.insert(var, gradient);
        }
        Ok(Synchronized { replica: self, gradients })
    }

    /// The backward pass of `loss`, whose gradients are added to those of the next [`Replica::backward`] and are not
    /// communicated: gradient accumulation.
    ///
    /// # Errors
    /// As [`Replica::backward`].
    pub fn backward_no_sync(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, Mode::Accumulate)
    }

    fn pass(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        let outcome = self.check_fresh().and_then(|()| {
            self.engine.begin(mode)?;
            let gradients = loss.backward()?;
            self.check_untapped(&gradients)?;
            Ok(self.engine.finish()?)
        });
        outcome.inspect_err(|error| self.engine.communicator().give_up(&error.to_hexagram()))
    }

    /// The model computes with copies. If they are stale, the loss is that of another model, on this rank only.
    fn check_fresh(&self) -> Result<()> {
        for Entry { name, var, tap } in &self.parameters {
            if let Some(tap) = tap
                && !same_elements(var, tap)?
            {
                let remedy = "step with Replica::backward_step or Synchronized::step, or call Replica::refresh after a \
                              change of your own";
                return Err(Error::usage(
                    format!("parameter `{name}` was changed without its replica"),
                    remedy,
                ));
            }
        }
        Ok(())
    }

    /// A gradient that reached a parameter past its tap would not be synchronized.
    fn check_untapped(&self, gradients: &GradStore) -> Result<()> {
        match self.tensors.iter().find(|entry| gradients.get(&entry.var).is_some()) {
            None => Ok(()),
            Some(Entry { name, tap: Some(_), .. }) => {
                let what = format!("parameter `{name}` was used past its builder, as a Var of the VarMap");
                Err(Error::usage(what, "use the tensor that the VarBuilder returned"))
            }
            Some(Entry { name, tap: None, .. }) => {
                let what = format!("`{name}` got a gradient, but by its name it is a running statistic");
                Err(Error::usage(what, "give trainable parameters another name"))
            }
        }
    }

    /// Brings the model up to date after the program itself has changed parameters, for example by loading a checkpoint.
    /// All ranks must make the same change.
    ///
    /// # Errors
    /// [`Error::Candle`] from the copy.
    pub fn refresh(&self) -> Result<()> {
        for Entry { var, tap, .. } in &self.parameters {
            if let Some(tap) = tap {
                refresh(tap, var)?;
            }
        }
        Ok(())
    }

    /// Replaces every parameter and running statistic by its mean over the ranks: the model to evaluate and to save,
    /// whatever the algorithm. A collective call.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed.
    pub fn average(&mut self) -> Result<()> {
        let comm = self.engine.communicator();
        for Entry { var, .. } in &self.tensors {
            let mut values = to_buffer(var)?;
            comm.block_on(comm.all_reduce(&mut values, ReduceOp::Mean))?;
            let view = values.read(0..values.len())?;
            var.set(&to_tensor(&view, values.dtype(), var.shape())?)?;
        }
        self.refresh()
    }

    /// Whether the parameters of all replicas are bit-identical. Running statistics are of each rank's own samples and
    /// do not count. A collective call; every rank gets the same answer.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed.
    pub fn is_identical(&self) -> Result<bool> {
        let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
        for Entry { var, .. } in &self.parameters {
            let values = to_buffer(var)?;
            for byte in values.read(0..values.len())?.bytes() {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        let comm = self.engine.communicator();
        let mut all = vec![0; comm.size()];
        comm.blocking().all_gather(&[digest as i64], &mut all)?;
        Ok(all.iter().all(|other| *other == digest as i64))
    }

    /// The engine underneath: statistics, buckets, the communicator.
    pub fn engine(&self) -> &DataParallel {
        &self.engine
    }
}

fn announce(entry: &Entry) -> Result<Parameter> {
    let (name, dtype, shape) = (entry.name.clone(), dtype(&entry.var)?, entry.var.dims().to_vec());
    Ok(Parameter { name, dtype, shape })
}

impl Synchronized<'_> {
    /// The gradients, to look at or to clip.
    pub fn gradients(&mut self) -> &mut GradStore {
        &mut self.gradients
    }

    /// One step of `optimizer` with these gradients.
    ///
    /// # Errors
    /// The optimizer's own. No rank can go on afterwards.
    pub fn step(self, optimizer: &mut impl Optimizer) -> Result<()> {
        let outcome = optimizer.step(&self.gradients).map_err(Error::from);
        let outcome = outcome.and_then(|()| self.replica.refresh());
        outcome.inspect_err(|error| self.replica.engine.communicator().give_up(&error.to_hexagram()))
    }
}
