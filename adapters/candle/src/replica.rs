//! One rank's copy of a candle model, trained together with the other ranks' copies.

use crate::error::{Error, Result};
use crate::home::Home;
use crate::options::ReplicaOptions;
use crate::own_gradients::OwnGradients;
use crate::parameters::{Asked, Entries, Entry, Tapped};
use crate::roles::Roles;
use crate::synchronized::Synchronized;
use crate::tap::Engine;
use crate::values::dtype;
use candle_core::backprop::GradStore;
use candle_core::{Shape, Tensor};
use candle_nn::{Optimizer, VarBuilder, VarMap};
use hexagram_algorithms::logical::{Buffer, Communicator, ReadView, hash};
use hexagram_algorithms::trace::Trace;
use hexagram_algorithms::{AnyAlgorithm, DataParallel, LearningRate, Mode, Overlap, Parameter};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// This rank's copy of a model, and its connection to the others.
///
/// A step is [`Replica::step`], with the engine's own optimizer ([`EngineOptions::optimizer`](hexagram_algorithms::EngineOptions::optimizer)), or
/// [`Replica::backward_step`], with one of candle's. The first is faster: the engine steps on flat memory, from where
/// the parameters reach `Var` and model in one pass.
///
/// A `Var` that the model did not get from the builder is neither synchronized nor, so that replicas cannot drift apart
/// through it, ever given a gradient.
pub struct Replica {
    pub(crate) engine: DataParallel,
    pub(crate) home: Home,
    /// Parameters, in the engine's numbering.
    pub(crate) parameters: Vec<Entry>,
    /// Everything that makes the replica, running statistics included.
    pub(crate) tensors: Vec<Entry>,
    /// Backward passes so far.
    pub(crate) passes: u64,
    /// Gradients of tensors that are this rank's own.
    own_gradients: OwnGradients,
    /// True if running statistics were made alike before the forward pass of this step.
    forwarded: bool,
    /// True if the algorithm is told the loss.
    tells_loss: bool,
    /// Sum of the losses of the step under way.
    loss: f64,
    /// True if a step leaves parameters on their way: [`Overlap::Forward`].
    pub(crate) overlaps_forward: bool,
    /// Parameters that the last step has left on its way, and no wait has brought to the model yet.
    pub(crate) awaited: RefCell<BTreeSet<usize>>,
    /// Type of the optimizer of the framework that has stepped, if it may remember what a checkpoint does not have.
    pub(crate) unreached: Option<&'static str>,
}

