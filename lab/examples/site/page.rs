//! The page of an algorithm.

use super::{ROOT, header};
use hexagram::algorithms::{AnyAlgorithm, Optimizers, Registry};
use hexagram_lab::program::console::{markdown_heading, markdown_row};
use hexagram_lab::run::RunError;
use std::fs;
use std::path::Path;

/// Returns the page of an algorithm.
///
/// # Errors
/// docs/algorithms.md or the source files lack it.
pub(super) fn of(algorithm: &AnyAlgorithm) -> Result<String, RunError> {
    let name = algorithm.name();
    let header = header::of(name)?;
    let module = &header.module;
    Ok(format!(
        "# `{name}`\n\n{}\n\n```sh\ncargo run --release --example train -- --algorithm {name}\n```\n\n\
         ## Behaviour\n\n\
         Digits with 25 ranks and [Dirichlet(0.1) data](../which-algorithm.md#what-is-run): mean of the seeds, and \
         `gradient-allreduce` for comparison.\n\n\
         ![Loss of {name} by step]({name}-steps.svg) ![Loss of {name} by bytes sent]({name}-bytes.svg)\n\n\
         ## Rule\n\n{}\n\n## Options\n\n{}\n\n\
         ## In Rust\n\nThe module [`hexagram::algorithms::{module}`](../../api/hexagram_algorithms/{module}/index.html).\n",
        facts(algorithm)?,
        header.text,
        options(name)?,
    ))
}

/// Returns the table of an algorithm's properties.
fn facts(algorithm: &AnyAlgorithm) -> Result<String, RunError> {
    let name = algorithm.name();
    let page = fs::read_to_string(Path::new(ROOT).join("docs/algorithms.md"))?;
    let [rule, pays] = row(&page, "## The update rules", name)?;
    let [bytes, _] = row(&page, "## What they send", name)?;
    let optimizer = match algorithm.optimizers() {
        Optimizers::Any => "any".to_owned(),
        Optimizers::Sgd(_) => "plain SGD".to_owned(),
        Optimizers::BareSgd(_) => "plain SGD without weight decay".to_owned(),
        Optimizers::Named { optimizer, .. } => format!("`{optimizer}`"),
    };
    let replicas = if algorithm.keeps_replicas_identical() { "bit-identical" } else { "may differ" };
    let trigram = algorithm.trigram();
    let symbols = "[symbols](../algorithms.md#what-they-send-and-how-they-are-tested)";
    let rows = [
        ("rule", rule),
        ("use it for", pays),
        ("bytes of a rank per step", format!("{bytes} ({symbols})")),
        ("optimizer", optimizer),
        ("replicas after a step", replicas.to_owned()),
        ("source", algorithm.source().to_owned()),
    ];
    let rows = rows.map(|(what, value)| markdown_row(&[what.to_owned(), value]));
    let heading = markdown_heading(&["trigram", &format!("{} {trigram}", trigram.symbol())]);
    Ok(format!("{heading}\n{}", rows.join("\n")))
}

/// Returns the two cells after the name of an algorithm in a section of docs/algorithms.md.
fn row(page: &str, section: &str, name: &str) -> Result<[String; 2], RunError> {
    let named = format!("`{name}`");
    let lines = page.lines().skip_while(|line| !line.starts_with(section)).skip(1);
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, names, first, second, ..] = cells[..]
            && names.split([',', ' ']).any(|one| one == named)
        {
            return Ok([first.to_owned(), second.to_owned()]);
        }
    }
    Err(format!("docs/algorithms.md has no row for {name} in \"{section}\"").into())
}

/// Returns the table of an algorithm's options.
fn options(name: &str) -> Result<String, RunError> {
    let fields = Registry::built_in().help(name)?.fields;
    if fields.is_empty() {
        return Ok("It has no options.".to_owned());
    }
    let cells = |text: &str| text.replace('|', "\\|");
    let row = |(name, value, range, about): (&str, &str, &str, &str)| {
        markdown_row(&[format!("`{name}`"), format!("`{value}`"), cells(range), cells(about)])
    };
    let rows = fields.iter().map(|field| row((field.name, &field.value, &field.range, field.about)));
    let heading = markdown_heading(&["option", "default", "values", "meaning"]);
    Ok(format!("{heading}\n{}", rows.collect::<Vec<_>>().join("\n")))
}
