//! Errors of the options of a sampler. Every message contains a remedy.

use std::fmt;
use std::path::PathBuf;

/// Invalid options of a sampler, or a file of complexities that cannot be used.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum SamplerError {
    /// The data set has no samples.
    NoSamples,

    /// The number of ranks is not set.
    NoReplicas,

    /// The rank is out of range.
    RankOutOfRange {
        /// The requested rank.
        rank: usize,
        /// Number of replicas.
        replicas: usize,
    },

    /// Fewer samples than parts, each of which needs one.
    FewSamples {
        /// Samples in the data set.
        len: usize,
        /// Number of parts.
        parts: usize,
    },

    /// Dropping the last samples leaves none.
    AllDropped {
        /// Samples in the data set.
        len: usize,
        /// Number of samples that all ranks draw together.
        together: usize,
    },

    /// An epoch has too many positions to count.
    TooLarge {
        /// Samples in the data set.
        len: usize,
        /// Ranks that share them.
        replicas: usize,
    },

    /// Two options that exclude each other.
    Contradiction {
        /// One option.
        one: &'static str,
        /// The other option.
        other: &'static str,
    },

    /// A batch size of 0.
    EmptyBatch,

    /// A number out of range.
    BadNumber {
        /// The option.
        option: &'static str,
        /// Value of the option.
        value: f64,
        /// Valid values of the option.
        remedy: &'static str,
    },

    /// A list whose length is not the number of samples or ranks.
    WrongCount {
        /// The option.
        option: &'static str,
        /// Number of entries.
        given: usize,
        /// Expected number of entries.
        expected: usize,
        /// Kind of the items: one entry for each.
        each: &'static str,
    },

    /// A step with fewer samples than ranks.
    SmallBatch {
        /// Samples of a step.
        global_batch: usize,
        /// Ranks that share them.
        replicas: usize,
    },

    /// An invalid complexity, weight or speed.
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

    /// Weights that allow too few draws.
    FewWeights {
        /// Number of samples with a positive weight.
        positive: usize,
        /// Number of samples to draw, each once.
        wanted: usize,
    },

    /// A sample that is larger than the limit of a batch.
    Oversized {
        /// Index of the sample.
        sample: usize,
        /// Complexity of the sample.
        tokens: f64,
        /// Limit of a batch.
        limit: f64,
    },

    /// The complexity of a sample could not be evaluated.
    Unknown {
        /// Index of the sample.
        sample: usize,
        /// Error of the complexity function.
        cause: String,
    },

    /// A file of complexities that cannot be read, parsed or written.
    File {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        cause: String,
    },
}

impl fmt::Display for SamplerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SamplerError::NoSamples => f.write_str(
                "there are no samples; set `len` to the length of the data set, and check that it was found",
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
                 drops all; use fewer ranks or smaller batches, or repeat samples"
            ),
            SamplerError::TooLarge { len, replicas } => write!(
                f,
                "{len} samples among {replicas} replicas are more than this sampler can count; \
                 split the data set into shards, and sample them in sequence"
            ),
            SamplerError::Contradiction { one, other } => {
                write!(f, "`{one}` and `{other}` exclude each other; remove one of them")
            }
            SamplerError::EmptyBatch => {
                f.write_str("a batch needs at least one sample; set its size to 1 or more")
            }
            SamplerError::BadNumber { option, value, remedy } => {
                write!(f, "`{option}` cannot be {value}; {remedy}")
            }
            SamplerError::WrongCount { option, given, expected, each } => {
                write!(f, "`{option}` has {given} numbers instead of {expected}; set one for each {each}")
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
                 draw fewer, draw with replacement, or give more samples a weight"
            ),
            SamplerError::Oversized { sample, tokens, limit } => write!(
                f,
                "sample {sample} has {tokens} tokens, more than the limit {limit} of a batch; \
                 raise the limit, or drop or cut long samples"
            ),
            SamplerError::Unknown { sample, cause } => write!(
                f,
                "the complexity of sample {sample} is unknown: {cause}; check that the sample can be loaded"
            ),
            SamplerError::File { path, cause } => {
                write!(f, "{}: {cause}; write one number per line, one line per sample", path.display())
            }
        }
    }
}

impl std::error::Error for SamplerError {}

impl fmt::Debug for SamplerError {
    /// Writes the message, as a `main` that returns an error prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Checks that a list has valid weights.
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
