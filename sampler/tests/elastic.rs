//! Properties for any number of ranks: the same global order, every sample exactly once, and a resume with a
//! different number of ranks in the middle of an epoch.
use hexagram_sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    ElasticOptions, ElasticSampler, KeyedPermutation, Sampler, Tail,
};
use std::collections::HashMap;

const LENGTHS: [usize; 6] = [1, 8, 9, 50, 64, 101];
const GLOBAL_BATCHES: [usize; 4] = [8, 9, 13, 64];
const TAILS: [Tail; 3] = [Tail::Drop, Tail::Pad, Tail::Exact];

/// A sampler for each of this many ranks.
type Ranks = Vec<Box<dyn Sampler<Item = Vec<usize>>>>;

fn elastic(options: ElasticOptions, replicas: usize) -> Ranks {
    let of = |rank| ElasticSampler::new(ElasticOptions { rank, replicas, ..options }).unwrap();
    (0..replicas).map(|rank| Box::new(of(rank)) as _).collect()
}

fn every_elastic() -> impl Iterator<Item = ElasticOptions> {
    let lengths = LENGTHS.into_iter().flat_map(|len| GLOBAL_BATCHES.map(|global_batch| (len, global_batch)));
    let all = lengths.flat_map(|(len, global_batch)| {
        TAILS.into_iter().flat_map(move |tail| {
            [true, false].map(|shuffle| ElasticOptions {
                len,
                global_batch,
                tail,
                shuffle,
                seed: 3,
                ..Default::default()
            })
        })
    });
    all.filter(|options| options.tail != Tail::Drop || options.len >= options.global_batch)
}

fn cost_balanced(len: usize, replicas: usize) -> Ranks {
    let costs = Complexities::new((0..len).map(|sample| (sample * sample % 37) as f64).collect()).unwrap();
    let of = |rank| {
        let speeds = (0..replicas).map(|rank| 1.0 + rank as f64 / 2.0).collect();
        let tail = Tail::Exact;
        let options =
            CostBalancedOptions { replicas, rank, global_batch: 9, speeds, tail, ..Default::default() };
        CostBalancedSampler::new(costs.clone(), options).unwrap()
    };
    (0..replicas).map(|rank| Box::new(of(rank)) as _).collect()
}

/// The samples of each step, rank after rank.
fn steps(ranks: &Ranks, position: usize, most: usize) -> Vec<Vec<usize>> {
    let mut draws: Vec<_> = ranks.iter().map(|sampler| sampler.iter_from(position)).collect();
    let count = draws.iter().map(|draws| draws.len()).max().unwrap();
    (0..count.min(most))
        .map(|_| draws.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>().concat())
        .collect()
}

fn sorted(mut samples: Vec<usize>) -> Vec<usize> {
    samples.sort_unstable();
    samples
}

#[test]
fn the_global_order_is_the_same_for_any_number_of_ranks() {
    for options in every_elastic() {
        let alone = steps(&elastic(options, 1), 0, usize::MAX);
        for replicas in 2..=8 {
            assert_eq!(steps(&elastic(options, replicas), 0, usize::MAX), alone, "{replicas} {options:?}");
        }
    }
    let alone = steps(&cost_balanced(100, 1), 0, usize::MAX);
    for replicas in 2..=8 {
        let several = steps(&cost_balanced(100, replicas), 0, usize::MAX);
        assert!(several.into_iter().map(sorted).eq(alone.iter().cloned().map(sorted)), "{replicas}");
    }
}

#[test]
fn ranks_have_equally_many_batches_and_as_good_as_equally_many_samples() {
    for options in every_elastic() {
        for replicas in 1..=8 {
            let ranks = elastic(options, replicas);
            let batches: Vec<Vec<_>> = ranks.iter().map(|sampler| sampler.iter().collect()).collect();
            for (sampler, batches) in ranks.iter().zip(&batches) {
                assert_eq!(sampler.len(), batches.len());
                let missing = batches.len() + usize::from(options.tail == Tail::Exact) < ranks[0].len();
                assert!(!missing && batches.len() <= ranks[0].len(), "{replicas} {options:?}");
                let full = |batch: &Vec<usize>| {
                    batch.len() == options.global_batch / replicas
                        || batch.len() == options.global_batch.div_ceil(replicas)
                };
                let whole = batches.len() - usize::from(options.tail == Tail::Exact && !batches.is_empty());
                assert!(batches[..whole].iter().all(full) && batches.iter().all(|batch| !batch.is_empty()));
            }
        }
    }
}

#[test]
fn tails_drop_repeat_or_do_neither() {
    for options in every_elastic() {
        let ElasticOptions { len, global_batch, tail, .. } = options;
        let all = steps(&elastic(options, 3), 0, usize::MAX).concat();
        let count = match tail {
            Tail::Drop => len / global_batch * global_batch,
            Tail::Pad => len.next_multiple_of(global_batch),
            Tail::Exact => len,
        };
        assert_eq!(all.len(), count, "{options:?}");
        let again = all[len.min(count)..].iter().zip(all.iter().cycle());
        assert!(again.into_iter().all(|(again, first)| again == first), "{options:?}");
        let mut seen = sorted(all);
        seen.dedup();
        assert_eq!(seen.len(), count.min(len), "{options:?}");
    }
}

