//! Trains a model of one tensor on several ranks, and compares the results.

use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Element, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{AnyAlgorithm, Optimizer, Sgd};
use std::sync::{Arc, Barrier};

/// An algorithm, as its tests create it.
pub(crate) type Made = AnyAlgorithm;

/// A training.
pub(crate) struct Run<T> {
    pub(crate) transport: TransportKind,
    pub(crate) ranks: usize,
    pub(crate) shape: Vec<usize>,
    /// Initial value of every element.
    pub(crate) initial: T,
    pub(crate) optimizer: Arc<dyn Optimizer>,
    /// γ of each step.
    pub(crate) rate: fn(usize) -> f64,
    pub(crate) steps: usize,
}

impl<T: Element + Default> Default for Run<T> {
    fn default() -> Self {
        Run {
            transport: TransportKind::Thread,
            ranks: 4,
            shape: vec![50],
            initial: T::default(),
            optimizer: Arc::new(Sgd::default()),
            rate: |_| 0.1,
            steps: 20,
        }
    }
}

impl<T: Element> Run<T> {
    /// The replica of every rank after gradients of `gradient(rank, step, x)`.
    pub(crate) fn train(
        &self,
        algorithm: impl Fn() -> Made + Sync,
        gradient: impl Fn(usize, usize, &[T]) -> Vec<T> + Sync,
    ) -> Vec<Vec<T>> {
        let run = |comm: Communicator| {
            let mut trainer = self.trainer(&comm, algorithm())?;
            for step in 0..self.steps {
                trainer.engine().set_learning_rate((self.rate)(step));
                trainer.step(|_, x| gradient(comm.rank(), step, x))?;
            }
            Ok(trainer.parameters()?.remove(0))
        };
        spawn(self.transport, self.ranks, run).unwrap()
    }

    fn trainer(
        &self,
        comm: &Communicator,
        algorithm: Made,
    ) -> hexagram_algorithms::logical::Result<Trainer<T>> {
        let setup = Setup { optimizer: Arc::clone(&self.optimizer), ..Setup::default() };
        let initial = [vec![self.initial; self.shape.iter().product()]];
        Trainer::with_shapes(comm, algorithm, setup, &initial, std::slice::from_ref(&self.shape))
    }

    /// The errors of every rank in its first steps with these gradients, one of which is invalid. On a late device, and
    /// if ranks read each other's memory, an error is known one step later.
    pub(crate) fn refused(
        &self,
        algorithm: impl Fn() -> Made + Sync,
        gradient: impl Fn(usize) -> T + Sync,
    ) -> Vec<String> {
        let opened = Barrier::new(self.ranks);
        let run = |comm: Communicator| {
            let mut trainer = match self.trainer(&comm, algorithm()) {
                Ok(trainer) => trainer,
                // On all ranks, before any of them waits.
                Err(refused) => return Ok(refused.to_string()),
            };
            opened.wait();
            let mut step = || trainer.step(|_, x| vec![gradient(comm.rank()); x.len()]);
            Ok((0..3).try_for_each(|_| step()).unwrap_err().to_string())
        };
        spawn(self.transport, self.ranks, run).unwrap()
    }
}

/// Fails unless every rank reports that rank 1 has met NaN. The device of that rank reports the element instead.
pub(crate) fn blame_rank_1(errors: &[String]) {
    for (rank, error) in errors.iter().enumerate() {
        let is_told_by_device = rank == 1 && error.contains("on cuda:") && error.contains("is NaN");
        assert!(error.contains("rank 1") || is_told_by_device, "{error}");
    }
}

/// The minimum of ½‖x − target‖² on `rank`.
pub(crate) fn target(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31) % 23) as f32 - 11.0
}

/// Its gradient.
pub(crate) fn pull(rank: usize, _: usize, x: &[f32]) -> Vec<f32> {
    x.iter().enumerate().map(|(at, x)| x - target(rank, at)).collect()
}

/// The minimum of the mean over all ranks.
pub(crate) fn optimum(ranks: usize, elements: usize) -> Vec<f32> {
    let mean = |at| (0..ranks).map(|rank| target(rank, at)).sum::<f32>() / ranks as f32;
    (0..elements).map(mean).collect()
}

/// The largest difference between two replicas.
pub(crate) fn furthest<T: Copy + Into<f64>>(found: &[T], expected: &[T]) -> f64 {
    let differences = found.iter().zip(expected).map(|(x, y)| ((*x).into() - (*y).into()).abs());
    differences.fold(0.0, |largest, x| if x > largest || x.is_nan() { x } else { largest })
}

/// Bytes of a top-k message for `elements` elements, as in the headers.
pub(crate) fn top_k_bytes(elements: usize, fraction: f64) -> usize {
    let k = (elements as f64 * fraction).ceil() as usize;
    let low = (elements / k).ilog2() as usize;
    4 * k + (k * low + k + ((elements - 1) >> low)).div_ceil(8) + 1
}
