//! Trains with every algorithm in turn, and writes the results: the table of docs/algorithms.md, and pictures of the
//! loss against time and against bytes: `cargo run --release --example compare --features programs`.
//!
//! With names or other arguments for the runs, it prints the table of those, and leaves the documentation alone.
//!
//! Each run is one of `train`, in separate processes, with the algorithm's own defaults.

use clap::Parser;
use hexagram::algorithms::{Registry, registry};
use hexagram::physical::input;
use hexagram::physical::stdout::print;
use hexagram_lab::picture::{Axes, Panel, Picture, PictureContent};
use hexagram_lab::program::console::{self, bytes, markdown_heading, markdown_row, percent};
use hexagram_lab::program::{ChosenAlgorithm, folder_name, prepare};
use hexagram_lab::run::{EXIT_CODES, RunError, failure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

#[path = "../../examples/train.rs"]
mod train;

/// Marks a process as a run.
const RUN: &str = "HEXAGRAM_EXAMPLE_RUN";
/// The most bytes of the page that has the table.
const LONGEST_PAGE: u64 = 16 << 20;
/// Around the table.
const BEGIN: &str = "<!-- lab/examples/compare: begin -->";
const END: &str = "<!-- lab/examples/compare: end -->";

/// Train with every algorithm and compare.
///
/// Only a run of all algorithms as they are replaces the table and the pictures in --docs. With names, or arguments
/// after `--`, the table is printed and the pictures go to --out.
#[derive(Parser, Debug)]
#[command(name = "compare", version, after_help = EXIT_CODES)]
struct ComparisonOptions {
    /// Algorithms to compare, with options as in 'slowmo(period=12)' [default: all]
    algorithms: Vec<String>,
    /// Folder with algorithms.md, whose table a run of all replaces, and with a folder for its pictures
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
    /// Folder for each run's metrics.jsonl and plot.svg, and for the pictures of a run of some
    #[arg(long, default_value = "runs/compare")]
    out: PathBuf,
    /// Arguments of each run, such as `-- --ranks 2 --transport tcp`
    #[arg(last = true)]
    train: Vec<String>,
}

fn main() -> ExitCode {
    if std::env::var_os(RUN).is_some() {
        return train::main();
    }
    if let Err(code) = prepare("") {
        return code;
    }
    match ComparisonOptions::try_parse() {
        Ok(options) => match compare(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure("compare", &*error),
        },
        Err(shown) => console::instead("compare", &shown),
    }
}

impl ComparisonOptions {
    /// Returns true if this is the run that the documentation shows.
    fn is_whole(&self) -> bool {
        self.algorithms.is_empty() && self.train.is_empty()
    }

    /// Returns the folder of the pictures.
    fn pictures(&self) -> PathBuf {
        if self.is_whole() { self.docs.join("pictures") } else { self.out.clone() }
    }
}

fn compare(options: &ComparisonOptions) -> Result<(), RunError> {
    let chosen = ChosenAlgorithm::all(&Registry::built_in(), &options.algorithms)?;
    let page = options.docs.join("algorithms.md");
    if options.is_whole() {
        // Before hours of training, not after them.
        SurroundingText::read(&page)?;
    }
    let mut runs = Vec::new();
    for ChosenAlgorithm { spelling, .. } in &chosen {
        let run = AlgorithmRun::new(spelling, options)?;
        console::line("compare", run.row());
        runs.push(run);
    }
    // Kinds in the order of the README's table, the reference's first.
    let kind = |run: &AlgorithmRun| "☰☴☱☵☲☶☳☷".find(&run.text("trigram"));
    runs.sort_by_key(|run| (kind(run), run.text("algorithm") != "gradient-allreduce"));
    draw(&runs, "seconds since the start", "time", options, |_, epoch| epoch["seconds"].as_f64())?;
    draw(&runs, "MiB sent by all ranks", "bytes", options, AlgorithmRun::sent_until)?;
    if options.is_whole() {
        // Read again: the page may have changed during the runs.
        std::fs::write(&page, SurroundingText::read(&page)?.with(&table(&runs)))?;
        print(&format!("{} is up to date, and its two pictures", page.display()))?;
    } else {
        print(&format!("{}\n\nThe pictures are in {}", table(&runs), options.out.display()))?;
    }
    Ok(())
}

/// Result of one algorithm's training.
struct AlgorithmRun {
    report: Value,
    epochs: Vec<Value>,
}

impl AlgorithmRun {
    fn new(algorithm: &str, options: &ComparisonOptions) -> Result<Self, RunError> {
        let out = options.out.join(folder_name(algorithm));
        let mut command = Command::new(std::env::current_exe()?);
        command.env(RUN, "1").args(["--algorithm", algorithm, "--json", "--out"]);
        command.arg(&out).args(&options.train);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(format!("{algorithm}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let text = std::fs::read_to_string(out.join("metrics.jsonl"))?;
        let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let event =
            |name: &str| lines.iter().filter(|line| line["event"] == name).cloned().collect::<Vec<_>>();
        let report = event("summary").pop().ok_or_else(|| format!("{algorithm}: the run has no summary"))?;
        Ok(AlgorithmRun { report, epochs: event("epoch") })
    }

    fn text(&self, field: &str) -> String {
        self.report[field].as_str().unwrap_or_default().to_owned()
    }

    fn number(&self, field: &str) -> f64 {
        self.report[field].as_f64().unwrap_or(f64::NAN)
    }

    /// Returns the MiB that were sent up to the end of an epoch.
    fn sent_until(&self, epoch: &Value) -> Option<f64> {
        let until = self.epochs.iter().take_while(|other| other["epoch"].as_u64() <= epoch["epoch"].as_u64());
        Some(until.filter_map(|epoch| epoch["bytes_sent"].as_f64()).sum::<f64>() / f64::from(1 << 20))
    }

    fn row(&self) -> String {
        let replicas = if self.report["replicas_identical"] == true { "bit-identical" } else { "differ" };
        markdown_row(&[
            format!("`{}`", self.text("algorithm")),
            self.text("trigram"),
            self.text("optimizer"),
            self.number("learning_rate").to_string(),
            format!("{:.2} %", 100.0 * self.number("test_accuracy")),
            bytes(self.number("bytes_sent") as u64),
            percent(self.number("bytes_sent") / self.number("bytes_of_gradient_all_reduce")),
            format!("{:.0}", self.number("steps_per_s")),
            replicas.to_owned(),
        ])
    }
}

const HEADING: [&str; 9] = [
    "algorithm",
    "",
    "optimizer",
    "γ",
    "test accuracy",
    "sent",
    "of `gradient-allreduce`'s",
    "steps/s",
    "replicas at the end",
];

fn table(runs: &[AlgorithmRun]) -> String {
    let rows = runs.iter().map(AlgorithmRun::row);
    [markdown_heading(&HEADING)].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Text around the table.
struct SurroundingText {
    before: String,
    after: String,
}

impl SurroundingText {
    fn read(path: &Path) -> Result<Self, RunError> {
        let text = input::read_text(path, LONGEST_PAGE).map_err(|cause| {
            format!("{} cannot be read: {cause}; set --docs to the folder with algorithms.md", path.display())
        })?;
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) =
            parts.ok_or_else(|| format!("{} has no lines `{BEGIN}` and `{END}`", path.display()))?;
        Ok(SurroundingText { before: before.to_owned(), after: after.to_owned() })
    }

    fn with(&self, table: &str) -> String {
        format!("{}{BEGIN}\n{table}\n{END}{}", self.before, self.after)
    }
}

fn draw(
    runs: &[AlgorithmRun],
    x: &'static str,
    name: &str,
    options: &ComparisonOptions,
    of: impl Fn(&AlgorithmRun, &Value) -> Option<f64>,
) -> Result<(), RunError> {
    let kind =
        |run: &AlgorithmRun| registry::named(&run.text("algorithm")).map(|known| known.trigram().to_string());
    let line = |run: &AlgorithmRun| {
        let point = |epoch: &Value| Some((of(run, epoch)?, epoch["loss"].as_f64()?));
        PictureContent::line(run.text("algorithm"), run.epochs.iter().filter_map(point).collect())
    };
    let mut panels: Vec<Panel> = Vec::new();
    for run in runs {
        let title = kind(run).unwrap_or_default();
        match panels.last_mut().filter(|panel| panel.title == title) {
            Some(panel) => panel.drawn.push(line(run)),
            None => panels.push(Panel { title, axes: None, drawn: vec![line(run)] }),
        }
    }
    // The first is in every panel, to compare with.
    let reference = runs.first().map(|run| PictureContent { reference: true, ..line(run) });
    panels.iter_mut().skip(1).for_each(|panel| panel.drawn.extend(reference.clone()));
    let title = "Digits, 4 ranks: training loss of each algorithm with its own defaults";
    let axes = Axes { x, y: "training loss (nats)", log_x: true, log_y: true };
    let folder = options.pictures();
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("algorithms-{name}.svg"));
    Ok(std::fs::write(file, Picture { title, columns: 2, axes, panels }.svg())?)
}
