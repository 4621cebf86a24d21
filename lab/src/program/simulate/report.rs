//! Output of `simulate`: a table, or one JSON object.

use super::job::{LayerModel, SimulatedJobOptions};
use super::options::{STEPS, SimulateOptions};
use super::output_dir;
use super::run::Figures;
use crate::program::console::{
    PrintError, ProgramError, bytes, markdown_heading, markdown_row, percent, print,
};
use hexagram::physical::sim::LinkSpec;
use serde_json::{Value, json};

/// Figures of one algorithm on one cluster.
#[derive(Debug, Clone)]
pub(crate) struct ReportRow {
    /// Algorithm in the requested spelling.
    pub(crate) algorithm: String,
    /// Algorithm as it was simulated: without its warm-up.
    pub(super) simulated: String,
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
    pub(crate) link: LinkSpec,
    pub(crate) figures: Figures,
    /// Seconds of a step without communication.
    pub(crate) local_s: f64,
}

impl ReportRow {
    /// Returns the share of a step in which the rank waits for communication.
    pub(crate) fn communication(&self) -> f64 {
        (1.0 - self.local_s / self.figures.step_s).max(0.0)
    }

    pub(super) fn table_row(&self) -> String {
        markdown_row(&[
            format!("`{}`", self.simulated),
            format!("{} on {}", self.ranks, self.hosts),
            self.link.to_string(),
            format!("{:.2}", self.figures.step_s * 1e3),
            format!("{:.1}", self.ranks as f64 / self.figures.step_s),
            bytes(self.figures.bytes as u64),
            bytes(self.figures.network_bytes as u64),
            percent(self.communication()),
        ])
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "algorithm": self.algorithm,
            "simulated": self.simulated,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "bandwidth_bps": self.link.bandwidth * 8.0,
            "latency_s": self.link.latency.as_secs_f64(),
            "step_s": self.figures.step_s,
            "bytes_per_rank_step": self.figures.bytes,
            "network_bytes_per_rank_step": self.figures.network_bytes,
            "comm_fraction": self.communication(),
            "simulated_steps": self.figures.simulated_steps,
            "events": self.figures.events,
            "fingerprint": format!("{:016x}", self.figures.fingerprint),
        })
    }
}

pub(super) const HEADING: [&str; 8] = [
    "algorithm",
    "ranks on hosts",
    "link",
    "ms a step",
    "batches/s",
    "sent a rank and step",
    "of it to other hosts",
    "in communication",
];

/// Report of a run of `simulate`.
pub(super) struct SimulateReport<'a> {
    options: &'a SimulateOptions,
    rows: Vec<Value>,
    /// Lines of the table, of which the first `printed` have been printed.
    lines: Vec<String>,
    printed: usize,
}

impl<'a> SimulateReport<'a> {
    /// Creates a report about a subject, with the heading of its columns.
    pub(super) fn new(options: &'a SimulateOptions, about: &str, columns: &[&str]) -> Self {
        let heading = format!("{about}\n\n{}", markdown_heading(columns));
        SimulateReport { options, rows: Vec::new(), lines: vec![heading], printed: 0 }
    }

    /// Adds a row, and prints it unless the output is one object.
    pub(super) fn add(&mut self, told: &str, json: Value) -> Result<(), PrintError> {
        self.lines.push(told.to_owned());
        if !self.options.json {
            self.lines[self.printed..].iter().try_for_each(|line| print(line))?;
            self.printed = self.lines.len();
        }
        self.rows.push(json);
        Ok(())
    }

    /// Writes the requested files into a folder, and prints the table or the JSON.
    pub(super) fn finish(self) -> Result<(), ProgramError> {
        let object = self.object().to_string();
        if let Some(folder) = &self.options.out {
            output_dir::write(folder, "table.md", &format!("{}\n", self.lines.join("\n")))?;
            output_dir::write(folder, "results.json", &format!("{object}\n"))?;
        }
        if self.options.json {
            print(&object)?;
        }
        Ok(())
    }

    /// Returns arguments and results as one object.
    fn object(&self) -> Value {
        let SimulateOptions { training, .. } = self.options;
        let is_trained = training.train.is_some();
        let mut arguments = self.options.job.arguments();
        if is_trained {
            arguments["model"] = Value::Null;
        }
        arguments["algorithm"] = json!(self.options.algorithms());
        arguments["train"] = json!(training.train);
        arguments["partition"] = json!(training.partition);
        arguments["lr"] = json!(training.lr);
        arguments["schedule"] = json!(training.schedule);
        arguments["sweep"] = json!(self.options.sweep);
        arguments["warmup"] = json!(self.options.warmup);
        arguments["steps"] = json!(self.options.steps.or((!is_trained).then_some(STEPS)));
        json!({ "arguments": arguments, "results": self.rows })
    }
}

impl SimulatedJobOptions {
    /// Returns the arguments as an object.
    pub(crate) fn arguments(&self) -> Value {
        // A topology file has these itself.
        let is_made = self.topology.is_none();
        json!({
            "ranks": is_made.then_some(self.ranks),
            "hosts": is_made.then_some(self.hosts),
            "shape": is_made.then(|| self.shape.to_string()),
            "topology": self.topology,
            "flat": self.flat,
            "from_start": self.from_start,
            "all_steps": self.all_steps,
            "link": self.link.to_string(),
            "intra": self.intra.to_string(),
            "model": self.model,
            "compute_ms": self.compute,
            "straggler": self.pace.straggler,
            "compute_jitter": self.pace.compute_jitter.map(|jitter| jitter.to_string()),
            "compute_drift": self.pace.compute_drift.map(|drift| drift.to_string()),
            "optimizer": self.optimizer,
            "overlap": format!("{:?}", self.overlap).to_lowercase(),
            "rates": self.rates,
            "seed": self.seed,
        })
    }
}

/// Returns the description of a simulated model with this name.
pub(super) fn about(name: &str, model: &LayerModel) -> String {
    format!("{name}, {} parameters, in virtual time", counted(model.elements()))
}

/// Formats a number of parameters for readers.
fn counted(parameters: usize) -> String {
    if parameters < 100_000 {
        return parameters.to_string();
    }
    format!("{:.1} million", parameters as f64 / 1e6)
}
