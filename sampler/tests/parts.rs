//! Parts of an epoch that other numbers of ranks have drawn: damaged ones, and the samplers around other samplers.

use hexagram_sampler::dataset::Items;
use hexagram_sampler::loader::{Array, DataLoader, LoaderError, LoaderOptions, LoaderState};
use hexagram_sampler::{
    Batching, Complexities, CostBalancedOptions, CostBalancedSampler, EpochPart, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler, ShardedOptions, ShardedSampler, Tail,
};

const LEN: usize = 20;

fn costs() -> Complexities {
    Complexities::new((0..LEN).map(|index| (index * 7 % 11) as f64).collect()).unwrap()
}

fn balanced(replicas: usize, drop_last: bool) -> LoadBalancingDistributedSampler {
    let options = LoadBalancingOptions { replicas, drop_last, ..Default::default() };
    LoadBalancingDistributedSampler::new(costs(), options).unwrap()
}

fn batches(replicas: usize, drop_last: bool) -> LoadBalancingBatchSampler {
    LoadBalancingBatchSampler::new(balanced(replicas, drop_last), Batching::Fixed(2), drop_last).unwrap()
}

fn cost_balanced(tail: Tail) -> CostBalancedSampler {
    let options = CostBalancedOptions { replicas: 2, global_batch: 4, tail, ..Default::default() };
    CostBalancedSampler::new(costs(), options).unwrap()
}

fn loader() -> DataLoader<Array<usize>> {
    let batch_sampler: Option<Box<dyn Sampler<Item = Vec<usize>>>> = Some(Box::new(batches(2, false)));
    let options = LoaderOptions { batch_sampler, ..Default::default() };
    DataLoader::new(Items((0..LEN).collect::<Vec<usize>>()), options).unwrap()
}

fn parts(parts: &[(usize, usize)]) -> Vec<EpochPart> {
    parts.iter().map(|&(grouping, end)| EpochPart { grouping, end }).collect()
}

#[test]
fn a_loader_refuses_a_damaged_state() {
    let mut loader = loader();
    let good = LoaderState { position: 5, parts: parts(&[(4, 3), (3, 5)]), ..loader.state() };
    let one = |grouping, end| LoaderState { parts: parts(&[(grouping, end)]), ..good.clone() };
    let damaged = [
        one(0, 5),
        one(1_000_000_000_000, 5),
        one(usize::MAX, 5),
        one(4, 0),
        one(4, 6),
        LoaderState { parts: parts(&[(4, 4), (3, 2)]), ..good.clone() },
        LoaderState { parts: parts(&[(4, 4), (3, 4)]), ..good.clone() },
        LoaderState { position: usize::MAX, parts: parts(&[(4, usize::MAX), (3, 1)]), ..good.clone() },
        LoaderState { grouping: 0, ..good.clone() },
        LoaderState { grouping: usize::MAX, ..good.clone() },
    ];
    let before = loader.state();
    for state in damaged {
        let error = loader.resume(&state).unwrap_err();
        assert!(matches!(error, LoaderError::BadState { .. }), "{state:?}: {error}");
        assert_eq!(loader.state(), before);
    }
    loader.resume(&good).unwrap();
    assert_eq!(loader.state(), good);
}

/// A part of more ranks than samples draws the same samples, however many ranks it had, in little time and memory.
#[test]
fn a_part_of_many_ranks_costs_no_more_than_one_of_all_samples() {
    fn same<S: Sampler>(mut sampler: S)
    where
        S::Item: PartialEq + std::fmt::Debug,
    {
        let mut rest = |grouping| {
            sampler.set_parts(&parts(&[(grouping, 5)]));
            sampler.iter_from(5).collect::<Vec<_>>()
        };
        let least = rest(LEN + 1);
        for grouping in [LEN + 2, u32::MAX as usize, 1_000_000_000_000, usize::MAX] {
            assert_eq!(rest(grouping), least, "{grouping}");
        }
    }
    for drop_last in [false, true] {
        same(balanced(3, drop_last));
        same(batches(3, drop_last));
    }
    [Tail::Drop, Tail::Pad, Tail::Exact].map(cost_balanced).into_iter().for_each(same);
}

#[test]
fn the_length_of_an_epoch_does_not_depend_on_its_parts() {
    fn same<S: Sampler>(mut sampler: S) {
        let whole = sampler.len();
        sampler.set_parts(&parts(&[(4, 3)]));
        assert_eq!(sampler.len(), whole);
        sampler.set_epoch(1);
        assert_eq!(sampler.len(), whole);
    }
    same(balanced(2, false));
    same(batches(2, false));
    same(cost_balanced(Tail::Pad));
}

/// Ranks share the order of the inner sampler, which depends on its own number of ranks.
#[test]
fn the_fingerprint_of_a_shared_order_has_the_grouping_of_the_inner_sampler() {
    let sharded = |inner| {
        let options = ShardedOptions { replicas: 2, ..Default::default() };
        ShardedSampler::new(balanced(inner, false), options).unwrap()
    };
    assert_eq!(sharded(2).fingerprint(), sharded(2).fingerprint());
    assert_ne!(sharded(2).fingerprint(), sharded(4).fingerprint());
}
