//! Output of `advise`: a table with a few sentences below it, or one JSON object.

use super::AdviseOptions;
use super::advice::{Advice, Advised};
use super::candidate::REFERENCE;
use super::verdict::points;
use crate::program::console::{bytes, markdown_heading, markdown_row, percent};
use crate::program::simulate::job::ClusterPoint;
use crate::program::simulate::report::ReportRow;
use crate::suite::MeanDifference;
use hexagram::physical::sim::Shape;
use serde_json::{Value, json};

const HEADING: [&str; 10] = [
    "algorithm",
    "",
    "ms a step",
    "saves",
    "pays up to",
    "sent a rank and step",
    "of it to other hosts",
    "errors, equal data",
    "errors, skewed data",
    "advice",
];

/// Returns the table, followed by the recommendation.
pub(super) fn table(options: &AdviseOptions, advice: &Advice) -> String {
    let mut lines = vec![
        format!("{} on {}", options.job.model, cluster(options, &advice.point)),
        String::new(),
        markdown_heading(&HEADING),
    ];
    let told = |row: &ReportRow| match advice.others.iter().find(|one| one.row.algorithm == row.algorithm) {
        Some(one) => table_row(advice, one),
        None => reference(row),
    };
    lines.extend(advice.by_time().into_iter().map(told));
    lines.push(String::new());
    lines.extend(advice.verdict());
    lines.join("\n")
}

/// Returns the cluster and the model of the advice.
fn cluster(options: &AdviseOptions, point: &ClusterPoint) -> String {
    let ClusterPoint { ranks, hosts, link, .. } = point;
    let shape = options.job.shape;
    match &options.job.topology {
        Some(path) => format!(
            "{ranks} ranks of {hosts} hosts, as {} connects them; bandwidths are those of --link, which is {link}",
            path.display()
        ),
        None if shape == Shape::Flat => format!("{ranks} ranks of {hosts} hosts, {link} between them"),
        None => format!("{ranks} ranks of {hosts} hosts, {link} of each, {shape}"),
    }
}

fn reference(row: &ReportRow) -> String {
    let none = String::new;
    markdown_row(&[
        format!("`{REFERENCE}`"),
        "☰".to_owned(),
        format!("{:.2}", row.figures.step_s * 1e3),
        none(),
        none(),
        bytes(row.figures.bytes as u64),
        bytes(row.figures.network_bytes as u64),
        none(),
        none(),
        none(),
    ])
}

fn table_row(advice: &Advice, one: &Advised) -> String {
    let row = &one.row;
    let errors = |side: fn(&crate::suite::ErrorsAbove) -> MeanDifference| {
        one.errors.as_ref().map_or_else(String::new, |errors| points(side(errors)))
    };
    markdown_row(&[
        format!("`{}`", one.name()),
        one.trigram().symbol().to_string(),
        format!("{:.2}", row.figures.step_s * 1e3),
        percent(one.saved),
        one.pays_up_to.map_or_else(String::new, |border| border.to_string()),
        bytes(row.figures.bytes as u64),
        bytes(row.figures.network_bytes as u64),
        errors(|errors| errors.like),
        errors(|errors| errors.skewed),
        advice.standing(one).to_string(),
    ])
}

/// Returns all of it as one object.
pub(super) fn object(options: &AdviseOptions, advice: &Advice) -> Value {
    let results: Vec<Value> = advice.others.iter().map(|one| result(advice, one)).collect();
    let mut arguments = options.job.arguments();
    arguments["algorithm"] = json!(options.algorithm);
    arguments["measure"] = json!(options.measure);
    let all = |count| if count == usize::MAX { json!("all") } else { json!(count) };
    arguments["check"] = options.check.map_or(Value::Null, all);
    json!({
        "arguments": arguments,
        "ranks": advice.point.ranks,
        "hosts": advice.point.hosts,
        "reference": advice.reference.json(),
        "results": results,
        "compression_pays": advice.compression_pays(),
        "verdict": advice.verdict(),
    })
}

fn result(advice: &Advice, one: &Advised) -> Value {
    let side = |difference: MeanDifference| {
        let MeanDifference { mean, half } = difference;
        // JSON has no infinity: null is a run that diverged.
        json!({ "above_points": mean.is_finite().then_some(mean), "half_points": half.is_finite().then_some(half) })
    };
    let mut object = one.row.json();
    object["saved_fraction"] = json!(one.saved);
    object["advice"] = json!(advice.standing(one).to_string());
    object["pays_up_to_bps"] = json!(one.pays_up_to.map(|border| border.pays));
    object["stops_paying_at_bps"] = json!(one.pays_up_to.and_then(|border| border.next));
    object["errors"] =
        json!(one.errors.map(|errors| json!({ "like": side(errors.like), "skewed": side(errors.skewed) })));
    object
}
