//! Seeds, and that flaws are found.

use super::*;
use hexagram::algorithms::Registry;

/// Seeds that are tried every time.
const SEEDS: u64 = 100;

/// Training that has found a defect, whatever its seed draws by now.
struct Found {
    algorithm: &'static str,
    ranks: usize,
    hosts: usize,
    seed: u64,
    faults: &'static [&'static str],
}

const FOUND: [Found; 3] = [
    // A rank was cut off from rank 0, which relays verdicts. It blamed a neighbour that had ended after the death of
    // a third rank.
    Found {
        algorithm: "relaysgd",
        ranks: 6,
        hosts: 3,
        seed: 19,
        faults: &["9.493518s cut 0 <-> 2", "10.013267s rank 0 dies"],
    },
    // Rank 0, which had been stopped as ranks joined, took one that gave up for dead.
    Found {
        algorithm: "choco-sgd",
        ranks: 4,
        hosts: 4,
        seed: 7160,
        faults: &[
            "453us rank 3 stops",
            "1.214ms rank 0 stops",
            "7.812538s host 1 dies",
            "8.377519s rank 0 resumes",
        ],
    },
    // A rank was stopped while the others joined and failed. Its error asked whether rank 0 had started.
    Found {
        algorithm: "signsgd-vote",
        ranks: 6,
        hosts: 3,
        seed: 903_032,
        faults: &["26us rank 4 stops", "749.789ms rank 2 dies", "3.990001s rank 4 resumes"],
    },
];

impl Found {
    fn stage(&self) -> FaultStage {
        FaultStage::new(vec![ChosenAlgorithm::named(&Registry::built_in(), self.algorithm).unwrap()]).unwrap()
    }

    fn plan(&self) -> FaultPlan {
        let Found { ranks, hosts, seed, faults, .. } = *self;
        let faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
        FaultPlan { seed, algorithm: 0, ranks, hosts, is_hierarchical: false, faults }
    }
}

fn stage() -> FaultStage {
    let all = ChosenAlgorithm::all(&Registry::built_in(), &[]).unwrap();
    FaultStage::new(all.into_iter().filter(|chosen| chosen.algorithm.trigram().synchronous).collect())
        .unwrap()
}

/// Returns the first seed that ends with a defect, and the defect.
fn first_wrong(seeds: impl Iterator<Item = u64>, flaw: Option<Flaw>) -> Option<(u64, String)> {
    let stage = stage();
    let mut wrong = seeds.map(|seed| {
        let plan = FaultPlan::drawn(seed, &stage);
        let found = attempt(&stage, &plan, flaw, &mut FaultCounts::default()).unwrap();
        (
            seed,
            format!(
                "{}{}",
                if found.is_empty() { String::new() } else { plan.describe(&stage) },
                found.concat()
            ),
        )
    });
    wrong.find(|(_, told)| !told.is_empty())
}

#[test]
fn no_seed_hangs_blames_the_wrong_rank_or_leaves_replicas_apart() {
    assert_eq!(first_wrong(0..SEEDS, None), None);
}

#[test]
fn what_has_found_a_defect_finds_none_any_more() {
    for found in FOUND {
        let stage = found.stage();
        let plan = found.plan();
        let found = attempt(&stage, &plan, None, &mut FaultCounts::default()).unwrap();
        assert!(found.is_empty(), "{}{found:?}", plan.describe(&stage));
    }
}

#[test]
fn a_seed_is_replayed_with_its_algorithm_named_whatever_others_there_are() {
    let stage = stage();
    for seed in 0..SEEDS {
        let plan = FaultPlan::drawn(seed, &stage);
        let named = stage.algorithms[plan.algorithm].clone();
        let again = plan.again(&stage);
        assert!(
            again.ends_with(&format!("--faults 1 --seed {seed} --algorithm '{}'", named.spelling)),
            "{again}"
        );
        let alone = FaultStage::new(synchronous(&Registry::built_in(), &named.spelling).unwrap()).unwrap();
        assert_eq!(FaultPlan::drawn(seed, &alone).describe(&alone), plan.describe(&stage));
    }
}

#[test]
fn a_message_that_is_dropped_is_found() {
    let found = first_wrong(0..10, Some(Flaw::DropMessage(60)));
    assert!(found.is_some());
}

#[test]
fn a_heartbeat_that_is_skipped_is_found() {
    let (seed, told) = first_wrong(0..SEEDS, Some(Flaw::SkipHeartbeats { every: 4 })).unwrap();
    assert!(
        told.contains("although nothing was wrong") || told.contains("names a healthy rank"),
        "{seed}: {told}"
    );
}

#[test]
fn a_seed_is_played_alike_every_time() {
    let stage = stage();
    let plan = FaultPlan::drawn(7, &stage);
    let log = || FaultScene { stage: &stage, plan: &plan, flaw: None, is_logged: true }.play().unwrap().log;
    let first = log();
    assert!(first.len() > 100);
    assert_eq!(first, log());
}

#[test]
fn a_rank_that_comes_when_rank_0_has_failed_is_told_so() {
    let [.., late] = FOUND;
    let stage = late.stage();
    let plan = late.plan();
    let play = FaultScene { stage: &stage, plan: &plan, flaw: None, is_logged: false }.play().unwrap();
    let error = play.ends[4].as_ref().unwrap().result.as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 0 had started, and has ended"), "{error}");
}
