//! Pictures of `simulate --out`: the time of a step, throughput, bytes and exposed communication over the swept
//! option.

use super::report::ReportRow;
use super::sweep::SweptProperty;
use crate::picture::{Axes, Panel, Picture, PictureContent};

/// Figure of a row that is drawn.
struct Figure {
    file: &'static str,
    title: &'static str,
    y: &'static str,
    log_y: bool,
    of: fn(&ReportRow) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        file: "step.svg",
        title: "Time of a step",
        y: "ms",
        log_y: true,
        of: |row| row.figures.step_s * 1e3,
    },
    Figure {
        file: "throughput.svg",
        title: "Throughput of all ranks",
        y: "batches a second",
        log_y: true,
        of: |row| row.ranks as f64 / row.figures.step_s,
    },
    Figure {
        file: "bytes.svg",
        title: "Bytes that a rank sends to other hosts in a step",
        y: "MB",
        log_y: true,
        of: |row| row.figures.network_bytes / 1e6,
    },
    Figure {
        file: "communication.svg",
        title: "Exposed communication",
        y: "% of a step",
        log_y: false,
        of: |row| 100.0 * row.communication(),
    },
];

/// Returns the pictures of rows, each with its swept value, as SVG by file name. `model` is the model of the rows.
pub(super) fn pictures(
    model: &str,
    swept: SweptProperty,
    rows: &[(f64, ReportRow)],
) -> Vec<(&'static str, String)> {
    let log_x = rows.iter().all(|(x, _)| *x > 0.0);
    let picture = |figure: &Figure| {
        let title = format!("{}: {}", figure.title, model);
        let panels = vec![Panel { title: String::new(), axes: None, drawn: lines(rows, figure.of) }];
        let axes = Axes { x: swept.axis(), y: figure.y, log_x, log_y: figure.log_y };
        let picture = Picture { title: &title, columns: 1, axes, panels };
        (figure.file, picture.svg())
    };
    FIGURES.iter().map(picture).collect()
}

/// Returns a line for each algorithm, in the order of the rows.
fn lines(rows: &[(f64, ReportRow)], of: fn(&ReportRow) -> f64) -> Vec<PictureContent> {
    let mut lines: Vec<PictureContent> = Vec::new();
    for (x, row) in rows {
        let name = row.simulated.clone();
        let at = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            lines.push(PictureContent::line(name, Vec::new()));
            lines.len() - 1
        });
        lines[at].points.push((*x, of(row)));
    }
    lines
}