impl Replica {
    /// Builds the model with `model`, from a builder over `varmap`; gives it rank 0's values, on every rank.
    ///
    /// A collective call. Values that `varmap` already holds (a loaded checkpoint) are kept, as an ordinary builder
    /// does.
    ///
    /// # Errors
    /// What `model` returns; [`Error::Hexagram`] if the ranks build different models.
    pub fn build<M>(
        comm: &Communicator,
        varmap: &VarMap,
        options: ReplicaOptions,
        model: impl FnOnce(VarBuilder<'static>) -> candle_core::Result<M>,
    ) -> Result<(M, Self)> {
        let mut options = options;
        let home = Home::open(&options.device, &mut options.engine, comm.world().deadline()).inspect_err(
            |error| {
                comm.give_up(&error.to_hexagram());
            },
        )?;
        let entries = Entries::default();
        let engine = Engine::default();
        let varmap = varmap.clone();
        let seen = entries.clone();
        let hooks = Arc::clone(&engine);
        let roles = Roles { buffers: options.buffers, ignored: options.ignored };
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
        let Asked { entries: tensors, ignored } = entries.lock().clone();
        let all = tensors.iter().map(|entry| &*entry.name).chain(ignored.iter().map(|(name, _)| &**name));
        roles.check(all).inspect_err(|error| comm.give_up(&error.to_hexagram()))?;
        let parameters: Vec<Entry> = tensors.iter().filter(|entry| entry.tap.is_some()).cloned().collect();
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

    /// Gives every replica rank 0's parameters and running statistics.
    fn broadcast(&mut self) -> Result<()> {
        for Entry { var, .. } in &self.tensors {
            let mut values = self.home.to_buffer(var)?;
            self.engine.initial().broadcast(&mut values)?;
            self.home.exchange(|| self.home.overwrite(&[var], &values.read_all()?))?;
        }
        self.refresh()
    }

    /// Sets the learning rate γ of the steps from here on, a number or a schedule, the same on all ranks.
    /// [`Replica::step`] needs it; [`Replica::backward_step`] takes it from candle's optimizer.
    pub fn set_learning_rate(&mut self, rate: impl Into<LearningRate>) {
        self.engine.set_learning_rate(rate);
    }

    /// Begins a training forward pass: call it before that. Running statistics become the same on all ranks, as
    /// [`EngineOptions::buffers`](hexagram_algorithms::EngineOptions::buffers) says, for which ranks wait for each other if the model has any; and algorithms that
    /// communicate parameters begin to, beside that pass. Without this call statistics become the same after each step,
    /// and such algorithms begin only with the backward pass.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed, or after a [`Replica::step_with`] that has ended between two
    /// gradients.
    pub fn forward(&mut self) -> Result<()> {
        self.check_all_evaluated()?;
        self.synchronize_statistics()?;
        self.forwarded = true;
        Ok(self.engine.forward()?)
    }

    /// Makes running statistics the same on all ranks.
    fn synchronize_statistics(&mut self) -> Result<()> {
        let statistics: Vec<&Entry> = self.tensors.iter().filter(|entry| entry.tap.is_none()).collect();
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

    /// Ends a step: running statistics that no [`Replica::forward`] has made alike become so.
    fn end_step(&mut self) -> Result<()> {
        self.loss = 0.0;
        self.own_gradients.clear();
        if !std::mem::take(&mut self.forwarded) {
            let outcome = self.synchronize_statistics();
            self.told(outcome)?;
        }
        Ok(())
    }

    /// Runs the backward pass of `loss`, the synchronization of its gradients, and one step of the engine's optimizer.
    ///
    /// # Errors
    /// As [`Replica::backward`]; [`Error::Hexagram`] without [`EngineOptions::optimizer`](hexagram_algorithms::EngineOptions::optimizer) or learning rate, and under
    /// an algorithm that takes several gradients of a batch: see [`Replica::step_with`].
    pub fn step(&mut self, loss: &Tensor) -> Result<()> {
        self.computed(loss, Mode::Synchronize)?;
        self.finish_and_step()
    }

    /// Makes a whole step on one batch, of which `loss` runs the forward pass, with the replica to
    /// [wait](Self::wait_for) by: [`Replica::forward`], [`Replica::step`],
    /// and in between as many more passes as the algorithm takes gradients of the batch, with parameters that it has
    /// moved. Returns the loss of the first.
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
    /// Those of `loss`, after which no rank can go on if they come between two gradients: the other gradient would be
    /// of another batch; as [`Replica::forward`] and [`Replica::step`].
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

    /// Ends the backward pass, but for the step's last, and gives the model the parameters at which the algorithm wants
    /// the next gradient of the batch; returns true if it does. As [`DataParallel::evaluate_again`].
    fn evaluate_again(&mut self) -> Result<bool> {
        let again = self.engine.evaluate_again()?;
        if again {
            self.settled()?;
        }
        Ok(again)
    }

    /// Ends the step's last pass, and steps with the engine's optimizer.
    fn finish_and_step(&mut self) -> Result<()> {
        if self.overlaps_forward {
            let outcome = self.engine.finish_and_step().map_err(Error::from);
            // candle may change what was compared.
            let outcome = outcome.and_then(|()| self.home.exchange(|| Ok(())));
            *self.awaited.get_mut() = (0..self.parameters.len()).collect();
            self.told(outcome)?;
            return self.end_step();
        }
        let home = &self.home;
        let engine = &mut self.engine;
        let publish = |index: usize, values: &ReadView| self.parameters[index].publish(home, values);
        let outcome = home.exchange(|| engine.finish_and_step_into(publish));
        self.told(outcome)?;
        self.end_step()
    }

    /// Fails between two gradients of a step, where a pass of another batch would be taken for the second.
    fn check_all_evaluated(&self) -> Result<()> {
        self.told(self.engine.check_all_evaluated().map_err(Error::from))
    }

    /// Tells the engine the loss of the step so far: the sum over passes that accumulate, at the model's own
    /// parameters.
    ///
    /// It reads one number in every such pass, as an algorithm does not declare that it will ask for the loss, and its
    /// hooks cannot ask a device for it. In host memory that costs next to nothing; on a GPU it waits for the forward
    /// pass, and is left out unless the program wants it.
    fn tell_loss(&mut self, loss: &Tensor) -> Result<()> {
        if !self.tells_loss {
            return Ok(());
        }
        self.loss += loss.detach().to_dtype(candle_core::DType::F64)?.sum_all()?.to_scalar::<f64>()?;
        self.engine.set_loss(self.loss);
        Ok(())
    }

    /// Runs the backward pass of `loss`, the synchronization of its gradients, and one step of `optimizer`: what
    /// `optimizer.backward_step(&loss)` is in an ordinary program.
    ///
    /// # Errors
    /// As [`Replica::backward`], and the optimizer's own.
    pub fn backward_step(&mut self, optimizer: &mut (impl Optimizer + 'static), loss: &Tensor) -> Result<()> {
        self.engine.set_learning_rate(optimizer.learning_rate());
        self.backward(loss)?.step(optimizer)
    }

    /// Runs the backward pass of `loss`, and returns gradients as the algorithm left them, including what
    /// [`Replica::backward_no_sync`] has accumulated. Communication overlaps with the pass.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if a parameter got no gradient or was changed behind the replica's back, or if communication
    /// failed; [`Error::Candle`] from the pass itself. No rank can go on afterwards.
    pub fn backward(&mut self, loss: &Tensor) -> Result<Synchronized<'_>> {
        self.pass(loss, Mode::Synchronize)?;
        if self.engine.algorithm().needs().parameters {
            // Its hooks may have changed them.
            self.told(self.publish())?;
        }
        let mut gradients = GradStore::default();
        // After an overflow there is nothing to step with.
        let parameters = if self.engine.loss_scaling().overflowed() { &[] } else { &self.parameters[..] };
        for (index, Entry { var, .. }) in parameters.iter().enumerate() {
            if self.engine.is_idle(index) {
                // Without a gradient candle's optimizers leave it as it is.
                continue;
            }
            let gradient = self.home.to_tensor(&self.engine.gradient(index)?, dtype(var)?, var.shape())?;
            gradients.insert(var, gradient);
        }
        self.own_gradients.move_to(&mut gradients);
        Ok(Synchronized { replica: self, gradients })
    }

    /// Runs the backward pass of `loss`, whose gradients are added to those of the next [`Replica::backward`] and are
    /// not communicated: gradient accumulation.
    ///
    /// # Errors
    /// As [`Replica::backward`].
    pub fn backward_no_sync(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, Mode::Accumulate)
    }

    fn pass(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.computed(loss, mode)?;
        self.engine.finish()?;
        // candle may change what was compared.
        self.home.exchange(|| Ok(()))
    }

    /// Runs a pass at the model's own parameters, but for its end.
    fn computed(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.check_all_evaluated()?;
        let outcome = self.tell_loss(loss);
        self.told(outcome)?;
        self.differentiated(loss, mode)
    }

    /// Runs a pass, but for its end, and tells the algorithm no loss.
    fn differentiated(&mut self, loss: &Tensor, mode: Mode) -> Result<()> {
        self.passes += 1;
        let outcome = self.check_awaited().and_then(|()| self.check_fresh()).and_then(|()| {
            self.engine.begin(mode)?;
            let gradients = loss.backward()?;
            self.own_gradients.add(&gradients)?;
            self.check_untapped(&gradients)
        });
        self.told(outcome)
    }

    /// Tells an error of this rank to the others: it ends the job everywhere, and with its reason.
    pub(crate) fn told<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.engine.communicator().give_up(&error.to_hexagram()))
    }