/// Stops some ranks after each number of steps, continues with others, and compares the samples of all.
fn every_sample_once(len: usize, make: impl Fn(usize) -> Ranks) {
    for (before, after) in (1..=8).flat_map(|before| [1, 2, 3, 5, 8].map(|after| (before, after))) {
        let old = make(before);
        let new = make(after);
        assert_eq!(old[0].fingerprint(), new[after - 1].fingerprint());
        let count = old.iter().map(|sampler| sampler.len()).max().unwrap();
        for done in 0..=count {
            let mut seen = steps(&old, 0, done).concat();
            seen.extend(steps(&new, done * old[0].stride(), usize::MAX).concat());
            assert!(
                sorted(seen).into_iter().eq(0..len),
                "{before} ranks, then {after}, after {done} steps of {len}"
            );
        }
    }
}

#[test]
fn every_sample_comes_once_also_when_the_number_of_ranks_changes() {
    for len in [1, 8, 50, 101] {
        let options = ElasticOptions {
            len,
            replicas: 1,
            global_batch: 11,
            tail: Tail::Exact,
            seed: 9,
            ..Default::default()
        };
        every_sample_once(len, |replicas| elastic(options, replicas));
        every_sample_once(len, |replicas| cost_balanced(len, replicas));
        every_sample_once(len, |replicas| {
            let of = |rank| {
                let options = DistributedOptions { len, rank, replicas, exact: true, ..Default::default() };
                hexagram_sampler::BatchSampler::new(DistributedSampler::new(options).unwrap(), 1, false)
                    .unwrap()
            };
            (0..replicas).map(|rank| Box::new(of(rank)) as _).collect()
        });
    }
}

#[test]
fn epochs_and_seeds_have_orders_of_their_own() {
    let options = ElasticOptions { len: 50, replicas: 1, global_batch: 50, ..Default::default() };
    let mut sampler = ElasticSampler::new(options).unwrap();
    let mut order = |epoch| {
        sampler.set_epoch(epoch);
        sampler.iter().next().unwrap()
    };
    let first = order(0);
    let second = order(1);
    assert_ne!(first, second);
    assert_eq!(first, order(0));
    let seeded = ElasticSampler::new(ElasticOptions { seed: 1, ..options }).unwrap();
    assert!(![first, second].contains(&seeded.iter().next().unwrap()), "seed and epoch are no sum");
    assert_ne!(seeded.fingerprint(), sampler.fingerprint());
}

#[test]
fn keyed_orders_are_permutations_of_every_length() {
    for len in (1..300).chain([1000, 4095, 4096, 4097]) {
        let order = KeyedPermutation::new(len, 5, 6);
        assert!(sorted((0..len).map(|place| order.at(place)).collect()).into_iter().eq(0..len), "{len}");
        assert_eq!(order.at(len), order.at(0));
    }
    let long = KeyedPermutation::new(usize::MAX, 1, 2);
    assert!((0..100).all(|place| long.at(place) < usize::MAX));
}

/// Jobs of an earlier version continue in the same order. The numbers are from a different implementation, in Python.
#[test]
fn keyed_orders_stay_what_they_are() {
    let order = |len, seed, epoch| {
        let order = KeyedPermutation::new(len, seed, epoch);
        [0, 1, 2, 3].map(|place| order.at(place))
    };
    assert_eq!(order(10, 0, 0), [6, 0, 3, 7]);
    assert_eq!(order(1_000_000_000, 42, 7), [137_446_367, 785_845_789, 756_435_154, 577_449_159]);
}

/// All 120 orders of five samples are equally frequent, and so are all neighbours of thirty: chi-square, 5 sigma.
#[test]
fn keyed_orders_are_even() {
    const TRIALS: u64 = 60_000;
    let even = |counts: Vec<u64>, kinds: f64| {
        let expected = counts.iter().sum::<u64>() as f64 / kinds;
        let missing = (kinds - counts.len() as f64) * expected;
        let square = |count: &u64| (*count as f64 - expected).powi(2) / expected;
        let chi = counts.iter().map(square).sum::<f64>() + missing;
        assert!(chi < kinds + 5.0 * (2.0 * kinds).sqrt(), "{chi} of {kinds}");
    };
    let mut orders = HashMap::new();
    let mut neighbours = HashMap::new();
    for trial in 0..TRIALS {
        let five = KeyedPermutation::new(5, trial, 0);
        *orders.entry([0, 1, 2, 3, 4].map(|place| five.at(place))).or_default() += 1;
        let thirty = KeyedPermutation::new(30, 0, trial);
        *neighbours.entry([11, 12].map(|place| thirty.at(place))).or_default() += 1;
    }
    even(orders.into_values().collect(), 120.0);
    even(neighbours.into_values().collect(), 30.0 * 29.0);
}

/// A position with a different global batch lies within a step, which then counts as begun.
#[test]
fn a_position_within_a_step_goes_on_with_the_next() {
    for tail in [Tail::Drop, Tail::Pad, Tail::Exact] {
        let costs = Complexities::new((1..=10).map(f64::from).collect()).unwrap();
        let options = CostBalancedOptions { replicas: 1, global_batch: 4, tail, ..Default::default() };
        let sampler = CostBalancedSampler::new(costs, options).unwrap();
        let whole: Vec<_> = sampler.iter().collect();
        for position in (0..20).chain([usize::MAX]) {
            let rest: Vec<_> = sampler.iter_from(position).collect();
            assert_eq!(rest, whole[position.div_ceil(4).min(whole.len())..], "{tail:?} from {position}");
        }
    }
}
