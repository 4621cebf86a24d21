//! Algorithms among which is chosen, each with the steps that show what it takes: whole periods.

use crate::program::names::ALL;
use crate::program::simulate::job::Steps;
use crate::program::{Chosen, stepping};
use hexagram::algorithms::{AnyAlgorithm, Registry};
use hexagram::logical::spelling::Argument;
use hexagram::{Error, Result};

/// Algorithm that all are compared to.
pub(super) const REFERENCE: &str = "gradient-allreduce";

/// Algorithms that are compared unless others are named: of each kind those that the suite finds to learn well, or that
/// are known best.
pub(super) const USUAL: &str = "bytegrad,loco,qadam,topk-ef,zero-one-adam,d-psgd,low-precision-decentralized,choco-sgd,\
powersgd,qg-dsgdm,local-sgd,slowmo,diloco,streaming-diloco,sparse-loco,noloco,async-model-average";

/// Option with the number of steps from one communication to the next, and the longest that `zero-one-adam` comes to.
const PERIODS: [&str; 2] = ["period", "local_largest"];

/// Algorithms whose servers and votes are of numbers on the host, for real also where buffers have sizes only, so that a
/// large model takes minutes. They are among all only where they are named.
const ON_HOST: [&str; 3] = ["signsgd-vote", "ssp", "compressed-ssp"];

/// Steps of an asynchronous algorithm, whose messages are under way for several.
const ASYNCHRONOUS: Steps = Steps { warmup: 4, counted: 8 };

/// Algorithm that may pay.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) chosen: Chosen,
    pub(super) steps: Steps,
}

impl Candidate {
    /// Returns those of a list; of all, and of the usual ones, those that an optimizer fits.
    ///
    /// # Errors
    /// One line that says what is wrong with the first wrong one, or that nothing is left.
    pub(super) fn all(registry: &Registry, list: &str, optimizer: Option<&str>) -> Result<Vec<Self>> {
        let mut chosen = Chosen::listed(registry, list)?;
        if [ALL, USUAL].contains(&list) {
            let optimizer = optimizer.map(|text| stepping::named(text, None)).transpose()?;
            let fits = |one: &Chosen| {
                optimizer.as_ref().is_none_or(|optimizer| one.algorithm.optimizers().fit(&**optimizer))
            };
            chosen.retain(|one| fits(one) && !ON_HOST.contains(&one.algorithm.name()));
        }
        chosen.retain(|one| one.spelling != REFERENCE);
        if chosen.is_empty() {
            let what = format!("there is nothing to compare to {REFERENCE}");
            return Err(Error::usage(what, "name more algorithms, or leave --algorithm out"));
        }
        Ok(chosen.into_iter().map(Self::of).collect())
    }

    /// Returns the algorithm that the others are compared to.
    pub(super) fn reference(registry: &Registry) -> Result<Self> {
        Ok(Self::of(Chosen::named(registry, REFERENCE)?))
    }

    fn of(chosen: Chosen) -> Self {
        Candidate { steps: steps(&chosen.algorithm), chosen }
    }
}

/// Returns the steps that show what an algorithm takes: whole periods, after those with which it begins.
fn steps(algorithm: &AnyAlgorithm) -> Steps {
    if !algorithm.trigram().synchronous {
        return ASYNCHRONOUS;
    }
    let spelling = algorithm.spelling();
    let period = |argument: &Argument| {
        let is_period = argument.field().is_some_and(|field| PERIODS.contains(&field));
        is_period.then(|| argument.value().to_string().parse().ok()).flatten()
    };
    let period: u32 = spelling.arguments().iter().find_map(period).unwrap_or(1);
    let warmup = if algorithm.name() == "zero-one-adam" { 8 } else { 2 };
    Steps { warmup, counted: period }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(text: &str) -> Candidate {
        let registry = Registry::built_in();
        Candidate::of(Chosen::named(&registry, text).unwrap())
    }

    /// Steps without a mean would make an algorithm look faster than it is, or slower.
    #[test]
    fn whole_periods_are_counted() {
        for (text, counted) in [
            ("bytegrad", 1),
            ("diloco", 16),
            ("gossip-pga", 6),
            ("local-sgd(period=1)", 1),
            ("local-sgd(period=5)", 5),
            ("zero-one-adam", 4),
            ("ssp", 8),
        ] {
            assert_eq!(candidate(text).steps.counted, counted, "{text}");
        }
    }

    #[test]
    fn an_optimizer_leaves_out_what_it_does_not_fit() {
        let registry = Registry::built_in();
        let names = |list: &str, optimizer| -> Vec<String> {
            let all = Candidate::all(&registry, list, optimizer).unwrap();
            all.into_iter().map(|one| one.chosen.spelling).collect()
        };
        assert_eq!(names(ALL, None).len(), registry.all().len() - 1 - ON_HOST.len());
        let with_adam = names(ALL, Some("adam"));
        assert_eq!(names("powersgd,demo", None).len(), 2);
        assert_eq!(names(USUAL, None).len(), USUAL.split(',').count());
        assert!(with_adam.contains(&"bytegrad".to_owned()) && !with_adam.contains(&"qadam".to_owned()));
        let only = Candidate::all(&registry, REFERENCE, None).unwrap_err().to_string();
        assert!(only.contains("nothing to compare"), "{only}");
    }
}
