//! Samplers of one rank of several.

use crate::error::SamplerError;

/// Options that know which rank they are for, and how many there are. Everything else is as by default.
///
/// What knows a rank, such as a communicator, makes options by this, and struct update syntax does the rest:
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

/// Checks that there are ranks, that this is one of them, and that all positions of an epoch can be counted, even when
/// ranks draw `together` so many at a time.
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

/// Checks that there are samples.
pub(crate) fn check_samples(len: usize) -> Result<(), SamplerError> {
    if len == 0 { Err(SamplerError::NoSamples) } else { Ok(()) }
}

/// Warns, on rank 0, where an epoch has less than the `least` samples that ranks need to draw any.
pub(crate) fn warn_if_nothing(rank: usize, len: usize, least: usize) {
    if rank == 0 && len < least {
        tracing::warn!(
            "ranks draw nothing: a data set of {len} samples has less than the {least} that they draw together"
        );
    }
}

/// Checks that something is left when the uneven rest is not drawn.
pub(crate) fn check_dropping(len: usize, together: usize) -> Result<(), SamplerError> {
    if len < together { Err(SamplerError::AllDropped { len, together }) } else { Ok(()) }
}

/// The most positions an epoch may have: as many as one allocation holds, and their number still adds up.
const LONGEST: usize = isize::MAX as usize / size_of::<usize>();

/// Treatment of the samples that are left when an epoch is not a whole number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tail {
    /// They are not drawn in this epoch; in another, shuffled epoch others are left.
    #[default]
    Drop,
    /// The first samples of the order are repeated until the last step is full.
    Pad,
    /// The last step has only them, so that every sample is drawn exactly once: for evaluation. A rank for which
    /// nothing is left there has one batch less.
    Exact,
}

impl Tail {
    /// Returns the number of positions from `position` on that are drawn, of an epoch of `len` samples in steps of
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
