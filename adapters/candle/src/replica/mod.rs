//! The copy of a candle model on one rank, trained together with those of the other ranks.
//!
//! | file | content |
//! |---|---|
//! | `mod` | construction, passes and steps |
//! | `checks` | checks of a backward pass |
//! | `overlap` | communication during the next forward pass |
//! | `synchronized`, `own_gradients` | gradients for an optimizer of candle; those that a rank keeps for itself |
//! | `mean` | the mean of the replicas |
//! | `checkpoint` | the state on disk |

mod checkpoint;
mod checks;
mod mean;
mod overlap;
mod own_gradients;
mod synchronized;

pub use synchronized::Synchronized;

use crate::error::{Error, Result};
use crate::model::{
    EngineSlot, Entries, ModelMemory, ModelTensor, RequestedTensors, Tapped, TensorRoles, dtype,
};
use crate::options::ReplicaOptions;
use candle_core::backprop::GradStore;
use candle_core::{Shape, Tensor};
use candle_nn::{Optimizer, VarBuilder, VarMap};
use hexagram_algorithms::logical::{Buffer, Communicator, ReadView, hash};
use hexagram_algorithms::trace::Trace;
use hexagram_algorithms::{AnyAlgorithm, DataParallel, LearningRate, Mode, Overlap, Parameter};
use own_gradients::OwnGradients;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The copy of a model on this rank, and its connection to the others.
///
/// A step is [`Replica::step`], with the optimizer of the engine
/// ([`EngineOptions::optimizer`](hexagram_algorithms::EngineOptions::optimizer)), or [`Replica::backward_step`], with
/// one of candle. The former is faster: the engine steps on flat memory, and the parameters are copied to the `Var`s
/// and the model in one pass.
///
/// A `Var` that the model did not get from the builder is not synchronized. It never gets a gradient either, so
/// replicas cannot drift apart through it.
pub struct Replica {
    pub(crate) engine: DataParallel,
    pub(crate) home: ModelMemory,
    /// Parameters, by index in the engine.
    pub(crate) parameters: Vec<ModelTensor>,
    /// All tensors of the replica, including running statistics.
    pub(crate) tensors: Vec<ModelTensor>,
    /// Number of backward passes so far.
    pub(crate) passes: u64,
    /// Gradients of the tensors that each rank keeps for itself.
    own_gradients: OwnGradients,
    /// True if running statistics were synchronized before the forward pass of this step.
    forwarded: bool,
    /// True if the algorithm receives the loss.
    tells_loss: bool,
    /// Sum of the losses of the current step.
    loss: f64,
    /// True if a step leaves parameters in progress: [`Overlap::Forward`].
    pub(crate) overlaps_forward: bool,
    /// Parameters that the last step has left in progress, and that no wait has copied to the model yet.
    pub(crate) awaited: RefCell<BTreeSet<usize>>,
    /// Type of the candle optimizer that has stepped, if it may have state that a checkpoint lacks.
    pub(crate) unreached: Option<&'static str>,
}

