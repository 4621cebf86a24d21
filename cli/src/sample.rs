//! `hexagram sample`: prints the samples of each rank, in order, and the balance of the ranks.

use crate::console::{self, PrintError};
use clap::{Args, ValueEnum};
use hexagram::sampler::{
    Balance, Batching, Complexities, DistributedOptions, DistributedSampler, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler, SamplerError,
};
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
distributed is PyTorch's DistributedSampler, load-balancing and batch are Bagua's LoadBalancingDistributedSampler and \
LoadBalancingDistributedBatchSampler, index for index; batch makes batches of at most --max-tokens.

The balance is the cost of the costliest rank of a step divided by the mean cost, averaged over steps; 1 is \
perfect. A step is one sample of each rank, or one batch; a sample costs its number in --complexity, or 1.

Exit code: 0 on success; 2 for invalid options; 1 if --complexity cannot be read or parsed, or the output cannot be \
written; 141 if the reader closed the output.

Example: hexagram sample --len 10 --ranks 4 --seed 42";

/// Print the samples of each rank in an epoch, in order.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Sample {
    /// Samples in the data set
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    len: u64,

    /// Ranks that share the samples
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    ranks: u32,

    /// Print only the list of this rank
    #[arg(long, value_name = "R")]
    rank: Option<usize>,

    /// Sampler
    #[arg(long, value_enum, value_name = "NAME", default_value_t = SamplerChoice::Distributed)]
    sampler: SamplerChoice,

    /// Seed of the order, together with the epoch; negative seeds as in PyTorch
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true, value_parser = seed)]
    seed: u64,

    /// Epoch
    #[arg(long, value_name = "E", default_value_t = 0)]
    epoch: u64,

    /// Keep the order of the data set, or of complexity
    #[arg(long)]
    no_shuffle: bool,

    /// Drop the samples that do not divide evenly (with batch: batches), instead of repeating some
    #[arg(long)]
    drop_last: bool,

    /// File with the cost of each sample, one number per line
    #[arg(long, value_name = "FILE")]
    complexity: Option<PathBuf>,

    /// Randomness of load balancing, from 0, best balanced, to 1, nearly random [default: 0]
    #[arg(long, value_name = "L", allow_negative_numbers = true)]
    random_level: Option<f64>,

    /// Maximum cost of a batch
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    max_tokens: Option<f64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A sampler by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SamplerChoice {
    Distributed,
    LoadBalancing,
    Batch,
}

impl SamplerChoice {
    fn name(self) -> &'static str {
        match self {
            SamplerChoice::Distributed => "distributed",
            SamplerChoice::LoadBalancing => "load-balancing",
            SamplerChoice::Batch => "batch",
        }
    }
}

/// Samples of all ranks.
enum DrawnSamples {
    Samples(Vec<Vec<usize>>),
    Batches(Vec<Vec<Vec<usize>>>),
}

impl Sample {
    /// Prints the lists.
    pub(crate) fn execute(self) -> ExitCode {
        let (drawn, balance) =
            match self.draw() {
                Ok(drawn) => drawn,
                Err(error) => {
                    console::line("hexagram sample", &error);
                    return ExitCode::from(
                        if matches!(error, SampleError::Sampler(SamplerError::File { .. })) { 1 } else { 2 },
                    );
                }
            };
        let mut out = BufWriter::new(io::stdout().lock());
        let printed = if self.json {
            self.print_json(&mut out, drawn, balance)
        } else {
            self.print(&mut out, drawn, balance)
        };
        match printed.and_then(|()| out.flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(cause) => console::failure("hexagram sample", PrintError::from(cause)),
        }
    }

    fn draw(&self) -> Result<(DrawnSamples, Balance), SampleError> {
        self.check()?;
        let complexities = self.complexity.as_ref().map(Complexities::read).transpose()?;
        if let Some(complexities) = &complexities {
            complexities.check_len(self.len as usize)?;
        }
        let cost = |sample: usize| complexities.as_ref().map_or(1.0, |known| known.as_slice()[sample]);
        let balancing = |rank| {
            let complexities =
                complexities.clone().ok_or(SampleError::Call("load balancing needs --complexity FILE"))?;
            Ok(LoadBalancingDistributedSampler::new(complexities, self.balancing(rank))?)
        };
        let batching = |rank| {
            let limit = self.max_tokens.ok_or(SampleError::Call("batch needs --max-tokens N"))?;
            Ok(LoadBalancingBatchSampler::new(balancing(rank)?, Batching::MaxTokens(limit), self.drop_last)?)
        };
        match self.sampler {
            SamplerChoice::Distributed => {
                let drawn = self.all_ranks(|rank| Ok(DistributedSampler::new(self.distributed(rank))?))?;
                let balance = balance(&drawn, |sample| cost(*sample));
                Ok((DrawnSamples::Samples(drawn), balance))
            }
            SamplerChoice::LoadBalancing => {
                let drawn = self.all_ranks(balancing)?;
                let balance = balance(&drawn, |sample| cost(*sample));
                Ok((DrawnSamples::Samples(drawn), balance))
            }
            SamplerChoice::Batch => {
                let drawn = self.all_ranks(batching)?;
                let balance = balance(&drawn, |batch| batch.iter().copied().map(cost).sum());
                Ok((DrawnSamples::Batches(drawn), balance))
            }
        }
    }

