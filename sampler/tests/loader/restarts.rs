//! Jobs that fail and start again on other numbers of ranks, several times in an epoch: how often each sample is in a
//! step of the final training. A step after the newest checkpoint does not count, because a restart takes it back.

use super::support::{options, uneven};
use hexagram_sampler::loader::{Array, DataLoader, LoaderOptions, LoaderState};
use hexagram_sampler::{
    BatchSampler, Batching, Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions,
    DistributedSampler, ElasticOptions, ElasticSampler, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, RandomOptions, RandomSampler, Sampler,
    ShardedOptions, ShardedSampler, Tail,
};

const LEN: usize = 211;
const BATCH: usize = 4;

/// Ranks, their steps, and the steps up to their newest checkpoint; the last ranks run to the end of the epoch.
type Starts = &'static [(usize, usize, usize)];
const STARTS: [Starts; 4] = [
    &[(4, 5, 3), (3, 4, 4), (6, 2, 1), (6, 1, 0), (2, 3, 2), (2, 2, 1), (1, 4, 2), (5, 99, 99)],
    &[(4, 3, 2), (3, 5, 4), (6, 99, 99)],
    &[(3, 2, 0), (2, 20, 20), (4, 1, 0), (7, 99, 99)],
    &[(8, 2, 2), (4, 9, 7), (8, 99, 99)],
];
const TAILS: [Tail; 3] = [Tail::Drop, Tail::Pad, Tail::Exact];

type Batches = Box<dyn Sampler<Item = Vec<usize>>>;

/// The loaders of all ranks, for a function from rank and number of ranks to a sampler.
fn loaders(of: impl Fn(usize, usize) -> Batches, ranks: usize) -> Vec<DataLoader<Array<usize>>> {
    let loader = |rank| {
        let batch_sampler = Some(of(rank, ranks));
        DataLoader::new(uneven(LEN), LoaderOptions { batch_sampler, ..options(1, rank % 3) }).unwrap()
    };
    (0..ranks).map(loader).collect()
}

/// Trains one epoch with restarts. Returns how often each sample is in a step that counts, and the samples that the last
/// ranks draw in the next epoch.
fn train(of: impl Fn(usize, usize) -> Batches, starts: Starts) -> (Vec<usize>, Vec<usize>) {
    let mut counts = vec![0; LEN];
    let mut checkpoint: Option<LoaderState> = None;
    let mut next = Vec::new();
    for &(ranks, steps, saved) in starts {
        let mut states = Vec::new();
        let mut loaders = loaders(&of, ranks);
        for loader in &mut loaders {
            if let Some(state) = &checkpoint {
                loader.resume(state).unwrap();
            }
            let mut state = loader.state();
            let mut batches = loader.iter();
            for step in 1..=steps {
                let Some(batch) = batches.next() else { break };
                if step <= saved {
                    batch.unwrap().iter().for_each(|sample| counts[*sample] += 1);
                    state = batches.state();
                }
            }
            states.push(state);
        }
        checkpoint = Some(states[0].clone());
        if steps == 99 {
            next = loaders.iter_mut().flat_map(|loader| super::support::epoch(loader).concat()).collect();
        } else {
            assert!(states.iter().all(|state| *state == states[0]), "{starts:?}: {states:?}");
        }
    }
    (counts, next)
}

/// Checks the counts of all restarts: most samples are in exactly one step, at most `missing` in none, and at most
/// `again` come again. The next epoch is whole.
fn check(what: &str, of: impl Fn(usize, usize) -> Batches, missing: usize, again: usize) {
    for starts in STARTS {
        let (counts, next) = train(&of, starts);
        let none = counts.iter().filter(|count| **count == 0).count();
        let more: usize = counts.iter().map(|count| count.saturating_sub(1)).sum();
        assert!(none <= missing && more <= again, "{what}, {starts:?}: {none} missing, {more} again");
        let ranks = starts.last().unwrap().0;
        let alone = (0..ranks).flat_map(|rank| {
            let mut sampler = of(rank, ranks);
            sampler.set_epoch(1);
            sampler.iter().collect::<Vec<_>>().concat()
        });
        assert!(next.into_iter().eq(alone), "{what}, {starts:?}: the next epoch");
    }
}

/// The most samples that the end of an epoch drops or repeats, if ranks draw `together` samples at a time.
fn of_tail(tail: Tail, together: usize) -> (usize, usize) {
    match tail {
        Tail::Drop => (together - 1, 0),
        Tail::Pad => (0, together - 1),
        Tail::Exact => (0, 0),
    }
}

