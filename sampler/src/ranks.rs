//! Common parts of the samplers for one rank of several.

use crate::error::SamplerError;

/// Options with a rank and a number of ranks, and defaults for all other fields.
///
/// A type with a rank, such as a communicator, creates the options with this trait, and struct update syntax sets the
/// rest:
///
/// ```
/// use hexagram_sampler::{DistributedOptions, ForRank};
///
/// let options = DistributedOptions { len: 100, ..ForRank::for_rank(1, 4) };
/// assert_eq!((options.rank, options.replicas), (1, 4));
/// ```
pub trait ForRank {
    /// Returns the defaults for `rank` of `replicas`.
    fn for_rank(rank: usize, replicas: usize) -> Self;
}

/// Options with fields `rank` and `replicas`, and defaults for the others.
macro_rules! for_rank {
    ($options:ty) => {
        impl crate::ranks::ForRank for $options {
            fn for_rank(rank: usize, replicas: usize) -> Self {
                Self { rank, replicas, ..Self::default() }
            }
        }
    };
}
pub(crate) use for_rank;

/// Checks that the number of ranks is not 0, that the rank is below it, and that all positions of an epoch can be
/// counted, even if ranks draw `together` samples at a time.
pub(crate) fn check_ranks(
    len: usize,
    rank: usize,
    replicas: usize,
    together: usize,
) -> Result<(), SamplerError> {
    match replicas {
        0 => return Err(SamplerError::NoReplicas),
        _ if rank >= replicas => return Err(SamplerError::RankOutOfRange { rank, replicas }),
        _ => (),
    }
    let countable = len <= LONGEST && len.checked_add(together).is_some_and(|end| end <= LONGEST);
    if countable { Ok(()) } else { Err(SamplerError::TooLarge { len, replicas }) }
}

/// Checks that the data set is not empty.
pub(crate) fn check_samples(len: usize) -> Result<(), SamplerError> {
    if len == 0 { Err(SamplerError::NoSamples) } else { Ok(()) }
}

/// Warns, on rank 0, if an epoch has fewer than the `least` samples that ranks need to draw any.
pub(crate) fn warn_if_nothing(rank: usize, len: usize, least: usize) {
    if rank == 0 && len < least {
        tracing::warn!(
            "ranks draw no samples: the data set has {len}, fewer than the {least} that they draw together"
        );
    }
}

/// Checks that samples remain after dropping the incomplete last step.
pub(crate) fn check_dropping(len: usize, together: usize) -> Result<(), SamplerError> {
    if len < together { Err(SamplerError::AllDropped { len, together }) } else { Ok(()) }
}

/// Maximum number of positions of an epoch: the number that one allocation holds, and whose sums do not overflow.
const LONGEST: usize = isize::MAX as usize / size_of::<usize>();

/// Treatment of the remaining samples, if an epoch is not a whole number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tail {
    /// Drop them in this epoch; in a shuffled sampler, other epochs drop different samples.
    #[default]
    Drop,
    /// Repeat the first samples of the order until the last step is full.
    Pad,
    /// Make a last step of only these samples, so that every sample is drawn exactly once; for evaluation. A rank
    /// without a sample in that step has one batch less.
    Exact,
}

impl Tail {
    /// Returns the number of positions from `position` on that are drawn, in an epoch of `len` samples with steps of
    /// `together`.
    pub(crate) fn left(self, len: usize, position: usize, together: usize) -> usize {
        let left = len.saturating_sub(position);
        match self {
            Tail::Drop => left - left % together,
            Tail::Pad => left.next_multiple_of(together),
            Tail::Exact => left,
        }
    }
}
