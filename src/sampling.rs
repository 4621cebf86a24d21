//! Samplers that get their rank from a communicator: the sampler crate itself is independent of communicators.

use hexagram_logical::{Communicator, World};
use hexagram_sampler::ForRank;

/// Options of samplers for this rank.
///
/// ```
/// use hexagram::sampler::{DistributedOptions, DistributedSampler};
/// use hexagram::testing::spawn;
/// use hexagram::{Sampling, TransportKind};
///
/// let options = spawn(TransportKind::Thread, 2, |comm| {
///     Ok(DistributedOptions { len: 6, shuffle: false, ..comm.sampling() })
/// })?;
/// assert_eq!(DistributedSampler::new(options[1])?.indices(), [1, 3, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sampling {
    /// Returns the defaults of any sampler's options, with the rank and the number of ranks of this communicator or
    /// world.
    fn sampling<O: ForRank>(&self) -> O;
}

impl Sampling for Communicator {
    fn sampling<O: ForRank>(&self) -> O {
        O::for_rank(self.rank(), self.size())
    }
}

impl Sampling for World {
    fn sampling<O: ForRank>(&self) -> O {
        O::for_rank(self.rank(), self.size())
    }
}