#[test]
fn distributed_samplers_draw_each_sample_once_over_restarts() {
    for (tail, shuffle) in TAILS.into_iter().flat_map(|tail| [(tail, true), (tail, false)]) {
        let of = |rank, replicas| {
            let (drop_last, exact) = (tail == Tail::Drop, tail == Tail::Exact);
            let options = DistributedOptions {
                len: LEN,
                replicas,
                rank,
                shuffle,
                drop_last,
                exact,
                ..Default::default()
            };
            Box::new(BatchSampler::new(DistributedSampler::new(options).unwrap(), BATCH, false).unwrap())
                as Batches
        };
        let (missing, again) = of_tail(tail, 8);
        check(&format!("distributed, {tail:?}"), of, missing, again);
        let of = |rank, replicas| {
            let order = RandomSampler::new(RandomOptions { len: LEN, ..Default::default() }).unwrap();
            let options = ShardedOptions { replicas, rank, tail };
            Box::new(BatchSampler::new(ShardedSampler::new(order, options).unwrap(), BATCH, false).unwrap())
                as Batches
        };
        check(&format!("sharded, {tail:?}"), of, missing, again);
    }
}

#[test]
fn samplers_of_steps_draw_each_sample_once_over_restarts() {
    let costs = Complexities::new((0..LEN).map(|index| (index * 37 % 50) as f64).collect()).unwrap();
    for (tail, shuffle) in TAILS.into_iter().flat_map(|tail| [(tail, true), (tail, false)]) {
        let elastic = |rank, replicas| {
            let options = ElasticOptions {
                len: LEN,
                replicas,
                rank,
                global_batch: 13,
                shuffle,
                tail,
                ..Default::default()
            };
            Box::new(ElasticSampler::new(options).unwrap()) as Batches
        };
        let (missing, again) = of_tail(tail, 13);
        check(&format!("elastic, {tail:?}"), elastic, missing, again);
        // The same global batch for all numbers of ranks, or the same batch for each rank.
        for scale in [false, true] {
            let of = |rank, replicas| {
                let global_batch = if scale { BATCH * replicas } else { 13 };
                let options =
                    CostBalancedOptions { replicas, rank, global_batch, shuffle, tail, ..Default::default() };
                Box::new(CostBalancedSampler::new(costs.clone(), options).unwrap()) as Batches
            };
            let (missing, again) = of_tail(tail, if scale { BATCH * 8 } else { 13 });
            check(&format!("cost balanced, {tail:?}, {scale}"), of, missing, again);
        }
    }
}

#[test]
fn load_balancing_samplers_draw_each_sample_once_over_restarts() {
    let costs = Complexities::new((0..LEN).map(|index| (index * 37 % 50) as f64).collect()).unwrap();
    let of_rank = |rank, replicas, drop_last, shuffle| {
        let random_level = 0.2;
        let options = LoadBalancingOptions {
            replicas,
            rank,
            shuffle,
            seed: 5,
            drop_last,
            random_level,
            ..Default::default()
        };
        LoadBalancingDistributedSampler::new(costs.clone(), options).unwrap()
    };
    for (drop_last, shuffle) in [(true, true), (true, false), (false, true), (false, false)] {
        let (missing, again) = if drop_last { (7, 0) } else { (0, 7) };
        let of = |rank, replicas| {
            let sampler = of_rank(rank, replicas, drop_last, shuffle);
            Box::new(BatchSampler::new(sampler, BATCH, false).unwrap()) as Batches
        };
        check(&format!("load balancing, {drop_last}, {shuffle}"), of, missing, again);
        for batching in [Batching::Fixed(BATCH), Batching::MaxTokens(120.0), Batching::MaxPaddedTokens(150.0)]
        {
            let of = |rank, replicas| {
                let sampler = of_rank(rank, replicas, drop_last, shuffle);
                Box::new(LoadBalancingBatchSampler::new(sampler, batching.clone(), drop_last).unwrap())
                    as Batches
            };
            // Ranks have different numbers of batches before they are made equal.
            let (missing, again) = if drop_last { (16, 0) } else { (0, 24) };
            check(
                &format!("load balancing batches, {batching:?}, {drop_last}, {shuffle}"),
                of,
                missing,
                again,
            );
        }
    }
}
