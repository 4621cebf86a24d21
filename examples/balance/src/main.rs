//! Measures the cost of random assignment of samples with different lengths to ranks, and the savings of balancing.
//! Trains a character model on several ranks with each of three samplers: `cargo run --release -p hexagram-balance`.
//!
//! All ranks wait for the slowest in every step. Read [`train`], whose `options` are all that differs.

mod model;
mod text;
mod train;

use clap::{Parser, ValueEnum};
use hexagram::physical::stdout::{self, PrintError, print};
use hexagram::sampler::dataset::{Cause, Dataset};
use hexagram::sampler::{Balance, Complexities};
use hexagram_lab::picture::{Axes, Drawn, Panel, Picture};
use serde_json::json;
use std::convert::Infallible;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use text::Text;
use train::{Method, Setting, Step};

/// Trains a character model on lines of different lengths, with three ways to give lines to ranks.
#[derive(Parser, Debug)]
#[command(name = "balance", version)]
struct Options {
    /// A text file to learn, a line a sample, instead of the verse and prose that ship
    #[arg(long)]
    text: Option<PathBuf>,
    /// Random lines with these lengths instead of a text
    #[arg(long, value_enum, conflicts_with = "text")]
    lengths: Option<Lengths>,
    /// Ranks, all of them threads of this process
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Lines per rank and step
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Passes over the text
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    epochs: u16,
    /// Seed of the parameters and the order of lines
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Simulate a device for each rank that takes this many microseconds per character, whatever the number of cores
    #[arg(long, value_name = "MICROSECONDS")]
    device: Option<f64>,
    /// File that the picture goes to
    #[arg(long, default_value = "balance.svg")]
    svg: PathBuf,
    /// End with one line of JSON on standard output, and print nothing else there
    #[arg(long)]
    json: bool,
}

/// Steps drawn; in a picture of more, ranks could not be told apart.
const DRAWN_STEPS: usize = 40;

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Lengths {
    /// 4096 lines, half of them above 40 characters, one in six above 120
    LogNormal,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match stdout::check().map_err(Cause::from).and_then(|()| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<PrintError>() {
            Some(error) => error.report("balance"),
            None => {
                // If standard error has no reader, the exit code still shows the failure.
                let _ = io::stderr().write_all(format!("balance: {error}\n").as_bytes());
                ExitCode::FAILURE
            }
        },
    }
}

fn run(options: &Options) -> Result<(), Cause> {
    let text = match (&options.text, options.lengths) {
        (Some(path), _) => Text::read(path)?,
        (None, Some(Lengths::LogNormal)) => Text::log_normal(4096, options.seed),
        (None, None) => Text::shipped(),
    };
    let ranks = usize::from(options.ranks);
    let batch = usize::from(options.batch);
    let lines = text.lines.len();
    if lines < ranks * batch {
        return Err(format!(
            "{lines} lines do not fill a step of {ranks} ranks with --batch {batch}; use a smaller --batch"
        )
        .into());
    }
    let costs = Complexities::evaluate(lines, |index| Ok::<_, Infallible>(text.cost(index)))?;
    let setting = Setting {
        text: &text,
        costs: &costs,
        ranks,
        batch,
        epochs: options.epochs.into(),
        seed: options.seed,
        device: options.device.map(microseconds).transpose()?,
    };
    let mut runs = Vec::new();
    for method in Method::ALL {
        runs.push(Run { method, steps: train::run(&setting, method)? });
    }
    let title = format!("{ranks} ranks, {batch} of {lines} lines per rank and step");
    let axes = Axes { x: "step", y: "characters of each rank", ..Axes::default() };
    let picture = Picture { title: &title, columns: 1, axes, panels: runs.iter().map(Run::panel).collect() };
    std::fs::write(&options.svg, picture.svg())
        .map_err(|cause| format!("cannot write {}: {cause}; choose another --svg", options.svg.display()))?;
    Ok(print(&report(options, &runs, &title))?)
}

fn microseconds(given: f64) -> Result<Duration, Cause> {
    let seconds = Duration::try_from_secs_f64(given / 1e6);
    seconds.map_err(|_| format!("--device {given} is not a time; use microseconds, such as 20").into())
}

