//! Load balancing and cost balancing: equal numbers of batches on all ranks, limits respected, and steps of equal
//! cost on all ranks.
use hexagram_sampler::{
    Balance, BatchSampler, Batching, Complexities, CostBalancedOptions, CostBalancedSampler,
    DistributedOptions, DistributedSampler, LoadBalancingBatchSampler, LoadBalancingDistributedSampler,
    LoadBalancingOptions, Mersenne, Sampler, Tail,
};
use std::f64::consts::TAU;
use std::sync::Arc;

/// Whole numbers of tokens, of which the logarithm is normally distributed: a median of 100.
fn log_normal(len: usize, sigma: f64) -> Complexities {
    let mut generator = Mersenne::new(1);
    let mut tokens = || {
        let normal = (-2.0 * (1.0 - generator.uniform()).ln()).sqrt() * (TAU * generator.uniform()).cos();
        (100.0 * (sigma * normal).exp()).ceil()
    };
    Complexities::new((0..len).map(|_| tokens()).collect()).unwrap()
}

/// The costs of steps on the ranks, each with its speed.
fn balance(samplers: &[impl Sampler<Item = Vec<usize>>], costs: &Complexities, speeds: &[f64]) -> Balance {
    let mut draws: Vec<_> = samplers.iter().map(Sampler::iter).collect();
    let mut balance = Balance::default();
    for _ in 0..samplers[0].len() {
        let cost = |batch: Vec<usize>| batch.into_iter().map(|sample| costs.as_slice()[sample]).sum::<f64>();
        balance.add(draws.iter_mut().zip(speeds).map(|(draws, speed)| cost(draws.next().unwrap()) / speed));
    }
    assert!(draws.iter().all(|draws| draws.len() == 0), "all ranks have equally many batches");
    balance
}

fn cost_balanced(costs: &Complexities, options: CostBalancedOptions) -> Vec<CostBalancedSampler> {
    let of = |rank| {
        CostBalancedSampler::new(costs.clone(), CostBalancedOptions { rank, ..options.clone() }).unwrap()
    };
    (0..options.replicas).map(of).collect()
}

#[test]
fn log_normal_lengths_are_balanced_within_five_percent_in_every_step() {
    for sigma in [0.5, 1.0] {
        let costs = log_normal(20_000, sigma);
        for (replicas, each) in [(2, 8), (3, 8), (4, 8), (4, 32), (8, 16)] {
            let options =
                CostBalancedOptions { replicas, global_batch: replicas * each, ..Default::default() };
            let ours = balance(&cost_balanced(&costs, options), &costs, &vec![1.0; replicas]);
            let what = format!("{ours:?}: sigma {sigma}, {replicas} ranks with {each} each");
            assert!(ours.worst() <= 1.05 && ours.mean() <= 1.005, "{what}");

            let of = |rank| {
                let options =
                    DistributedOptions { len: 20_000, replicas, rank, drop_last: true, ..Default::default() };
                BatchSampler::new(DistributedSampler::new(options).unwrap(), each, true).unwrap()
            };
            let random = balance(&(0..replicas).map(of).collect::<Vec<_>>(), &costs, &vec![1.0; replicas]);
            assert!(random.mean() - 1.0 > 20.0 * (ours.mean() - 1.0), "{what}, at random {random:?}");
        }
    }
}

#[test]
fn ranks_of_unequal_speed_finish_together() {
    let costs = log_normal(10_000, 1.0);
    for speeds in [vec![1.0, 2.0], vec![1.0, 1.0, 0.25], vec![3.0, 1.5, 1.0, 0.5]] {
        let replicas = speeds.len();
        let options = CostBalancedOptions {
            replicas,
            global_batch: 24 * replicas,
            speeds: speeds.clone(),
            ..Default::default()
        };
        let balance = balance(&cost_balanced(&costs, options), &costs, &speeds);
        assert!(balance.worst() <= 1.05 && balance.mean() <= 1.01, "{speeds:?} {balance:?}");
    }
}

#[test]
fn ranks_far_too_slow_still_take_part_in_every_step() {
    let costs = log_normal(500, 1.0);
    let speeds = vec![1e6, 1e6, 1.0];
    for (global_batch, shuffle) in [(3, true), (4, false), (10, true), (100, true)] {
        let speeds = speeds.clone();
        let options =
            CostBalancedOptions { replicas: 3, global_batch, speeds, shuffle, ..Default::default() };
        let batches: Vec<Vec<_>> =
            cost_balanced(&costs, options).iter().map(|sampler| sampler.iter().collect()).collect();
        assert!(batches.iter().all(|rank| rank.len() == 500 / global_batch));
        assert!(batches.iter().flatten().all(|batch| !batch.is_empty()), "a step of {global_batch}");
    }
}

