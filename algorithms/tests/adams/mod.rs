//! What the tests of one-bit Adams have in common: gradients, and replicas that step with them.

use hexagram_algorithms::AnyAlgorithm;
use hexagram_algorithms::logical::{Communicator, Error};
use hexagram_algorithms::testing::{Setup, Trainer};

/// A gradient that no two ranks, steps or elements share.
pub(crate) fn gradient(rank: usize, step: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31 + step * 13) % 101) as f32 / 50.0 - 0.9
}

/// A replica after so many steps, γ = 0.01, from all zeros.
pub(crate) fn train(
    comm: &Communicator,
    algorithm: impl Into<AnyAlgorithm>,
    setup: Setup,
    (elements, steps): (usize, usize),
    gradient: impl Fn(usize, usize, usize) -> f32,
) -> Result<Vec<f32>, Error> {
    let setup = Setup { learning_rate: 0.01, ..setup };
    let mut trainer = Trainer::new(comm, algorithm, setup, &[vec![0.0f32; elements]])?;
    for step in 0..steps {
        trainer.step(|_, x| (0..x.len()).map(|at| gradient(comm.rank(), step, at)).collect())?;
    }
    Ok(trainer.parameters()?.remove(0))
}
