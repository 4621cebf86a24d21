//! Pictures of the suite's page: one panel for each trigram, with all-reduce in grey in all of them.

use super::{Column, RANKS, REFERENCE, ResultsPage, SKEWED, TRIGRAMS};
use crate::picture::{Axes, Panel, Picture, PictureContent};
use crate::suite::{ResultMeasure, SuiteRecord};

/// Points of an algorithm, made of its runs.
type Points = fn(&[&SuiteRecord]) -> Vec<(f64, f64)>;

impl ResultsPage<'_> {
    /// Returns the picture of the consensus distance on the digits over the steps.
    pub(super) fn consensus(&self) -> String {
        let title =
            "Digits, 25 ranks, Dirichlet(0.1): consensus distance of the replicas by step, mean of the seeds";
        let panels = self.panels(mean_consensus, false);
        let axes = Axes { x: "steps", y: "consensus distance", log_y: true, ..Axes::default() };
        Picture { title, columns: 2, axes, panels }.svg()
    }

    /// Returns the picture of errors on the digits over bytes.
    pub(super) fn bytes(&self) -> String {
        let title = "Digits, 25 ranks, Dirichlet(0.1): errors after 300 steps against KiB sent by a rank, mean of the seeds";
        let panels = self.panels(cost, true);
        let axes = Axes { x: "KiB sent", y: "errors, %", log_x: true, log_y: true };
        Picture { title, columns: 2, axes, panels }.svg()
    }

    /// Returns a panel for each trigram, with all-reduce for comparison if it can be drawn.
    fn panels(&self, points: Points, compared: bool) -> Vec<Panel<'static>> {
        let column = Column::new("digits", SKEWED, RANKS);
        let drawn = |name: &str| PictureContent {
            name: name.to_owned(),
            points: points(&self.0.at(&column.place(name))),
            reference: name == REFERENCE,
        };
        let panel = |trigram: &str| {
            let algorithms = self.algorithms().into_iter();
            let own = algorithms.filter(|(of, name)| of == trigram && name != REFERENCE);
            let mut own: Vec<PictureContent> = own.map(|(_, name)| drawn(&name)).collect();
            own.retain(|drawn| !compared || !drawn.points.is_empty());
            own.retain(|drawn| compared || drawn.points.iter().any(|(_, y)| *y > 0.0));
            if compared && !own.is_empty() {
                own.push(drawn(REFERENCE));
            }
            Panel { title: about(trigram), axes: None, drawn: own }
        };
        TRIGRAMS.map(panel).to_vec()
    }
}

/// Returns the mean consensus distance of runs, by step.
fn mean_consensus(runs: &[&SuiteRecord]) -> Vec<(f64, f64)> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mean = |at: usize| {
        let found = runs.iter().filter_map(|run| run.curve.get(at)).map(|state| state.consensus);
        found.sum::<f64>() / runs.len() as f64
    };
    // Replicas that differ only by the rounding of a message count as equal.
    let distance = |mean: f64| if mean < 1e-5 { 0.0 } else { mean };
    first.curve.iter().enumerate().map(|(at, state)| (state.step as f64, distance(mean(at)))).collect()
}

/// Returns KiB and errors in percent of runs, on average.
fn cost(runs: &[&SuiteRecord]) -> Vec<(f64, f64)> {
    if runs.is_empty() {
        return Vec::new();
    }
    let mean =
        |measure: ResultMeasure| runs.iter().map(|run| measure.of(run)).sum::<f64>() / runs.len() as f64;
    vec![(mean(ResultMeasure::Bytes) / 1024.0, 100.0 * mean(ResultMeasure::Errors))]
}

/// Returns the title of a trigram's panel.
fn about(trigram: &str) -> String {
    let words = match trigram {
        "☰" => "centralized, full precision",
        "☴" => "centralized, low precision",
        "☱" => "decentralized, full precision",
        "☵" => "decentralized, low precision",
        "☲" => "asynchronous, centralized",
        "☶" => "asynchronous, centralized, low precision",
        "☳" => "asynchronous, decentralized",
        _ => "asynchronous, decentralized, low precision",
    };
    format!("{trigram} {words}")
}