/// Returns the text that is printed in the end.
fn report(options: &Options, runs: &[Run], title: &str) -> String {
    if options.json {
        let fields = runs.iter().map(|run| (run.method.name().to_owned(), run.json())).collect();
        return serde_json::Value::Object(fields).to_string();
    }
    let heads = format!(
        "{:<15} {:>8} {:>9} {:>10} {:>20} {:>10}",
        "sampler", "steps/s", "chars/s", "waiting", "max/mean (worst)", "loss"
    );
    let mut lines = vec![title.to_owned(), String::new(), heads];
    lines.extend(runs.iter().map(Run::line));
    lines.push(format!("\nThe cost of each step by rank is in {}.", options.svg.display()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if options.device.is_none() && cores < options.ranks.into() {
        lines.push(format!(
            "{} ranks share {cores} cores: a waiting rank leaves its core to the others, so steps/s hardly differ. \
             Try --device 500, or a machine with more cores.",
            options.ranks
        ));
    }
    lines.join("\n")
}

/// Outcome of one sampler.
struct Run {
    method: Method,
    /// Steps of each rank.
    steps: Vec<Vec<Step>>,
}

impl Run {
    /// Returns the balance of the ranks: the costliest over the average, of each step.
    fn balance(&self) -> Balance {
        let mut balance = Balance::default();
        for step in 0..self.count() {
            balance.add(self.steps.iter().map(|steps| steps[step].cost));
        }
        balance
    }

    fn count(&self) -> usize {
        self.steps.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Returns the part of all ranks' time that went into waiting for others.
    fn waiting(&self) -> f64 {
        let sum = |time: fn(&Step) -> Duration| {
            self.steps.iter().flatten().map(time).sum::<Duration>().as_secs_f64()
        };
        let computed = sum(|step| step.computed);
        let waited = sum(|step| step.waited);
        waited / (computed + waited)
    }

    /// Returns the time of the slowest rank, in seconds.
    fn seconds(&self) -> f64 {
        let of = |steps: &Vec<Step>| steps.iter().map(|step| step.computed + step.waited).sum::<Duration>();
        self.steps.iter().map(of).max().unwrap_or_default().as_secs_f64()
    }

    fn characters_per_s(&self) -> f64 {
        self.steps.iter().flatten().map(|step| step.cost).sum::<f64>() / self.seconds()
    }

    /// Returns the loss of the last steps of the last epoch.
    fn loss(&self) -> f32 {
        let last: Vec<f32> = self.steps.iter().filter_map(|steps| Some(steps.last()?.loss)).collect();
        last.iter().sum::<f32>() / last.len() as f32
    }

    fn line(&self) -> String {
        let balance = self.balance();
        format!(
            "{:<15} {:>8.1} {:>9.0} {:>8.1} % {:>20} {:>10.3}",
            self.method.name(),
            self.count() as f64 / self.seconds(),
            self.characters_per_s(),
            100.0 * self.waiting(),
            format!("{:.3} ({:.3})", balance.mean(), balance.worst()),
            self.loss(),
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "steps": self.count(),
            "steps_per_s": self.count() as f64 / self.seconds(),
            "characters_per_s": self.characters_per_s(),
            "waiting": self.waiting(),
            "max_over_mean": self.balance().mean(),
            "worst_max_over_mean": self.balance().worst(),
            "loss": self.loss(),
        })
    }

    fn panel(&self) -> Panel<'static> {
        let balance = self.balance();
        let title = format!(
            "{}: the costliest rank has {:.2} times the mean, {:.2} at worst; {:.0} % waiting",
            self.method.name(),
            balance.mean(),
            balance.worst(),
            100.0 * self.waiting()
        );
        let line = |(rank, steps): (usize, &Vec<Step>)| {
            let points = steps.iter().take(DRAWN_STEPS).enumerate();
            let points = points.map(|(at, step)| (at as f64, step.cost)).collect();
            Drawn::line(format!("rank {rank}"), points)
        };
        Panel { title, axes: None, drawn: self.steps.iter().enumerate().map(line).collect() }
    }
}
