//! A test harness for algorithms, without a framework: [`Trainer`], for any function with a known gradient.
//!
//! ```
//! use hexagram::algorithms::testing::{Setup, Trainer};
//! use hexagram::logical::{TransportKind, testing::spawn};
//! use hexagram::algorithms::GradientAllReduce;
//!
//! // Rank r has f(x) = (x − r)² / 2: the minimum of the mean is at 0.5.
//! let found = spawn(TransportKind::Thread, 2, |comm| {
//!     let setup = Setup { learning_rate: 0.5, ..Setup::default() };
//!     let mut trainer = Trainer::new(&comm, GradientAllReduce, setup, &[vec![3.0f64]])?;
//!     for _ in 0..60 {
//!         trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f64).collect())?;
//!     }
//!     Ok(trainer.parameters()?[0][0])
//! });
//! assert_eq!(found.unwrap(), [0.5, 0.5]);
//! ```

mod resume;

pub use resume::{Scratch, resumes_exactly};

use crate::engine::{DataParallel, EngineOptions, Mode, Order, Parameter};
use crate::optimizer::{self, Optimizer, Sgd};
use crate::plugin::AnyAlgorithm;
use hexagram_logical::testing::{buffer, queue, spawn};
use hexagram_logical::{Communicator, Element, Result, TransportKind};
use std::sync::Arc;

/// Options of a [`Trainer`].
#[derive(Clone)]
pub struct Setup {
    /// Learning rate γ, unless the engine options have one. Default: 0.1.
    pub learning_rate: f64,
    /// Optimizer of the engine. Default: plain SGD.
    pub optimizer: Arc<dyn Optimizer>,
    /// Other options of the engine; their `optimizer` and `queue` are ignored.
    pub engine: EngineOptions,
}

impl Default for Setup {
    fn default() -> Self {
        let engine = EngineOptions { order: Order::Listed, ..EngineOptions::default() };
        Setup { learning_rate: 0.1, optimizer: Arc::new(Sgd::default()), engine }
    }
}

/// Returns an optimizer if it fits an algorithm, otherwise the one that the algorithm names, or plain SGD: for tests of
/// all algorithms.
pub fn fitting(algorithm: &AnyAlgorithm, optimizer: Arc<dyn Optimizer>) -> Arc<dyn Optimizer> {
    if algorithm.optimizers().fit(&*optimizer) {
        return optimizer;
    }
    let named = algorithm.optimizers().by_default().and_then(|named| optimizer::named(named).ok());
    named.unwrap_or_else(|| Arc::new(Sgd::default()))
}

/// Functions `f_r(x) = a_r (x − b_r)² / 2`, one per rank, with many results in closed form.
#[derive(Debug, Clone)]
pub struct Quadratic {
    /// Curvatures a_r, by rank.
    pub a: Vec<f64>,
    /// Minima b_r, by rank.
    pub b: Vec<f64>,
}

impl Quadratic {
    /// Returns the gradient of rank `rank` at x, element by element.
    pub fn gradient(&self, rank: usize, x: &[f64]) -> Vec<f64> {
        x.iter().map(|x| self.a[rank] * (x - self.b[rank])).collect()
    }
}

/// Returns the payload that all ranks together send in a step, divided by the number of ranks: bytes without message
/// headers, over the thread transport, on average over `steps` steps of f32 gradients that differ between elements,
/// ranks and steps. It must equal the bytes in the header of the algorithm. Messages before the first step, for the
/// creation of states, do not count.
///
/// # Errors
/// As [`Trainer::step`].
pub fn payload_per_step<A: Into<AnyAlgorithm>>(
    ranks: usize,
    elements: usize,
    steps: usize,
    algorithm: impl Fn() -> A + Sync,
) -> Result<f64> {
    payload_of_shapes(ranks, &[vec![elements]], steps, algorithm)
}

