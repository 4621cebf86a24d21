//! The algorithms to compare, each with the number of steps to simulate: whole periods.

use crate::program::ChosenAlgorithm;
use crate::program::arguments::{ALL, optimizer_args, whole_periods};
use crate::program::simulate::job::StepCounts;
use hexagram::algorithms::{AnyAlgorithm, Registry, Trigram};
use hexagram::{Error, Result};

/// Algorithm that all are compared to.
pub(super) const REFERENCE: &str = "gradient-allreduce";

/// Algorithms that are compared by default: of each kind, those that learn well in the suite or that are best known.
pub(super) const USUAL: &str = "bytegrad,loco,qadam,topk-ef,zero-one-adam,d-psgd,low-precision-decentralized,choco-sgd,\
powersgd,qg-dsgdm,local-sgd,slowmo,diloco,streaming-diloco,sparse-loco,noloco,async-model-average";

/// Algorithms in which every rank asks servers on all others in every step, so that a large model takes minutes. `all` does not
/// include them; they are simulated only if named.
const OF_SERVERS: [&str; 2] = ["ssp", "compressed-ssp"];

/// Least number of counted steps of an algorithm that sends to different ranks in different steps, or whose messages
/// travel for several steps.
const SEVERAL: u32 = 8;

/// Algorithm that may pay.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) chosen: ChosenAlgorithm,
    pub(super) steps: StepCounts,
}

impl Candidate {
    /// Returns the algorithms of a list; of `all` and of the default list, only those that fit the optimizer.
    ///
    /// # Errors
    /// The first invalid option, or that no algorithm is left, in one line.
    pub(super) fn all(registry: &Registry, list: &str, optimizer: Option<&str>) -> Result<Vec<Self>> {
        let mut chosen = ChosenAlgorithm::listed(registry, list)?;
        if [ALL, USUAL].contains(&list) {
            let optimizer = optimizer.map(|text| optimizer_args::named(text, None)).transpose()?;
            let fits = |one: &ChosenAlgorithm| {
                optimizer.as_ref().is_none_or(|optimizer| one.algorithm.optimizers().fit(&**optimizer))
            };
            chosen.retain(|one| fits(one) && !OF_SERVERS.contains(&one.algorithm.name()));
        }
        chosen.retain(|one| one.spelling != REFERENCE);
        if chosen.is_empty() {
            let what = format!("no algorithm to compare to {REFERENCE}");
            return Err(Error::usage(what, "name more algorithms, or leave --algorithm out"));
        }
        Ok(chosen.into_iter().map(Self::of).collect())
    }

    /// Returns the algorithm that the others are compared to.
    pub(super) fn reference(registry: &Registry) -> Result<Self> {
        Ok(Self::of(ChosenAlgorithm::named(registry, REFERENCE)?))
    }

    fn of(chosen: ChosenAlgorithm) -> Self {
        Candidate { steps: steps(&chosen.algorithm), chosen }
    }
}

/// Returns the steps to simulate for an algorithm: whole periods, after its first ones.
fn steps(algorithm: &AnyAlgorithm) -> StepCounts {
    let Trigram { centralized, synchronous, .. } = algorithm.trigram();
    let warmup = match algorithm.without_warm_up() {
        // Even a warm-up that is as short as it may be takes some steps.
        Some(_) => 8,
        None if synchronous => 2,
        None => 4,
    };
    let least = if centralized && synchronous { 1 } else { SEVERAL };
    StepCounts { warmup, counted: whole_periods(algorithm, least) }
}

/// Returns a multiple of the counted steps that is at least `least`.
pub(super) fn at_least(least: u32, steps: StepCounts) -> StepCounts {
    let StepCounts { warmup, counted } = steps;
    StepCounts { warmup, counted: counted.saturating_mul(least.div_ceil(counted)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::logical::options_text::Argument;

    fn candidate(text: &str) -> Candidate {
        let registry = Registry::built_in();
        Candidate::of(ChosenAlgorithm::named(&registry, text).unwrap())
    }

    /// Steps without a mean would make an algorithm look faster than it is, or slower.
    #[test]
    fn whole_periods_are_counted() {
        for (text, counted) in [
            ("bytegrad", 1),
            ("diloco", 16),
            ("slowmo(period=6, base=local-sgd(period=4))", 12),
            ("d-psgd", 8),
            ("d-psgd(interval=3)", 9),
            ("low-precision-decentralized(interval=10)", 10),
            ("gossip-pga", 12),
            ("local-sgd(period=1)", 1),
            ("local-sgd(period=5)", 5),
            ("zero-one-adam", 4),
            ("ssp", 8),
        ] {
            assert_eq!(candidate(text).steps.counted, counted, "{text}");
        }
    }

    #[test]
    fn where_something_is_drawn_more_periods_are_counted() {
        for (text, counted) in [("bytegrad", 20), ("diloco", 32), ("local-sgd(period=25)", 25), ("ssp", 24)] {
            assert_eq!(at_least(20, candidate(text).steps).counted, counted, "{text}");
        }
    }

    /// An option that says how often is communicated, and a period that does not follow from it, would be a mean of too few.
    #[test]
    fn options_that_say_how_often_are_told_as_periods() {
        for algorithm in Registry::built_in().all() {
            let spelling = algorithm.spelling();
            let named = |argument: &Argument| {
                let is_period = argument.field().is_some_and(|field| ["period", "interval"].contains(&field));
                is_period.then(|| argument.value().to_string().parse::<u64>().ok()).flatten()
            };
            let told = spelling.arguments().iter().find_map(named).unwrap_or(1);
            assert!(algorithm.period().unwrap().is_multiple_of(told), "{algorithm}");
        }
    }

    #[test]
    fn an_optimizer_leaves_out_what_it_does_not_fit() {
        let registry = Registry::built_in();
        let names = |list: &str, optimizer| -> Vec<String> {
            let all = Candidate::all(&registry, list, optimizer).unwrap();
            all.into_iter().map(|one| one.chosen.spelling).collect()
        };
        assert_eq!(names(ALL, None).len(), registry.all().len() - 1 - OF_SERVERS.len());
        let with_adam = names(ALL, Some("adam"));
        assert_eq!(names("powersgd,demo", None).len(), 2);
        assert_eq!(names(USUAL, None).len(), USUAL.split(',').count());
        assert!(with_adam.contains(&"bytegrad".to_owned()) && !with_adam.contains(&"qadam".to_owned()));
        let only = Candidate::all(&registry, REFERENCE, None).unwrap_err().to_string();
        assert!(only.contains("no algorithm to compare"), "{only}");
    }
}