impl Replica {
    /// Builds the model with `model`, from a builder over `varmap`, and copies the values of rank 0 to every rank.
    ///
    /// A collective call. Values that `varmap` already contains (a loaded checkpoint) are kept, as by an ordinary
    /// builder.
    ///
    /// # Errors
    /// The errors of `model`; [`Error::Hexagram`] if the ranks build different models.
    pub fn build<M>(
        comm: &Communicator,
        varmap: &VarMap,
        options: ReplicaOptions,
        model: impl FnOnce(VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<(M, Self)> {
        let mut options = options;
        let home = ModelMemory::open(&options.device, &mut options.engine, comm.world().deadline())
            .inspect_err(|error| {
                comm.give_up(&error.to_hexagram());
            })?;
        let entries = Entries::default();
        let engine = EngineSlot::default();
        let varmap = varmap.clone();
        let seen = entries.clone();
        let hooks = Arc::clone(&engine);
        let roles = TensorRoles { buffers: options.buffers, ignored: options.ignored };
        let backend = Box::new(Tapped {
            varmap,
            entries: seen,
            roles: roles.clone(),
            engine: hooks,
            home: home.clone(),
        });
        let builder = VarBuilder::from_backend(backend, options.dtype, options.device);
        let model = model(builder).inspect_err(|error| {
            comm.give_up(&hexagram_algorithms::logical::Error::usage(
                format!("the model could not be built: {error}"),
                "see this rank's own error",
            ));
        })?;
        let RequestedTensors { entries: tensors, ignored } = entries.lock().clone();
        let all = tensors.iter().map(|entry| &*entry.name).chain(ignored.iter().map(|(name, _)| &**name));
        roles.check(all).inspect_err(|error| comm.give_up(&error.to_hexagram()))?;
        let parameters: Vec<ModelTensor> =
            tensors.iter().filter(|entry| entry.tap.is_some()).cloned().collect();
        let listed: Result<Vec<Parameter>> = parameters.iter().map(announce).collect();
        let overlaps_forward = options.engine.overlap == Overlap::Forward;
        let mut data_parallel = DataParallel::new(comm, listed?, options.algorithm, options.engine)?;
        home.stamp_passes(&mut data_parallel);
        // Set once, here.
        let _ = engine.set(data_parallel.hooks());
        let mut replica = Replica {
            engine: data_parallel,
            own_gradients: OwnGradients::of(ignored),
            forwarded: false,
            tells_loss: home.is_host() || options.tell_loss,
            home,
            parameters,
            tensors,
            passes: 0,
            loss: 0.0,
            overlaps_forward,
            awaited: RefCell::default(),
            unreached: None,
        };
        replica.broadcast()?;
        Ok((model, replica))
    }

    /// Copies the parameters and running statistics of rank 0 to every replica.
    fn broadcast(&mut self) -> Result<()> {
        for ModelTensor { var, .. } in &self.tensors {
            let mut values = self.home.to_buffer(var)?;
            self.engine.initial().broadcast(&mut values)?;
            self.home.exchange(|| self.home.overwrite(&[var], &values.read_all()?))?;
        }
        self.refresh()
    }

    /// Sets the learning rate γ of later steps, a number or a schedule, the same on all ranks. [`Replica::step`] needs
    /// it; [`Replica::backward_step`] takes it from the optimizer of candle.
    pub fn set_learning_rate(&mut self, rate: impl Into<LearningRate>) {
        self.engine.set_learning_rate(rate);
    }

    /// Begins a training step: call it before the forward pass. Running statistics are synchronized as set by
    /// [`EngineOptions::buffers`](hexagram_algorithms::EngineOptions::buffers), for which ranks wait for each other if
    /// the model has any. Algorithms that communicate parameters start, and overlap with that pass. Without this call,
    /// statistics are synchronized after each step, and such algorithms start only with the backward pass.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed, or after a [`Replica::step_with`] that ended between two gradients.
    pub fn forward(&mut self) -> Result<()> {
        self.check_all_evaluated()?;
        self.synchronize_statistics()?;
        self.forwarded = true;
        Ok(self.engine.forward()?)
    }

    /// Synchronizes the running statistics.
    fn synchronize_statistics(&mut self) -> Result<()> {
        let statistics: Vec<&ModelTensor> = self.tensors.iter().filter(|entry| entry.tap.is_none()).collect();
        if !statistics.is_empty() && self.engine.communicator().size() > 1 {
            let home = &self.home;
            let copies = statistics.iter().map(|entry| home.to_buffer(&entry.var));
            let mut buffers = copies.collect::<Result<Vec<_>>>()?;
            self.engine.synchronize_buffers(&mut buffers)?;
            let mut pairs = statistics.iter().zip(&buffers);
            home.exchange(|| {
                pairs.try_for_each(|(entry, buffer)| home.overwrite(&[&entry.var], &buffer.read_all()?))
            })?;
        }
        Ok(())
    }

    /// Ends a step: synchronizes running statistics, unless [`Replica::forward`] has.
    fn end_step(&mut self) -> Result<()> {
        self.loss = 0.0;
        self.own_gradients.clear();
        if !std::mem::take(&mut self.forwarded) {
            let outcome = self.synchronize_statistics();
            self.report_failure(outcome)?;
        }
        Ok(())
    }

    /// Runs the backward pass of `loss`, the synchronization of its gradients, and one step of the optimizer of the
    /// engine.
    ///
    /// # Errors
    /// As [`Replica::backward`]; [`Error::Hexagram`] without [`EngineOptions::optimizer`](hexagram_algorithms::EngineOptions::optimizer) or learning rate, and under
    /// an algorithm that takes several gradients of a batch: see [`Replica::step_with`].
    pub fn step(&mut self, loss: &Tensor) -> Result<()> {
        self.computed(loss, Mode::Synchronize)?;
        self.finish_and_step()
    }

    /// Makes a whole step on one batch: [`Replica::forward`], [`Replica::step`], and in between one more pass for each further
    /// gradient of the batch that the algorithm needs, at the parameters that it has moved. `loss` runs the forward pass; its
    /// argument is the replica, for [`wait_for`](Self::wait_for). Returns the loss of the first pass.
    ///
    /// ```
    /// # use candle_core::Tensor;
    /// # use candle_nn::{Linear, Module, loss};
    /// # use hexagram_candle::{Replica, Result};
    /// fn step(replica: &mut Replica, model: &Linear, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    ///     replica.step_with(|_| Ok(loss::mse(&model.forward(x)?, y)?))
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of `loss`, after which ranks cannot continue if they occur between two gradients, as the other
    /// gradient would be of another batch; as [`Replica::forward`] and [`Replica::step`].
    pub fn step_with<E: From<Error>>(
        &mut self,
        mut loss: impl FnMut(&Self) -> Result<Tensor, E>,
    ) -> Result<Tensor, E> {
        self.forward()?;
        let first = loss(self)?;
        self.computed(&first, Mode::Synchronize)?;
        while self.evaluate_again()? {
            self.engine.forward().map_err(Error::from)?;
            self.differentiated(&loss(self)?, Mode::Synchronize)?;
        }
        self.finish_and_step()?;
        Ok(first)
    }

    /// Ends a backward pass that is not the last of the step, and copies the parameters for the next gradient of the
    /// batch to the model; returns true if there is one. As [`DataParallel::evaluate_again`].
    fn evaluate_again(&mut self) -> Result<bool> {
        let again = self.engine.evaluate_again()?;
        if again {
            self.settled()?;
        }
        Ok(again)
    }

    /// Ends the last pass of the step, and steps with the optimizer of the engine.
    fn finish_and_step(&mut self) -> Result<()> {
        if self.overlaps_forward {
            let outcome = self.engine.finish_and_step().map_err(Error::from);
            // candle may now change the compared tensors.
            let outcome = outcome.and_then(|()| self.home.exchange(|| Ok(())));
            *self.awaited.get_mut() = (0..self.parameters.len()).collect();
            self.report_failure(outcome)?;
            return self.end_step();
        }
        let home = &self.home;
        let engine = &mut self.engine;
        let publish = |index: usize, values: &ReadView| self.parameters[index].publish(home, values);
        let outcome = home.exchange(|| engine.finish_and_step_into(publish));
        self.report_failure(outcome)?;
        self.end_step()
    }

    /// Fails between two gradients of a step, where a pass of another batch would be taken for the second.
    fn check_all_evaluated(&self) -> Result<()> {
        self.report_failure(self.engine.check_all_evaluated().map_err(Error::from))
    }

    /// Passes the loss of the step so far to the engine: the sum over accumulating passes, at the parameters of the
    /// model.
    ///
    /// It reads one number in every such pass, as algorithms do not declare that they use the loss, and their hooks
    /// cannot read it from a device. In host memory the cost is negligible; on a GPU it waits for the forward pass, so
    /// it is off by default.
    fn tell_loss(&mut self, loss: &Tensor) -> Result<()> {
        if !self.tells_loss {
            return Ok(());
        }
        self.loss += loss.detach().to_dtype(candle_core::DType::F64)?.sum_all()?.to_scalar::<f64>()?;
        self.engine.set_loss(self.loss);
        Ok(())
    }

    /// Runs the backward pass of `loss`, the synchronization of its gradients, and one step of `optimizer`, like
    /// `optimizer.backward_step(&loss)` in an ordinary program.
    ///
    /// # Errors
    /// As [`Replica::backward`], and the errors of the optimizer.
    pub fn backward_step(&mut self, optimizer: &mut (impl Optimizer + 'static), loss: &Tensor) -> Result<()> {
        self.engine.set_learning_rate(optimizer.learning_rate());
        self.backward(loss)?.step(optimizer)
    }

    /// Runs the backward pass of `loss`, and returns the gradients as the algorithm left them, including those that
    /// [`Replica::backward_no_sync`] has accumulated. Communication overlaps with the pass.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if a parameter got no gradient or was changed without the replica, or if communication
    /// failed; [`Error::Candle`] from the pass itself. Ranks cannot continue afterwards.
    pub fn backward(&mut self, loss: &Tensor) -> Result<Synchronized<'_>> {
        self.pass(loss, Mode::Synchronize)?;
        if self.engine.algorithm().needs().parameters {
            // Its hooks may have changed the parameters.
            self.report_failure(self.publish())?;
        }
        let mut gradients = GradStore::default();
        // After an overflow there are no gradients for a step.
        let parameters = if self.engine.loss_scaling().overflowed() { &[] } else { &self.parameters[..] };
        for (index, ModelTensor { var, .. }) in parameters.iter().enumerate() {
            if self.engine.is_idle(index) {
                // Optimizers of candle leave it unchanged without a gradient.
                continue;
            }
            let gradient = self.home.to_tensor(&self.engine.gradient(index)?, dtype(var)?, var.shape())?;
            gradients.insert(var, gradient);
        }
        self.own_gradients.move_to(&mut gradients);
        Ok(Synchronized { replica: self, gradients })
    }

    /// Runs the backward pass of `loss` without communication, and adds its gradients to those of the next
    /// [`Replica::backward`]: gradient accumulation.
    ///
    /// # Errors
    /// As [`Replica::backward`].
    pub fn backward_no_sync(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, Mode::Accumulate)
    }

    fn pass(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.computed(loss, mode)?;
        self.engine.finish()?;
        // candle may now change the compared tensors.
        self.home.exchange(|| Ok(()))
    }

    /// Runs a pass at the parameters of the model, except for its end.
    fn computed(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.check_all_evaluated()?;
        let outcome = self.tell_loss(loss);
        self.report_failure(outcome)?;
        self.differentiated(loss, mode)
    }

    /// Runs a pass, except for its end, without passing the loss to the algorithm.
    fn differentiated(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.passes += 1;
        let outcome = self.check_awaited().and_then(|()| self.check_fresh()).and_then(|()| {
            self.engine.begin(mode)?;
            let gradients = loss.backward()?;
            self.own_gradients.add(&gradients)?;
            self.check_untapped(&gradients)
        });
        self.report_failure(outcome)
    }

    /// Sends an error of this rank to the others: it ends the job everywhere, with its reason.
    pub(crate) fn report_failure<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.engine.communicator().give_up(&error.to_hexagram()))
    }

    /// Updates model and engine after the program itself has changed `Var`s, for example by loading them. All ranks
    /// must make the same change.
    ///
    /// # Errors
    /// [`Error::Candle`] from the copy.
    pub fn refresh(&mut self) -> Result<()> {
        self.check_awaited()?;
        let flat = self.engine.works_on_parameters();
        let home = &self.home;
        for (index, ModelTensor { var, tap, .. }) in self.parameters.iter().enumerate() {
            home.lend(var, |values| {
                if flat {
                    self.engine.set_parameter(index, values)?;
                }
                let tap: Vec<&Tensor> = tap.iter().collect();
                home.exchange(|| home.overwrite(&tap, &values.read_all()?))
            })?;
        }
        Ok(())
    }

    /// Copies the parameters of the engine to the model.
    pub(crate) fn publish(&self) -> Result<()> {
        let mut all = self.parameters.iter().enumerate();
        let home = &self.home;
        home.exchange(|| {
            all.try_for_each(|(index, entry)| entry.publish(home, &self.engine.parameter(index)?))
        })?;
        self.awaited.borrow_mut().clear();
        Ok(())
    }

    /// Runs the hook of the algorithm after a step of an optimizer of candle.
    pub(crate) fn stepped(&mut self) -> Result<()> {
        self.refresh()?;
        self.engine.stepped()?;
        self.end_step()?;
        if self.engine.algorithm().needs().parameters { self.publish() } else { Ok(()) }
    }

    /// Returns a tensor on the device of the model with the elements of a buffer of floats, such as the images of a
    /// batch that a separate queue has copied there. candle waits for that copy, but not for later work on the queue.
    ///
    /// # Errors
    /// [`Error::Hexagram`] for elements that are not floats, and for a buffer on a device if the model is in host
    /// memory; [`Error::Candle`] if the shape has a different number of elements.
    pub fn tensor(&self, elements: &Buffer, shape: &[usize]) -> Result<Tensor> {
        if !elements.dtype().is_float() {
            let what = format!("a tensor of a model cannot have elements of {}", elements.dtype());
            return Err(Error::usage(what, "create the tensor of integers with candle"));
        }
        let shape = Shape::from(shape);
        if shape.elem_count() != elements.len() {
            return Err(
                candle_core::Error::msg(format!("{} elements are not {shape:?}", elements.len())).into()
            );
        }
        self.home.to_tensor(&elements.read_all()?, elements.dtype(), &shape)
    }

    /// Switches to another algorithm from the next step on. All ranks must switch at the same step.
    ///
    /// # Errors
    /// As [`DataParallel::switch`].
    pub fn switch(&mut self, algorithm: impl Into<AnyAlgorithm>) -> Result<()> {
        self.engine.switch(algorithm)?;
        self.settled()
    }

    /// Completes the background work of the algorithm. A collective call, between steps.
    ///
    /// # Errors
    /// As [`DataParallel::settle`].
    pub fn settle(&mut self) -> Result<()> {
        self.engine.settle()?;
        self.settled()
    }

    pub(crate) fn settled(&self) -> Result<()> {
        if self.engine.works_on_parameters() { self.report_failure(self.publish()) } else { Ok(()) }
    }

    /// Returns true if the parameters of all replicas are bit-identical. Running statistics are excluded, as they
    /// depend on the samples of each rank. A collective call; every rank gets the same answer.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed.
    pub fn is_identical(&self) -> Result<bool> {
        self.wait_for("")?;
        let mut digest = hash::START;
        for ModelTensor { var, .. } in &self.parameters {
            self.home.lend(var, |values| {
                digest = hash::of_bytes(digest, values.read_all()?.bytes_on_host()?.iter().copied());
                Ok(())
            })?;
        }
        let comm = self.engine.communicator();
        let mut all = vec![0; comm.size()];
        comm.blocking().all_gather(&[digest as i64], &mut all)?;
        Ok(all.iter().all(|other| *other == digest as i64))
    }

    /// Begins to record the activity of this rank, until [`Replica::collect`]. A collective call, between steps.
    ///
    /// # Errors
    /// As [`begin`](hexagram_algorithms::engine::Tracing::begin).
    pub fn trace(&mut self) -> Result<()> {
        Ok(self.engine.trace().begin()?)
    }

    /// Runs `load`, which waits for the next batch, as the span `loading` of the current trace.
    pub fn loading<R>(&mut self, load: impl FnOnce() -> R) -> R {
        self.engine.trace().loading(load)
    }

    /// Ends the recording, and returns on rank 0 the trace of all ranks; `None` on the others. A collective call, between steps.
    ///
    /// # Errors
    /// As [`collect`](hexagram_algorithms::engine::Tracing::collect).
    pub fn collect(&mut self) -> Result<Option<Trace>> {
        Ok(self.engine.trace().collect()?)
    }

    /// Returns the underlying engine: statistics, buckets, the communicator.
    pub fn engine(&self) -> &DataParallel {
        &self.engine
    }
}

fn announce(entry: &ModelTensor) -> Result<Parameter> {
    let name = entry.name.clone();
    let dtype = dtype(&entry.var)?;
    let shape = entry.var.dims().to_vec();
    Ok(Parameter { name, dtype, shape })
}
