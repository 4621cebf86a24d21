//! Verdicts on how the ranks of a training ended, given the faults before.
//!
//! - A rank that has not ended hangs, even one that is alone.
//! - An error of a healthy rank must have a cause, and must name a rank that a fault concerns: the culprit, or, after
//!   a deadline, the rank for which it waited. A rank that finds no rank 0 at the rendezvous, because rank 0 has
//!   failed before, names no rank.
//! - After each step, the replica is the same as without faults.

use super::plan::FaultPlan;
use super::scene::{Hashes, Play};
use hexagram::Error;
use hexagram::physical::sim::Ended;
use std::sync::Arc;

/// Returns a line for everything that is wrong.
pub(super) fn verdict(plan: &FaultPlan, play: &Play, reference: Arc<Vec<Hashes>>) -> Vec<String> {
    let mut found = Vec::new();
    for (rank, end) in play.ends.iter().enumerate() {
        match end {
            None => found.push(format!("rank {rank} hangs\n")),
            // Actions of a rank after its end have no effect.
            Some(end) if plan.end_of(rank).is_some_and(|dead| dead <= end.at) => {}
            Some(end) => {
                found.extend(blame(plan, rank, end).filter(|_| !is_left_alone(play, end)));
                found.extend(describe_divergence(rank, &play.replicas[rank], &reference[rank]));
            }
        }
    }
    found
}

/// Returns the defect in a rank's error, if any.
fn blame(plan: &FaultPlan, rank: usize, end: &Ended<()>) -> Option<String> {
    let Err(error) = &end.result else { return None };
    let at = end.at;
    if !plan.excuses_any(rank, at) {
        return Some(format!("rank {rank} failed at {at:?} although nothing was wrong: {error}\n"));
    }
    let is_right = match error {
        // If a rank gave up, its error names the rank for which it waited.
        Error::PeerFailed { culprit, cause, .. } if !cause.starts_with("gave up") => {
            plan.excuses(rank, culprit.rank, at)
        }
        other => named(&other.to_string()).iter().any(|culprit| plan.excuses(rank, *culprit, at)),
    };
    (!is_right).then(|| format!("rank {rank} names a healthy rank at {at:?}: {error}\n"))
}

/// Returns true if a rank came to the rendezvous after rank 0 had failed. It finds no rank there, whichever failed
/// first.
fn is_left_alone(play: &Play, end: &Ended<()>) -> bool {
    let is_unreached =
        matches!(&end.result, Err(Error::System { doing, .. }) if doing.starts_with("reach rank 0"));
    let leader = play.ends.first().and_then(Option::as_ref);
    is_unreached && leader.is_some_and(|leader| leader.result.is_err() && leader.at < end.at)
}

/// Returns the ranks that a text names, as `rank 3` or `ranks 1, 2`.
fn named(text: &str) -> Vec<usize> {
    let mut ranks = Vec::new();
    let mut is_list = false;
    for word in text.split([' ', ':', ';', '(', ')']).filter(|word| !word.is_empty()) {
        let number: Option<usize> = word.trim_end_matches(',').parse().ok();
        ranks.extend(number.filter(|_| is_list));
        is_list = matches!(word, "rank" | "ranks") || (is_list && number.is_some() && word.ends_with(','));
    }
    ranks
}

/// Returns the first step after which a replica differs from the expected one.
fn describe_divergence(rank: usize, found: &Hashes, expected: &Hashes) -> Option<String> {
    let step = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some(format!("the replica of rank {rank} is apart after step {}\n", step + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_in_what_an_error_says() {
        assert_eq!(named("ranks 3, 4 of 6 did not join; rank 0 waits"), [3, 4, 0]);
        assert_eq!(named("rank 12 (host a, pid 3) died: 4 bytes, rank 1's"), [12]);
    }
}