#[test]
fn samples_that_cost_nothing_are_divided_evenly() {
    let costs = Complexities::new(vec![0.0; 64]).unwrap();
    let options = CostBalancedOptions { replicas: 4, global_batch: 16, ..Default::default() };
    for sampler in cost_balanced(&costs, options) {
        assert!(sampler.iter().all(|batch| batch.len() == 4));
    }
}

#[test]
fn an_epoch_has_every_sample_and_the_next_has_other_steps() {
    let costs = log_normal(400, 1.0);
    let options =
        CostBalancedOptions { replicas: 1, global_batch: 20, tail: Tail::Exact, ..Default::default() };
    let mut sampler = CostBalancedSampler::new(costs.clone(), options.clone()).unwrap();
    let mut steps = |epoch| {
        sampler.set_epoch(epoch);
        let mut steps: Vec<Vec<usize>> = sampler.iter().collect();
        let mut all = steps.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..400));
        steps.iter_mut().for_each(|step| step.sort_unstable());
        steps
    };
    let first = steps(0);
    let second = steps(1);
    assert!(first.iter().all(|step| !second.contains(step)));
    assert_eq!(first, steps(0));

    // Without blur the pieces stay the same, in a different order and combination.
    let distinct = Complexities::new((0..400).map(f64::from).collect()).unwrap();
    let sharp = CostBalancedOptions { random_level: 0.0, ..options.clone() };
    let mut sharp = CostBalancedSampler::new(distinct, sharp).unwrap();
    let first: Vec<_> = sharp.iter().collect();
    sharp.set_epoch(1);
    assert!(sharp.iter().zip(&first).all(|(second, first)| second != *first));

    let plain = CostBalancedOptions { shuffle: false, ..options };
    let plain = CostBalancedSampler::new(costs, plain).unwrap();
    assert!(plain.iter().flatten().eq(0..400), "without shuffling, in the order of the data set");
}

fn load_balanced(
    costs: &Complexities,
    options: LoadBalancingOptions,
) -> Vec<LoadBalancingDistributedSampler> {
    let of = |rank| {
        LoadBalancingDistributedSampler::new(costs.clone(), LoadBalancingOptions { rank, ..options }).unwrap()
    };
    (0..options.replicas).map(of).collect()
}

fn batched(
    samplers: Vec<LoadBalancingDistributedSampler>,
    batching: &Batching,
    drop_last: bool,
    epoch: u64,
) -> Vec<Vec<Vec<usize>>> {
    let of = |sampler| {
        let mut sampler = LoadBalancingBatchSampler::new(sampler, batching.clone(), drop_last).unwrap();
        sampler.set_epoch(epoch);
        let batches: Vec<_> = sampler.iter().collect();
        assert_eq!(batches.len(), sampler.len());
        assert_eq!(sampler.iter_from(1).collect::<Vec<_>>(), batches[1..]);
        batches
    };
    samplers.into_iter().map(of).collect()
}

#[test]
fn load_balancing_beats_chance_at_every_level_of_randomness() {
    let costs = log_normal(4000, 1.0);
    fn ones<S: Sampler<Item = usize>>(samplers: impl Iterator<Item = S>) -> Vec<BatchSampler<S>> {
        samplers.map(|sampler| BatchSampler::new(sampler, 1, false).unwrap()).collect()
    }
    let mean = |random_level| {
        let options = LoadBalancingOptions { replicas: 4, random_level, ..Default::default() };
        balance(&ones(load_balanced(&costs, options).into_iter()), &costs, &[1.0; 4]).mean()
    };
    let at_random = |rank| {
        let options = DistributedOptions { len: 4000, replicas: 4, rank, ..Default::default() };
        DistributedSampler::new(options).unwrap()
    };
    let chance = balance(&ones((0..4).map(at_random)), &costs, &[1.0; 4]).mean();
    let means = [mean(0.0), mean(0.01), mean(0.1), mean(1.0), chance];
    assert!(means.is_sorted() && means[0] < 1.01, "{means:?}");
}