    /// Brings model and engine up to date after the program itself has changed `Var`s, for example by loading them. All
    /// ranks must make the same change.
    ///
    /// # Errors
    /// [`Error::Candle`] from the copy.
    pub fn refresh(&mut self) -> Result<()> {
        self.check_awaited()?;
        let flat = self.engine.works_on_parameters();
        let home = &self.home;
        for (index, Entry { var, tap, .. }) in self.parameters.iter().enumerate() {
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

    /// Gives the model the engine's parameters.
    pub(crate) fn publish(&self) -> Result<()> {
        let mut all = self.parameters.iter().enumerate();
        let home = &self.home;
        home.exchange(|| {
            all.try_for_each(|(index, entry)| entry.publish(home, &self.engine.parameter(index)?))
        })?;
        self.awaited.borrow_mut().clear();
        Ok(())
    }

    /// Lets the algorithm do its part, now that candle's optimizer has stepped.
    pub(crate) fn stepped(&mut self) -> Result<()> {
        self.refresh()?;
        self.engine.stepped()?;
        self.end_step()?;
        if self.engine.algorithm().needs().parameters { self.publish() } else { Ok(()) }
    }

    /// Returns a tensor on the model's device with the elements of a buffer of floats, such as the images of a batch that a
    /// queue of its own has copied there. candle waits for that copy, and for nothing that is enqueued behind it.
    ///
    /// # Errors
    /// [`Error::Hexagram`] for elements that are no floats, and for a buffer of a device when the model is in host memory;
    /// [`Error::Candle`] if the shape has another number of elements.
    pub fn tensor(&self, elements: &Buffer, shape: &[usize]) -> Result<Tensor> {
        if !elements.dtype().is_float() {
            let what = format!("elements of {} make no tensor of a model", elements.dtype());
            return Err(Error::usage(what, "give candle the integers itself"));
        }
        let shape = Shape::from(shape);
        if shape.elem_count() != elements.len() {
            return Err(
                candle_core::Error::msg(format!("{} elements are not {shape:?}", elements.len())).into()
            );
        }
        self.home.to_tensor(&elements.read_all()?, elements.dtype(), &shape)
    }

    /// Switches to another algorithm, from the next step on, on all ranks at the same step.
    ///
    /// # Errors
    /// As [`DataParallel::switch`].
    pub fn switch(&mut self, algorithm: impl Into<AnyAlgorithm>) -> Result<()> {
        self.engine.switch(algorithm)?;
        self.settled()
    }

    /// Brings to an end what the algorithm has under way in the background. A collective call, between steps.
    ///
    /// # Errors
    /// As [`DataParallel::settle`].
    pub fn settle(&mut self) -> Result<()> {
        self.engine.settle()?;
        self.settled()
    }

    pub(crate) fn settled(&self) -> Result<()> {
        if self.engine.works_on_parameters() { self.told(self.publish()) } else { Ok(()) }
    }

    /// Returns true if the parameters of all replicas are bit-identical. Running statistics are of each rank's own
    /// samples and do not count. A collective call; every rank gets the same answer.
    ///
    /// # Errors
    /// [`Error::Hexagram`] if communication failed.
    pub fn is_identical(&self) -> Result<bool> {
        self.wait_for("")?;
        let mut digest = hash::START;
        for Entry { var, .. } in &self.parameters {
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

    /// Begins to record what this rank does, until [`Replica::collect`]. A collective call, between steps.
    ///
    /// # Errors
    /// As [`begin`](hexagram_algorithms::engine::Tracing::begin).
    pub fn trace(&mut self) -> Result<()> {
        Ok(self.engine.trace().begin()?)
    }

    /// Runs `load`, which waits for the next batch, as the span `loading` of a trace that is being recorded.
    pub fn loading<R>(&mut self, load: impl FnOnce() -> R) -> R {
        self.engine.trace().loading(load)
    }

    /// Ends the recording, which rank 0 gets of all ranks. A collective call, between steps.
    ///
    /// # Errors
    /// As [`collect`](hexagram_algorithms::engine::Tracing::collect).
    pub fn collect(&mut self) -> Result<Option<Trace>> {
        Ok(self.engine.trace().collect()?)
    }

    /// Returns the engine underneath: statistics, buckets, the communicator.
    pub fn engine(&self) -> &DataParallel {
        &self.engine
    }
}

fn announce(entry: &Entry) -> Result<Parameter> {
    let name = entry.name.clone();
    let dtype = dtype(&entry.var)?;
    let shape = entry.var.dims().to_vec();
    Ok(Parameter { name, dtype, shape })
}
