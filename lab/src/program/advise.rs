//! `advise`: which algorithms pay for a model on a cluster, up to what bandwidth, and what the suite knows of their
//! errors.
//!
//! `candidate` is what is chosen among, `ladder` the bandwidths that are tried, `advice` the figures and what is
//! recommended, `verdict` that in sentences, `report` the table and the JSON, `present` what is measured and checked on
//! real ranks.

mod advice;
mod candidate;
mod ladder;
mod present;
mod report;
#[cfg(test)]
mod tests;
mod verdict;

use super::names::{ALL, information};
use super::say::{Failure, print};
use super::simulate::JobOptions;
use super::simulate::job::Job;
use super::transports;
use advice::Advice;
use candidate::{Candidate, USUAL};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{Error, JoinOptions, Result, TransportKind};

const AFTER_HELP: &str = "\
Each algorithm is simulated on the cluster, as by `hexagram simulate`, past the first steps in which some are not yet what \
they are later, over whole periods, and over 20 steps or more where jitter, stalls or paces are drawn. It pays if its step \
takes 5 % less than that of gradient-allreduce. \
Where it stops to pay is looked for among 1, 2, 5, 10 ... Mbit/s up to 500 Gbit/s, whatever --link is: 1gbit–2gbit says that it \
pays at 1 and not at 2, and `at least` that it pays at the highest.

The column `advice` says which algorithm is recommended, one in low and one in full precision: the fastest that pays and makes \
no more errors than gradient-allreduce; and why the others are not.

Errors are those on held-out digits of the suite (docs/which-algorithm.md), above those of gradient-allreduce with the \
same seeds, as mean and half of the 95 % interval: with data that are alike on all ranks, and skewed by Dirichlet(0.1). A \
model of your own may judge otherwise; a step that takes less is of no use where more steps are needed.

With --measure or --check the cluster is that of the ranks that are there, and each is on a host of its own if all are on \
one. Passes use the processor, or wait with --accelerator, as in `hexagram step`. --measure takes the bandwidth of hosts while all \
send to all others, the latency between two, the rates of all ranks while all compute, and passes that make a simulated step \
without communication take as long as a real one.

Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if nobody reads it.

Examples:
  hexagram advise --model vgg16 --ranks 32 --hosts 8 --link 1gbit,50us
  hexagram run -n 4 -- hexagram advise --model trace.json --measure --check";

/// Advise which algorithms pay for a model on a cluster, and up to what bandwidth.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct AdviseOptions {
    /// Algorithms to choose among, with options as in 'slowmo(period=12)', separated by commas, or `all`; `list` prints
    /// all, and `help:NAME` the options of one
    #[arg(long, default_value = USUAL)]
    pub algorithm: String,
    /// Model, ranks and links.
    #[command(flatten)]
    pub job: JobOptions,
    /// Measure the link, the rates of arithmetic and codecs, and a step without communication on the present ranks, and
    /// advise for these: those of a launcher, or as many as --ranks says, which are started here
    #[arg(long, conflicts_with_all = ["rates", "straggler", "link", "hosts", "shape", "topology"])]
    pub measure: bool,
    /// Run the algorithms that take least for real on the present ranks, two or as many as this says, or `all`, and print
    /// how wrong the advice was
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "2", value_parser = checks)]
    #[arg(conflicts_with_all = ["hosts", "shape", "topology"])]
    pub check: Option<usize>,
    /// Let the passes of --measure and --check wait for so long, as for an accelerator that computes, in place of using the
    /// processor
    #[arg(long)]
    pub accelerator: bool,
    /// Transport between the present ranks.
    #[arg(help = format!("How bytes of --measure and --check travel: {}", transports::names()))]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    pub transport: TransportKind,
    /// Print one JSON object in place of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `advise`. Returns the exit code.
///
/// # Errors
/// One line that says what is wrong with the options, or what a rank met.
pub fn advise(registry: &Registry, options: &AdviseOptions) -> Result<u8, Failure> {
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
    /// Simulates the candidates, of which the first is the one that the others are compared to.
    fn advice(&self, job: &Job<'_>, candidates: Vec<Candidate>) -> Result<Advice> {
        Advice::of(job, self.job.point()?, candidates)
    }

    fn check_cluster(&self) -> Result<()> {
        let point = self.job.point()?;
        self.job.check(&point)?;
        self.job.check_link_counts(&point)
    }
}
