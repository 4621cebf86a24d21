//! Post-local SGD at both extremes.

use crate::replicas::{Made, Run, pull};
use hexagram_algorithms::GradientAllReduce;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::cases;

fn made(start: u64, period: u64) -> impl Fn() -> Made + Sync {
    move || LocalSgd { period, ..LocalSgd::post(start) }.into()
}

#[test]
fn without_end_it_is_synchronous_and_without_start_local() {
    for (transport, ranks) in cases(&[1, 3]) {
        let run = Run { transport, ranks, steps: 13, ..Run::default() };
        assert_eq!(run.train(made(u64::MAX, 4), pull), run.train(|| GradientAllReduce.into(), pull));
        assert_eq!(
            run.train(made(0, 4), pull),
            run.train(|| LocalSgd { period: 4, ..LocalSgd::default() }.into(), pull)
        );
    }
}

#[test]
fn replicas_part_at_the_start_and_meet_after_each_period() {
    let replicas = |steps| Run { steps, ..Run::default() }.train(made(6, 4), pull);
    for (steps, together) in [(5, true), (6, true), (7, false), (8, true), (9, false), (12, true)] {
        let found = replicas(steps);
        assert_eq!(found.iter().all(|replica| *replica == found[0]), together, "after {steps} steps");
    }
}
