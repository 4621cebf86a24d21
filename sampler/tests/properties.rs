//! What holds for every data set and every number of ranks, and what happens at the edges.
use hexagram_sampler::{DistributedOptions, DistributedSampler, SamplerError};

const LENGTHS: [usize; 8] = [1, 2, 3, 7, 8, 16, 31, 100];
const REPLICAS: [usize; 6] = [1, 2, 3, 7, 8, 64];

/// What each rank gets.
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
    let options = DistributedOptions { len: 10, seed: u64::MAX, epoch: 1, ..Default::default() };
    let zero = DistributedOptions { len: 10, ..Default::default() };
    assert_eq!(shares(options), shares(zero));
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

    let error = refused(DistributedOptions::default());
    assert_eq!(error, SamplerError::NoSamples);

    let error = refused(DistributedOptions { len: 3, replicas: 8, drop_last: true, ..Default::default() });
    assert_eq!(error, SamplerError::AllDropped { len: 3, together: 8 });

    let error = refused(DistributedOptions { len: 9, drop_last: true, exact: true, ..Default::default() });
    assert!(error.to_string().contains("`drop_last` and `exact`"), "{error}");

    let error = refused(DistributedOptions { len: usize::MAX, replicas: 2, ..Default::default() });
    assert!(matches!(error, SamplerError::TooLarge { .. }), "{error}");
}
