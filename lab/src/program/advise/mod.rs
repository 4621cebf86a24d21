//! `advise`: the algorithms that pay for a model on a cluster, the bandwidths up to which they pay, and their errors in the
//! suite.
//!
//! `candidate` has the algorithms to compare, `ladder` the bandwidths to try, `advice` the figures and
//! recommendations. `verdict` puts these in sentences, `report` writes the table and the JSON, `present` measures and
//! checks on real ranks.

mod advice;
mod candidate;
mod ladder;
mod present;
mod report;
#[cfg(test)]
mod tests;
mod verdict;

use super::arguments::{ALL, information};
use super::console::{ProgramError, print};
use super::simulate::SimulatedJobOptions;
use super::simulate::job::SimulatedJob;
use super::transports;
use advice::Advice;
use candidate::{Candidate, USUAL};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{Error, JoinOptions, Result, TransportKind};

const AFTER_HELP: &str = "\
Each algorithm is simulated on the cluster, as by `hexagram simulate`: without its warm-up steps, over whole periods, and \
over at least 20 steps if jitter, stalls or paces are random. An algorithm pays if its step takes 5 % less than that of \
gradient-allreduce. The table shows the bandwidth up to which it pays, among 1, 2, 5, 10 ... Mbit/s up to 500 Gbit/s, \
independent of --link: 1gbit–2gbit means that it pays at 1 and not at 2, and `at least` that it pays at the highest one.

The column `advice` recommends one algorithm in low and one in full precision: the fastest that pays and makes no more \
errors than gradient-allreduce. For the other algorithms, it gives the reason.

Errors are those on the held-out digits of the suite (docs/which-algorithm.md), relative to gradient-allreduce with the \
same seeds, as mean and half of the 95 % interval: with data distributed alike on all ranks, and skewed by \
Dirichlet(0.1). Check the result with your own model: a faster step does not help if training needs more steps.

With --measure or --check, the cluster is that of the present ranks; if all share one host, each counts as a host. Passes \
use the processor, or wait with --accelerator, as in `hexagram step`. --measure measures the bandwidth of the hosts while \
all send to all others, the latency between two, and the rates of the ranks while all compute. It scales the passes so \
that a simulated step without communication takes as long as a real one.

Exit code: 0 on success; 1 on a failure, or if the output cannot be written; 2 for invalid options; 141 if the reader \
closed the output.

Examples:
  hexagram advise --model vgg16 --ranks 32 --hosts 8 --link 1gbit,50us
  hexagram run -n 4 -- hexagram advise --model trace.json --measure --check";

/// Advise which algorithms pay for a model on a cluster, and up to what bandwidth.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct AdviseOptions {
    /// Algorithms to choose among, separated by commas, with options as in 'slowmo(period=12)', or `all`; `list`
    /// prints all, and `help:NAME` the options of one
    #[arg(long, default_value = USUAL)]
    pub algorithm: String,
    /// Model, ranks and links.
    #[command(flatten)]
    pub job: SimulatedJobOptions,
    /// Measure the link, the rates of arithmetic and codecs, and a step without communication on the present ranks,
    /// and use them for the advice; the ranks are those of a launcher, or --ranks ranks started here
    #[arg(long, conflicts_with_all = ["rates", "straggler", "link", "hosts", "shape", "topology"])]
    pub measure: bool,
    /// Run the fastest algorithms on the present ranks, 2, N or `all` of them, and print the error of the advice
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "2", value_parser = checks)]
    #[arg(conflicts_with_all = ["hosts", "shape", "topology"])]
    pub check: Option<usize>,
    /// In the passes of --measure and --check, wait as for an accelerator instead of using the processor
    #[arg(long)]
    pub accelerator: bool,
    /// Transport between the present ranks.
    #[arg(help = format!("Transport of --measure and --check: {}", transports::names()))]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    pub transport: TransportKind,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `advise`. Returns the exit code.
///
/// # Errors
/// The first invalid option, or the error of a rank, in one line.
pub fn advise(registry: &Registry, options: &AdviseOptions) -> Result<u8, ProgramError> {
    if let Some(text) = information(registry, &options.algorithm, options.job.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    if options.measure || options.check.is_some() {
        return present::advise_here(registry, options);
    }
    options.check_cluster()?;
    let mut candidates = vec![Candidate::reference(registry)?];
    candidates.extend(Candidate::all(registry, &options.algorithm, options.job.optimizer.as_deref())?);
    let advice = options.advice(&options.job.job()?, candidates)?;
    print(&match options.json {
        true => report::object(options, &advice).to_string(),
        false => report::table(options, &advice),
    })?;
    Ok(0)
}

/// Returns the number of algorithms that are run for real.
fn checks(text: &str) -> Result<usize> {
    let number = if text == ALL { Some(usize::MAX) } else { text.parse().ok().filter(|number| *number > 0) };
    number.ok_or_else(|| {
        Error::usage(format!("`{text}` is not a number of algorithms"), "write one, as in 3, or `all`")
    })
}

impl AdviseOptions {
    /// Simulates the candidates; the first is the one to compare with.
    fn advice(&self, job: &SimulatedJob<'_>, candidates: Vec<Candidate>) -> Result<Advice> {
        Advice::of(job, self.job.point()?, candidates)
    }

    fn check_cluster(&self) -> Result<()> {
        let point = self.job.point()?;
        self.job.check(&point)?;
        self.job.check_link_counts(&point)
    }
}
