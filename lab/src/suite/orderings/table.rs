//! Table of all orderings on the suite's page.

use super::super::page::figure;
use super::{Claim, orderings};
use crate::suite::{OrderingVerdict, Results};
use std::fmt::Write;

const HEAD: &str = "\
| | ordering | from | where | of | better | worse | ratio | claimed | result |
|---|---|---|---|---|---|---|---|---|---|
";

/// Writes the section of the orderings: how many hold, the test, all of them, and the reasons of those that do not.
/// It is empty if none was run, as in the suite of your own algorithm.
pub(crate) fn table(results: &Results) -> String {
    let verdicts: Vec<(&Claim, OrderingVerdict)> =
        orderings().map(|claim| (claim, claim.judge(results))).collect();
    if verdicts.iter().all(|(_, verdict)| *verdict == OrderingVerdict::Missing) {
        return String::new();
    }
    let holding = verdicts.iter().filter(|(_, verdict)| *verdict == OrderingVerdict::Holds).count();
    let mut text = format!(
        "### Published orderings\n\n\
         {holding} of {} hold. Both sides are run with the same seeds, and compared seed by seed: *ratio* is the \
         geometric mean of better / worse with its 95 % interval by the paired t-test of logarithms, and an ordering \
         holds if the interval is below the *claimed* factor. If a side never reaches the target, diverges or is 0, the \
         ratio is undefined, and the ordering holds if it does for nine of ten seeds (the sign test: by chance once in 93 \
         times). On the digits with 4 and 8 ranks, all-reduce sends 2 and 4 times the bytes of a ring, because it sends \
         such a small model whole to all ranks.\n\n{HEAD}",
        verdicts.len()
    );
    for (number, (claim, verdict)) in (1..).zip(&verdicts) {
        text += &row(number, claim, *verdict, results);
    }
    let otherwise = |claim: &Claim, verdict| match claim.explanation {
        "" => None,
        explanation => Some(format!("{verdict}: {explanation}")),
    };
    text += &listed("Orderings that do not hold", &verdicts, otherwise);
    text +=
        &listed("Changed after their first results were known", &verdicts, |claim, _| match claim.changed {
            "" => None,
            changed => Some(changed.to_owned()),
        });
    text
}

/// Writes the explanations of some orderings, by number.
fn listed(
    title: &str,
    verdicts: &[(&Claim, OrderingVerdict)],
    said: impl Fn(&Claim, OrderingVerdict) -> Option<String>,
) -> String {
    let lines = (1..).zip(verdicts).filter_map(|(number, (claim, verdict))| {
        said(claim, *verdict).map(|said| format!("- **{number}** {said}\n"))
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n{title}:\n\n{lines}") }
}

/// Writes the row of an ordering.
fn row(number: usize, claim: &Claim, verdict: OrderingVerdict, results: &Results) -> String {
    let [better, worse] =
        claim.numbers(results).map(|number| number.map_or_else(String::new, |found| figure(found.mean)));
    let ratio = claim.paired(results).ratio();
    let ratio = ratio.map_or_else(String::new, |[mean, low, high]| {
        format!("{} ({} to {})", figure(mean), figure(low), figure(high))
    });
    let Claim { source, passage, text, task, partition, ranks, measure, factor, .. } = claim;
    let mut line = format!("| {number} | {text} | {source}, {passage} | {task}, {partition}, {ranks} ranks ");
    let _ = writeln!(
        line,
        "| {measure} | `{}`: {better} | `{}`: {worse} | {ratio} | < {factor} | {verdict} |",
        claim.better, claim.worse
    );
    line
}
