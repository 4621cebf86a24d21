//! Properties for every data set and every number of ranks, and edge cases.

use hexagram_sampler::{
    Batching, Complexities, DistributedOptions, DistributedSampler, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler, SamplerError, SequentialSampler,
    ShardedOptions, ShardedSampler, Tail, WeightedOptions, WeightedRandomSampler,
};

const LENGTHS: [usize; 8] = [1, 2, 3, 7, 8, 16, 31, 100];
const REPLICAS: [usize; 6] = [1, 2, 3, 7, 8, 64];

/// The samples of each rank.
fn shares(options: DistributedOptions) -> Vec<Vec<usize>> {
    let share = |rank| DistributedSampler::new(DistributedOptions { rank, ..options }).unwrap().indices();
    (0..options.replicas).map(share).collect()
}

/// All ranks' samples, sorted.
fn union(shares: &[Vec<usize>]) -> Vec<usize> {
    let mut all = shares.concat();
    all.sort_unstable();
    all
}

fn every_combination() -> impl Iterator<Item = DistributedOptions> {
    let lengths = LENGTHS.into_iter().flat_map(|len| REPLICAS.map(|replicas| (len, replicas)));
    let all = lengths.flat_map(|(len, replicas)| {
        [(true, true), (true, false), (false, true), (false, false)].map(|(shuffle, drop_last)| {
            DistributedOptions { len, replicas, shuffle, drop_last, ..Default::default() }
        })
    });
    all.filter(|options| !options.drop_last || options.len >= options.replicas)
}

#[test]
fn all_ranks_have_equally_many() {
    for options in every_combination() {
        let shares = shares(options);
        assert!(shares.iter().all(|share| share.len() == shares[0].len()), "{options:?}");
    }
}

#[test]
fn padding_shows_every_sample_and_repeats_less_than_one_a_rank() {
    for options in every_combination().filter(|options| !options.drop_last) {
        let mut all = union(&shares(options));
        assert!(all.len() < options.len + options.replicas, "{options:?}");
        all.dedup();
        assert!(all.into_iter().eq(0..options.len), "{options:?}");
    }
}

#[test]
fn dropping_repeats_nothing_and_loses_less_than_one_a_rank() {
    for options in every_combination().filter(|options| options.drop_last) {
        let mut all = union(&shares(options));
        let seen = all.len();
        assert!(seen + options.replicas > options.len, "{options:?}");
        all.dedup();
        assert_eq!(all.len(), seen, "{options:?}");
    }
}

#[test]
fn epochs_and_seeds_differ_and_come_back() {
    let options = DistributedOptions { len: 100, replicas: 3, ..Default::default() };
    let mut sampler = DistributedSampler::new(options).unwrap();
    let first = sampler.indices();
    sampler.set_epoch(1);
    assert_ne!(sampler.indices(), first);
    let seeded = DistributedSampler::new(DistributedOptions { seed: 1, ..options }).unwrap();
    assert_eq!(sampler.indices(), seeded.indices(), "seed and epoch only count as their sum");
    sampler.set_epoch(0);
    assert_eq!(sampler.indices(), first);
}

#[test]
fn padding_longer_than_the_data_goes_round_and_round() {
    let options = DistributedOptions { len: 3, replicas: 8, shuffle: false, ..Default::default() };
    assert_eq!(shares(options).concat(), [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn extreme_seeds_and_epochs_wrap() {
    let options = DistributedOptions { len: 10, replicas: 1, seed: u64::MAX, epoch: 1, ..Default::default() };
    let zero = DistributedOptions { len: 10, replicas: 1, ..Default::default() };
    assert_eq!(shares(options), shares(zero));
}

#[test]
fn ranks_draw_nothing_where_pytorch_s_do() {
    let drawn = |options: DistributedOptions| DistributedSampler::new(options).unwrap().indices();
    let options = DistributedOptions { replicas: 4, rank: 1, ..Default::default() };
    for (len, drop_last) in [(0, false), (0, true), (3, true)] {
        assert_eq!(drawn(DistributedOptions { len, drop_last, ..options }), [0; 0], "{len} {drop_last}");
    }
    assert_eq!(SequentialSampler::new(0).unwrap().iter().count(), 0);
    let costs = Complexities::new(vec![1.0; 3]).unwrap();
    let balancing = LoadBalancingOptions { replicas: 4, drop_last: true, ..Default::default() };
    let sampler = LoadBalancingDistributedSampler::new(costs, balancing).unwrap();
    let batches = LoadBalancingBatchSampler::new(sampler.clone(), Batching::Fixed(2), false).unwrap();
    assert_eq!((sampler.iter().count(), batches.iter().count()), (0, 0));
}

#[test]
fn shares_of_a_weighted_order_are_that_order() {
    let weights = WeightedOptions { weights: vec![1.0, 2.0, 3.0], num_samples: 11, ..Default::default() };
    let order: Vec<usize> = WeightedRandomSampler::new(weights.clone()).unwrap().iter().collect();
    let share = |rank, tail| {
        let all = WeightedRandomSampler::new(weights.clone()).unwrap();
        ShardedSampler::new(all, ShardedOptions { replicas: 3, rank, tail }).unwrap()
    };
    for (tail, expected) in [
        (Tail::Drop, order[..9].to_vec()),
        (Tail::Pad, order.iter().chain(&order[..1]).copied().collect()),
        (Tail::Exact, order.clone()),
    ] {
        let ranks: Vec<Vec<usize>> = (0..3).map(|rank| share(rank, tail).iter().collect()).collect();
        let woven: Vec<usize> =
            (0..4).flat_map(|draw| ranks.iter().filter_map(move |rank| rank.get(draw))).copied().collect();
        assert_eq!(woven, expected, "{tail:?}");
        assert_eq!(share(1, tail).iter_from(3).collect::<Vec<_>>(), ranks[1][1..]);
    }
    let mut next = share(0, Tail::Drop);
    next.set_epoch(1);
    assert_ne!(next.iter().collect::<Vec<_>>(), share(0, Tail::Drop).iter().collect::<Vec<_>>());
    let none = ShardedSampler::new(SequentialSampler::new(3).unwrap(), ShardedOptions::default());
    assert_eq!(none.unwrap_err(), SamplerError::NoReplicas);
}

#[test]
fn impossible_options_are_refused_with_a_remedy() {
    let refused = |options| DistributedSampler::new(options).unwrap_err();
    let error = refused(DistributedOptions { replicas: 0, ..Default::default() });
    assert_eq!(error, SamplerError::NoReplicas);
    assert!(error.to_string().contains("set `replicas`"), "{error}");

    let error = refused(DistributedOptions { len: 9, replicas: 4, rank: 4, ..Default::default() });
    assert_eq!(error, SamplerError::RankOutOfRange { rank: 4, replicas: 4 });
    assert!(error.to_string().ends_with("set `rank` to at most 3"), "{error}");

    let error = refused(DistributedOptions {
        len: 9,
        replicas: 1,
        drop_last: true,
        exact: true,
        ..Default::default()
    });
    assert!(error.to_string().contains("`drop_last` and `exact`"), "{error}");

    let error = refused(DistributedOptions { len: usize::MAX, replicas: 2, ..Default::default() });
    assert!(matches!(error, SamplerError::TooLarge { .. }), "{error}");
}
