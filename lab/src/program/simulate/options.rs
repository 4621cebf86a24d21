//! Options of `simulate`.

use super::faults::FaultOptions;
use super::job::SimulatedJobOptions;
use super::train::TrainingOptions;
use clap::Parser;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Every rank runs the real algorithm, on buffers that have sizes only. Arithmetic takes the time given by --rates, \
messages that of the links. The speed of this machine has no effect: the same arguments and seed give the \
same figures everywhere.

With --train a small model is trained with real numbers, to the same bits as on real ranks of this machine, unless the \
algorithm is asynchronous. The mathematics library of a different machine may round exponentials and logarithms \
differently. Defaults: the learning rates of docs/which-algorithm.md (--lr), and 10 ms for the passes of a step \
(--compute).

A model file has a line `NAME ELEMENTS BACKWARD_MS` for each parameter, in the order of the forward pass. A forward pass \
takes half of the backward pass. The file may also be the trace of a real run, written by `train --trace`: its buckets are \
the layers.

A link is the bandwidth and latency between two ranks of different hosts (--link) or of one (--intra), in each direction: \
10gbit,50us. jitter=5us delays each message by up to 5 µs; stall=0.001:200ms delays one of a thousand by 200 ms.

Ranks compute for the time of the model, times the factors of --straggler, --compute-jitter and --compute-drift, whose random \
numbers follow from --seed.

A cluster is flat, on one switch without congestion, or has a different --shape: racks whose uplink is the bandwidth of \
their hosts divided by an oversubscription, a fat tree of switches with a number of ports, or sites in a ring. A --topology \
file has such a line, and others: `hosts 6 ranks=4`, `hosts 2 ranks=2 link=1gbit,80us intra=100gbit,5us`, `switch NAME`, and \
`link host3 rack0 10gbit,25us,stall=0.01:200ms` for single links; docs/simulation.md describes the format.

Algorithms with a warm-up of their own are simulated without it, except with --from-start; the table shows the options \
that were simulated.

Of the bytes that a rank sends, only those to other hosts use the network.

The time of a step is the mean over all steps after the warm-up, of the slowest rank. For algorithms that do not \
communicate in every step, set --steps to whole periods.

Exit code: 0 on success; 1 on a failure, or if the output cannot be written; 2 for invalid options; 141 if the reader \
closed the output.

Example: hexagram simulate --algorithm gradient-allreduce,bytegrad --model vgg16 --ranks 128 --hosts 16 --link 10gbit,50us";

/// Algorithms that are simulated if none is named.
const DEFAULT: &str = "gradient-allreduce,bytegrad";
/// Steps to measure for a model given by its sizes.
pub(super) const STEPS: u32 = 20;

/// Simulate a training step with algorithms on a cluster, in virtual time.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct SimulateOptions {
    /// Algorithms, separated by commas, with options as in 'slowmo(period=12)', or `all`; `list` prints all, and
    /// `help:NAME` the options of one; --faults N uses all synchronous ones by default [default:
    /// gradient-allreduce,bytegrad]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Model, ranks and links.
    #[command(flatten)]
    pub job: SimulatedJobOptions,
    /// Simulate several values, as in bandwidth=1gbit,10gbit, latency=50us,5ms or ranks=8,16,32; hosts have as many
    /// ranks as with --ranks and --hosts, or one host has fewer
    #[arg(long, value_name = "WHAT=V,V,…")]
    pub sweep: Option<String>,
    /// Measured steps, or steps of --train [default: 20, or enough for whole periods of the algorithm; with --train,
    /// the default of the task, 200 or 300]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// Steps before the measured ones
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: u32,
    /// Training with real numbers.
    #[command(flatten)]
    pub training: TrainingOptions,
    /// Measure the rates of this machine, write them to a file for --rates, and simulate nothing
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Faults to try.
    #[command(flatten)]
    pub faults: FaultOptions,
    /// Write the time of all ranks to a file for ui.perfetto.dev, as `train --trace` does for real ranks; for one
    /// algorithm and one cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "train"])]
    pub trace: Option<PathBuf>,
    /// Write the table as table.md and the JSON object as results.json into a folder, with plots of a --sweep
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

impl SimulateOptions {
    /// Returns the list of algorithms that are simulated.
    pub(super) fn algorithms(&self) -> &str {
        self.algorithm.as_deref().unwrap_or(DEFAULT)
    }
}
