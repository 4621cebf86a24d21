//! What can be wrong with a sampler's options. Every message says what to change.

/// Options that no sampler can follow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// Nothing to sample from.
    #[error("there are no samples; set `len` to the length of the data set, and see that it was found")]
    NoSamples,

    /// Nobody to give samples to.
    #[error(
        "a sampler needs at least one replica; \
         set `replicas` to the number of ranks, 1 if there is only this one"
    )]
    NoReplicas,

    /// The rank does not exist.
    #[error(
        "rank {rank} does not exist among {replicas} replicas; \
         ranks count from 0, so set `rank` to at most {}",
        replicas.saturating_sub(1)
    )]
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        replicas: usize,
    },

    /// Leaving out the uneven rest leaves nothing.
    #[error(
        "{len} samples are fewer than the {together} that all ranks draw together, and `drop_last` drops them all; \
         use fewer ranks or smaller batches, or let samples be repeated"
    )]
    AllDropped {
        /// Samples in the data set.
        len: usize,
        /// How many of them ranks draw together.
        together: usize,
    },

    /// An epoch has more positions than memory has addresses.
    #[error(
        "{len} samples among {replicas} replicas are more than this machine can count; \
         sample shards of the data set one after another"
    )]
    TooLarge {
        /// Samples in the data set.
        len: usize,
        /// Ranks that share them.
        replicas: usize,
    },

    /// Two options that exclude each other.
    #[error("`{one}` and `{other}` exclude each other; leave out one of them")]
    Contradiction {
        /// An option.
        one: &'static str,
        /// What it cannot be combined with.
        other: &'static str,
    },

    /// A batch of nothing.
    #[error("a batch needs at least one sample; set `batch_size` to 1 or more")]
    EmptyBatch,
}