/// Returns [`payload_per_step`] of tensors with these shapes.
///
/// # Errors
/// As [`Trainer::step`].
pub fn payload_of_shapes<A: Into<AnyAlgorithm>>(
    ranks: usize,
    shapes: &[Vec<usize>],
    steps: usize,
    algorithm: impl Fn() -> A + Sync,
) -> Result<f64> {
    let initial: Vec<Vec<f32>> = shapes.iter().map(|shape| vec![1.0; shape.iter().product()]).collect();
    let sent = spawn(TransportKind::Thread, ranks, |comm| {
        let algorithm = algorithm().into();
        let setup = Setup::default();
        let setup = Setup { optimizer: fitting(&algorithm, Arc::clone(&setup.optimizer)), ..setup };
        let mut trainer = Trainer::with_shapes(&comm, algorithm, setup, &initial, shapes)?;
        let gradient = |step: usize, at: usize| ((at * 7 + comm.rank() * 31 + step * 13) % 101) as f32 - 50.0;
        trainer.engine().initial().prepare()?;
        let before = payload(&comm)?;
        for step in 0..steps {
            trainer.step(|_, x| (0..x.len()).map(|at| gradient(step, at)).collect())?;
        }
        trainer.engine().settle()?;
        Ok(payload(&comm)? - before)
    })?;
    Ok(sent.iter().sum::<u64>() as f64 / (ranks * steps) as f64)
}

/// Returns the bytes that this rank has sent so far, without message headers and equal on every transport
/// (`payload_sent` of [`World::traffic`](hexagram_logical::World::traffic)), at a point that all ranks have reached and
/// none has passed. A collective call.
///
/// # Errors
/// As [`Communicator::barrier`].
pub fn payload(comm: &Communicator) -> Result<u64> {
    // No rank counts before all have sent, or sends before all have counted.
    comm.blocking().barrier()?;
    let payload = comm.world().traffic().payload_sent();
    comm.blocking().barrier()?;
    Ok(payload)
}

/// Model that consists only of its parameters, with the engine that trains it.
pub struct Trainer<T> {
    engine: DataParallel,
    shapes: usize,
    elements: std::marker::PhantomData<T>,
}

impl<T: Element> Trainer<T> {
    /// Creates a model of vectors with these values, equal on all ranks.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn new(
        comm: &Communicator,
        algorithm: impl Into<AnyAlgorithm>,
        setup: Setup,
        initial: &[Vec<T>],
    ) -> Result<Self> {
        let shapes: Vec<Vec<usize>> = initial.iter().map(|values| vec![values.len()]).collect();
        Self::with_shapes(comm, algorithm, setup, initial, &shapes)
    }

    /// Creates a model of tensors with these shapes and values.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn with_shapes(
        comm: &Communicator,
        algorithm: impl Into<AnyAlgorithm>,
        setup: Setup,
        initial: &[Vec<T>],
        shapes: &[Vec<usize>],
    ) -> Result<Self> {
        let parameter = |(index, shape): (usize, &Vec<usize>)| Parameter {
            name: format!("p{index}"),
            dtype: T::DTYPE,
            shape: shape.clone(),
        };
        let parameters = shapes.iter().enumerate().map(parameter).collect();
        let scheduled = setup.engine.learning_rate;
        let options = EngineOptions { optimizer: Some(setup.optimizer), queue: queue(), ..setup.engine };
        let mut engine = DataParallel::new(comm, parameters, algorithm, options)?;
        if scheduled.is_none() {
            engine.set_learning_rate(setup.learning_rate);
        }
        for (index, values) in initial.iter().enumerate() {
            engine.set_parameter(index, &buffer(values))?;
        }
        Ok(Trainer { engine, shapes: initial.len(), elements: std::marker::PhantomData })
    }

    /// Makes one step: `gradient` receives the index and the values of each parameter of the replica of this rank,
    /// several times if the algorithm takes several gradients per step.
    ///
    /// # Errors
    /// As [`DataParallel::finish_and_step`].
    pub fn step(&mut self, mut gradient: impl FnMut(usize, &[T]) -> Vec<T>) -> Result<()> {
        let shapes = self.shapes;
        self.engine.step_with(|engine| {
            let gradients: Result<Vec<Vec<T>>> =
                (0..shapes).map(|index| Ok(gradient(index, &engine.values(index)?))).collect();
            engine.forward()?;
            let hooks = engine.hooks();
            engine.begin(Mode::Synchronize)?;
            for (index, gradient) in gradients?.iter().enumerate().rev() {
                hooks.ready_slice(index, gradient)?;
            }
            Ok(())
        })
    }

    /// Returns all parameters of the replica of this rank.
    ///
    /// # Errors
    /// As [`DataParallel::parameter`].
    pub fn parameters(&self) -> Result<Vec<Vec<T>>> {
        (0..self.shapes).map(|index| self.engine.values(index)).collect()
    }

    /// Returns the engine underneath.
    pub fn engine(&mut self) -> &mut DataParallel {
        &mut self.engine
    }
}
