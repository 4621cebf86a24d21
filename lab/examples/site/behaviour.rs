//! Pictures of an algorithm's behaviour in the recorded suite.

use hexagram_lab::picture::{Axes, Panel, Picture, PictureContent};
use hexagram_lab::suite::{MatrixCell, Results, TrainingState};

/// Algorithm that the others are compared to.
pub(super) const REFERENCE: &str = "gradient-allreduce";

/// Returns the loss by steps and by bytes sent, as names of measures with pictures in SVG.
pub(super) fn pictures(results: &Results, name: &str) -> [(&'static str, String); 2] {
    let y = "loss of the mean replica";
    let steps = Axes { x: "steps", y, log_y: true, ..Axes::default() };
    let bytes = Axes { x: "KiB sent by a rank", y, log_x: true, log_y: true };
    [
        ("steps", picture(results, name, steps, |state| state.step as f64)),
        ("bytes", picture(results, name, bytes, |state| state.bytes / 1024.0)),
    ]
}

fn picture(results: &Results, name: &str, axes: Axes<'_>, x: fn(&TrainingState) -> f64) -> String {
    let line = |key: &str, name: &str| PictureContent {
        name: key.to_owned(),
        points: means(results, name, x),
        reference: name == REFERENCE,
    };
    let mut drawn = vec![line("all-reduce", REFERENCE)];
    if name != REFERENCE {
        drawn.insert(0, line("this algorithm", name));
    }
    let panel = Panel { title: "digits, 25 ranks, Dirichlet(0.1)".to_owned(), axes: Some(axes), drawn };
    Picture { title: name, columns: 1, axes, panels: vec![panel] }.svg()
}

/// Returns the means over the seeds, where the record keeps each state.
fn means(results: &Results, name: &str, x: fn(&TrainingState) -> f64) -> Vec<(f64, f64)> {
    let place = MatrixCell {
        algorithm: name.to_owned(),
        task: "digits".to_owned(),
        partition: "dirichlet(0.1)".to_owned(),
        ranks: 25,
    };
    let runs = results.at(&place);
    let states = runs.iter().map(|run| run.curve.len()).max().unwrap_or(0);
    let mean = |at: usize, of: &dyn Fn(&TrainingState) -> f64| {
        let found: Vec<f64> = runs.iter().filter_map(|run| run.curve.get(at)).map(of).collect();
        found.iter().sum::<f64>() / found.len() as f64
    };
    (0..states).map(|at| (mean(at, &x), mean(at, &|state| state.loss))).collect()
}