#[test]
fn batches_are_equally_many_on_all_ranks_in_every_epoch() {
    let costs = log_normal(301, 1.0);
    let limit = costs.as_slice().iter().copied().fold(0.0, f64::max) * 2.0;
    // As many batches as the first index of the samples: very unequal.
    let odd = |indices: &[usize]| indices.chunks(1 + indices[0] % 13).map(<[usize]>::to_vec).collect();
    let batchings = [
        Batching::Fixed(7),
        Batching::MaxTokens(limit),
        Batching::MaxPaddedTokens(limit),
        Batching::Custom(Arc::new(odd)),
        Batching::Custom(Arc::new(|_| Vec::new())),
        Batching::Custom(Arc::new(|indices| match indices[0] % 2 {
            0 => vec![vec![], vec![indices[0]]],
            _ => Vec::new(),
        })),
    ];
    for (replicas, drop_last) in (1..=8).flat_map(|replicas| [(replicas, true), (replicas, false)]) {
        for (batching, epoch) in
            batchings.iter().flat_map(|batching| [0, 1, 5].map(|epoch| (batching, epoch)))
        {
            let options = LoadBalancingOptions { replicas, random_level: 0.2, ..Default::default() };
            let ranks = batched(load_balanced(&costs, options), batching, drop_last, epoch);
            let equal = ranks.iter().all(|rank| rank.len() == ranks[0].len() && !rank.is_empty());
            assert!(equal, "{replicas} ranks, {batching:?}, drop_last {drop_last}, epoch {epoch}");
            assert!(ranks.iter().flatten().all(|batch| !batch.is_empty()));
        }
    }
}

#[test]
fn padding_begins_again_and_dropping_cuts_off() {
    let costs = Complexities::new((0..36).map(f64::from).collect()).unwrap();
    let options = LoadBalancingOptions { replicas: 2, shuffle: false, ..Default::default() };
    // Rank 0 has the even samples and makes 2 batches of them, rank 1 the odd ones in 9: more than twice as many.
    let uneven = |indices: &[usize]| {
        indices.chunks(if indices[0] == 0 { 9 } else { 2 }).map(<[usize]>::to_vec).collect()
    };
    let batching = Batching::Custom(Arc::new(uneven));
    let padded = batched(load_balanced(&costs, options), &batching, false, 0);
    assert_eq!(padded.iter().map(Vec::len).collect::<Vec<_>>(), [9, 9]);
    assert!(padded[0].iter().enumerate().all(|(at, batch)| *batch == padded[0][at % 2]));
    let dropped = batched(load_balanced(&costs, options), &batching, true, 0);
    assert_eq!(dropped, [padded[0][..2].to_vec(), padded[1][..2].to_vec()]);
}

#[test]
fn batches_keep_their_limits_and_miss_nothing() {
    let costs = log_normal(500, 1.0);
    let tokens = |sample: &usize| costs.as_slice()[*sample];
    let limit = costs.as_slice().iter().copied().fold(0.0, f64::max);
    let of = |batching: Batching| {
        let options = LoadBalancingOptions { replicas: 4, ..Default::default() };
        let batches = batched(load_balanced(&costs, options), &batching, false, 3).concat();
        let mut all = batches.concat();
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..500));
        batches
    };
    let sum = |batch: &Vec<usize>| batch.iter().map(tokens).sum::<f64>();
    let padded = |batch: &Vec<usize>| batch.iter().map(tokens).fold(0.0, f64::max) * batch.len() as f64;
    let summed = of(Batching::MaxTokens(limit));
    let by_longest = of(Batching::MaxPaddedTokens(limit));
    assert!(
        summed.iter().all(|batch| sum(batch) <= limit) && summed.iter().any(|batch| padded(batch) > limit)
    );
    assert!(by_longest.iter().all(|batch| padded(batch) <= limit));
    assert!(of(Batching::Fixed(7)).iter().all(|batch| batch.len() <= 7));
}

#[test]
fn the_greatest_costs_are_balanced_like_small_ones() {
    for unit in [1.0, 1e308, f64::MAX / 2.0, f64::MIN_POSITIVE] {
        let mut balance = Balance::default();
        balance.add([unit; 4]);
        balance.add([2.0 * unit.min(8e307), 0.0]);
        assert_eq!((balance.mean(), balance.worst()), (1.5, 2.0), "{unit:e}");
    }
    let mut nothing = Balance::default();
    nothing.add([0.0, 0.0]);
    nothing.add([]);
    assert_eq!((nothing.mean(), nothing.worst()), (1.0, 1.0));
}