    /// Refuses options that the sampler would ignore.
    fn check(&self) -> Result<(), SampleError> {
        if self.max_tokens.is_some() && self.sampler != SamplerChoice::Batch {
            return Err(SampleError::Call("--max-tokens requires --sampler batch"));
        }
        if self.random_level.is_some() && self.sampler == SamplerChoice::Distributed {
            return Err(SampleError::Call("--random-level requires --sampler load-balancing or batch"));
        }
        Ok(())
    }

    fn distributed(&self, rank: usize) -> DistributedOptions {
        DistributedOptions {
            len: self.len as usize,
            replicas: self.ranks as usize,
            rank,
            shuffle: !self.no_shuffle,
            seed: self.seed,
            epoch: self.epoch,
            drop_last: self.drop_last,
            exact: false,
        }
    }

    fn balancing(&self, rank: usize) -> LoadBalancingOptions {
        LoadBalancingOptions {
            replicas: self.ranks as usize,
            rank,
            shuffle: !self.no_shuffle,
            seed: self.seed,
            epoch: self.epoch,
            // The batches of Bagua contain all samples; whole batches are dropped instead.
            drop_last: self.drop_last && self.sampler != SamplerChoice::Batch,
            random_level: self.random_level.unwrap_or(0.0),
        }
    }

    fn all_ranks<S: Sampler>(
        &self,
        sampler: impl Fn(usize) -> Result<S, SampleError>,
    ) -> Result<Vec<Vec<S::Item>>, SampleError> {
        sampler(self.rank.unwrap_or(0))?;
        (0..self.ranks as usize).map(|rank| Ok(sampler(rank)?.iter().collect())).collect()
    }

    /// Returns the ranks to print.
    fn shown<T>(&self, mut drawn: Vec<T>) -> impl Iterator<Item = (usize, T)> {
        let first = self.rank.unwrap_or(0);
        let mut shown = drawn.split_off(first);
        shown.truncate(self.rank.map_or(usize::MAX, |_| 1));
        (first..).zip(shown)
    }

    fn print(&self, out: &mut impl Write, drawn: DrawnSamples, balance: Balance) -> io::Result<()> {
        match drawn {
            DrawnSamples::Samples(ranks) => {
                for (rank, samples) in self.shown(ranks) {
                    writeln!(out, "rank {rank}: {}", joined(&samples))?;
                }
            }
            DrawnSamples::Batches(ranks) => {
                for (rank, batches) in self.shown(ranks) {
                    let batches: Vec<_> =
                        batches.iter().map(|batch| format!("[{}]", joined(batch))).collect();
                    writeln!(out, "rank {rank}: {}", joined(&batches))?;
                }
            }
        }
        writeln!(
            out,
            "balance: {:.4} max/mean cost per step, {:.4} in the worst",
            balance.mean(),
            balance.worst()
        )
    }

    fn print_json(&self, out: &mut impl Write, drawn: DrawnSamples, balance: Balance) -> io::Result<()> {
        let ranks: Vec<Value> = match drawn {
            DrawnSamples::Samples(ranks) => self.shown(ranks).map(|(_, samples)| json!(samples)).collect(),
            DrawnSamples::Batches(ranks) => self.shown(ranks).map(|(_, batches)| json!(batches)).collect(),
        };
        let object = json!({
            "sampler": self.sampler.name(),
            "len": self.len,
            "num_replicas": self.ranks,
            "rank": self.rank,
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle": !self.no_shuffle,
            "drop_last": self.drop_last,
            "complexity": self.complexity.as_ref().map(|path| path.display().to_string()),
            "random_level": self.random_level.unwrap_or(0.0),
            "max_tokens": self.max_tokens,
            "ranks": ranks,
            "balance": balance.mean(),
            "worst_balance": balance.worst(),
        });
        writeln!(out, "{object}")
    }
}

/// Returns the balance of the samples of all ranks, step by step.
fn balance<T>(ranks: &[Vec<T>], cost: impl Fn(&T) -> f64) -> Balance {
    let mut balance = Balance::default();
    for step in 0..ranks.first().map_or(0, Vec::len) {
        balance.add(ranks.iter().filter_map(|draws| draws.get(step)).map(&cost));
    }
    balance
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Parses a seed as PyTorch does, where -1 is 2^64 - 1.
fn seed(text: &str) -> Result<u64, String> {
    let number = text.parse::<i128>().ok();
    let seed = number.filter(|number| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(number));
    seed.map(|seed| seed as u64).ok_or_else(|| "write a whole number from -2^63 to 2^64 - 1".to_owned())
}

/// Reason why no samples are printed.
#[derive(Debug)]
enum SampleError {
    /// Options that do not fit together.
    Call(&'static str),
    Sampler(SamplerError),
}

impl From<SamplerError> for SampleError {
    fn from(error: SamplerError) -> Self {
        SampleError::Sampler(error)
    }
}

impl std::fmt::Display for SampleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SampleError::Call(what) => f.write_str(what),
            SampleError::Sampler(error) => error.fmt(f),
        }
    }
}
