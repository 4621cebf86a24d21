//! Errors of a sampler's options. Every message says what to change.

use std::fmt;
use std::path::PathBuf;

/// Options that no sampler can follow, or a file of complexities that cannot be used.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum SamplerError {
    /// Nothing to sample from.
    NoSamples,

    /// The number of ranks is not set.
    NoReplicas,

    /// The rank does not exist.
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// Number of replicas.
        replicas: usize,
    },

    /// Parts of which each has to have a sample, and some cannot.
    FewSamples {
        /// Samples in the data set.
        len: usize,
        /// Number of parts.
        parts: usize,
    },

    /// Leaving out the uneven rest leaves nothing.
    AllDropped {
        /// Samples in the data set.
        len: usize,
        /// Number of samples that ranks draw together.
        together: usize,
    },

    /// An epoch has more positions than can be counted.
    TooLarge {
        /// Samples in the data set.
        len: usize,
        /// Ranks that share them.
        replicas: usize,
    },

    /// Two options that exclude each other.
    Contradiction {
        /// An option.
        one: &'static str,
        /// Option with which it cannot be combined.
        other: &'static str,
    },

    /// A batch of nothing.
    EmptyBatch,

    /// An option whose number makes no sense.
    BadNumber {
        /// The option.
        option: &'static str,
        /// Value of the option.
        value: f64,
        /// Values that the option may have.
        remedy: &'static str,
    },

    /// A list that has to have one number for each sample or rank.
    WrongCount {
        /// The option.
        option: &'static str,
        /// Number of entries.
        given: usize,
        /// Number of entries that there have to be.
        expected: usize,
        /// Owner of each entry.
        each: &'static str,
    },

    /// A step in which not every rank can have a sample.
    SmallBatch {
        /// Samples of a step.
        global_batch: usize,
        /// Ranks that share them.
        replicas: usize,
    },

    /// A complexity, weight or speed by which nothing can be weighed.
    BadEntry {
        /// The list.
        option: &'static str,
        /// Index of the entry.
        at: usize,
        /// Value of the entry.
        value: f64,
        /// Least value of an entry.
        least: &'static str,
    },

    /// Weights by which not enough samples can be drawn.
    FewWeights {
        /// Number of samples that can be drawn at all.
        positive: usize,
        /// Number of samples that were to be drawn, each once.
        wanted: usize,
    },

    /// A sample that is larger than a batch may be.
    Oversized {
        /// Its index.
        sample: usize,
        /// Its complexity.
        tokens: f64,
        /// The limit of a batch.
        limit: f64,
    },

    /// The complexity of a sample could not be found out.
    Unknown {
        /// Its index.
        sample: usize,
        /// Error of the complexity function.
        cause: String,
    },

    /// A file of complexities that cannot be read, understood or written.
    File {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong.
        cause: String,
    },
}

impl fmt::Display for SamplerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SamplerError::NoSamples => f.write_str(
                "there are no samples; set `len` to the length of the data set, and see that it was found",
            ),
            SamplerError::NoReplicas => f.write_str(
                "the number of ranks is not set; use `..comm.sampling()`, or set `replicas` and `rank` \
                 (1 and 0 if there is only this one)",
            ),
            SamplerError::RankOutOfRange { rank, replicas } => write!(
                f,
                "rank {rank} does not exist among {replicas} replicas; \
                 ranks count from 0, so set `rank` to at most {}",
                replicas.saturating_sub(1)
            ),
            SamplerError::FewSamples { len, parts } => {
                write!(f, "{len} samples cannot be divided into {parts} parts; use fewer ranks or shards")
            }
            SamplerError::AllDropped { len, together } => write!(
                f,
                "{len} samples are fewer than the {together} that all ranks draw together, so that dropping the last ones \
                 drops all; use fewer ranks or smaller batches, or let samples be repeated"
            ),
            SamplerError::TooLarge { len, replicas } => write!(
                f,
                "{len} samples among {replicas} replicas are more than this sampler can count; \
                 sample shards of the data set one after another"
            ),
            SamplerError::Contradiction { one, other } => {
                write!(f, "`{one}` and `{other}` exclude each other; leave out one of them")
            }
            SamplerError::EmptyBatch => {
                f.write_str("a batch needs at least one sample; set its size to 1 or more")
            }
            SamplerError::BadNumber { option, value, remedy } => {
                write!(f, "`{option}` cannot be {value}; {remedy}")
            }
            SamplerError::WrongCount { option, given, expected, each } => {
                write!(f, "`{option}` has {given} numbers instead of {expected}; give one for each {each}")
            }
            SamplerError::SmallBatch { global_batch, replicas } => write!(
                f,
                "a global batch of {global_batch} leaves some of {replicas} ranks without a sample; use at least {replicas}"
            ),
            SamplerError::BadEntry { option, at, value, least } => {
                write!(f, "`{option}` number {at} (from 0) is {value}; it has to be finite, and {least}")
            }
            SamplerError::FewWeights { positive, wanted } => write!(
                f,
                "{positive} samples have a weight above 0, so that {wanted} cannot be drawn; \
                 draw fewer, or with replacement, or give weight to more"
            ),
            SamplerError::Oversized { sample, tokens, limit } => write!(
                f,
                "sample {sample} has {tokens} tokens, more than the {limit} that a batch may have; \
                 raise the limit, or leave out or cut long samples"
            ),
            SamplerError::Unknown { sample, cause } => write!(
                f,
                "the complexity of sample {sample} is not known: {cause}; see that it can be loaded"
            ),
            SamplerError::File { path, cause } => write!(
                f,
                "{}: {cause}; the file has to hold one number a line, one line a sample",
                path.display()
            ),
        }
    }
}

impl std::error::Error for SamplerError {}

impl fmt::Debug for SamplerError {
    /// Writes the text for people: it is what a `main` that returns an error prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Checks that a number is one that things can be weighed by.
pub(crate) fn check_entries(
    option: &'static str,
    values: &[f64],
    positive: bool,
) -> Result<(), SamplerError> {
    let bad = |value: &f64| !value.is_finite() || *value < 0.0 || (positive && *value == 0.0);
    let least = if positive { "above 0" } else { "at least 0" };
    match values.iter().position(bad) {
        Some(at) => Err(SamplerError::BadEntry { option, at, value: values[at], least }),
        None => Ok(()),
    }
}
