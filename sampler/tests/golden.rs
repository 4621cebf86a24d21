//! Every order against the one PyTorch gave: `golden/samplers.json`, and `golden/more.json`, which `golden/generate.py`
//! makes. An order is given by the number of indices, all of them or the first 16, and a hash of all.
use hexagram_sampler::{
    BatchSampler, Batching, Complexities, DistributedOptions, DistributedSampler, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, RandomOptions, RandomSampler, Sampler,
    SequentialSampler, SubsetRandomSampler, WeightedOptions, WeightedRandomSampler,
};
use serde_json::Value;

fn cases(file: &str) -> Vec<Value> {
    let mut golden: Value = serde_json::from_str(file).unwrap();
    let Value::Array(cases) = golden["cases"].take() else { panic!("no cases") };
    cases
}

/// FNV-1a over the indices as little-endian 64-bit integers.
fn fnv1a64(indices: &[usize]) -> u64 {
    let bytes = indices.iter().flat_map(|&index| (index as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Numbers from a linear congruential generator, as the cases name them.
fn lcg(seed: u64, count: usize, modulo: u64) -> Vec<u64> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % modulo
    };
    (0..count).map(next).collect()
}

fn number(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap_or_else(|| panic!("no {key} in {case}")) as usize
}

fn flag(case: &Value, key: &str) -> bool {
    case[key].as_bool().unwrap_or_else(|| panic!("no {key} in {case}"))
}

fn seed(case: &Value) -> u64 {
    case["seed"].as_u64().unwrap()
}

fn indices(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|index| index.as_u64().unwrap() as usize).collect()
}

fn check(actual: &[usize], expected: &Value, case: &Value) {
    let listed = indices(expected.get("indices").or(expected.get("first")).unwrap());
    assert_eq!(actual.len(), number(expected, "len"), "{case}");
    assert_eq!(actual[..listed.len()], listed, "{case}");
    assert_eq!(format!("{:016x}", fnv1a64(actual)), expected["fnv1a64"].as_str().unwrap(), "{case}");
}

/// The whole of an epoch, and that it can be entered anywhere.
fn check_sampler(sampler: &impl Sampler<Item = usize>, expected: &Value, case: &Value) {
    let all: Vec<usize> = sampler.iter().collect();
    check(&all, expected, case);
    assert_eq!(sampler.len(), all.len(), "{case}");
    for draws in [1, all.len() / 2, all.len() + 1] {
        if all.len() > 10_000 {
            return; // takes too long without optimization
        }
        let rest: Vec<usize> = sampler.iter_from(draws * sampler.stride()).collect();
        assert_eq!(rest, all[draws.min(all.len())..], "from draw {draws} of {case}");
    }
}

/// Each rank's order and the expected one.
fn each_rank(case: &Value, check: impl Fn(usize, &Value)) {
    let ranks = case["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), number(case, "num_replicas"));
    ranks.iter().enumerate().for_each(|(rank, expected)| check(rank, expected));
}

fn complexities(case: &Value) -> Complexities {
    let given = &case["complexity"];
    let numbers =
        lcg(given["lcg_seed"].as_u64().unwrap(), number(case, "len"), number(given, "modulo") as u64);
    let scale = given.get("scale").map_or(1.0, |scale| scale.as_f64().unwrap());
    Complexities::new(numbers.into_iter().map(|number| number as f64 * scale).collect()).unwrap()
}

fn distributed(case: &Value) {
    each_rank(case, |rank, expected| {
        let options = DistributedOptions {
            len: number(case, "len"),
            replicas: number(case, "num_replicas"),
            rank,
            shuffle: flag(case, "shuffle"),
            seed: seed(case),
            epoch: number(case, "epoch") as u64,
            drop_last: flag(case, "drop_last"),
            exact: false,
        };
        let sampler = DistributedSampler::new(options).unwrap();
        assert_eq!(sampler.indices(), sampler.iter().collect::<Vec<_>>());
        check_sampler(&sampler, expected, case);
    });
}

fn balanced(case: &Value, rank: usize) -> LoadBalancingDistributedSampler {
    let options = LoadBalancingOptions {
        replicas: number(case, "num_replicas"),
        rank,
        shuffle: flag(case, "shuffle"),
        seed: seed(case),
        epoch: number(case, "epoch") as u64,
        drop_last: case.get("drop_last").is_some_and(|drop| drop.as_bool().unwrap()),
        random_level: case["random_level"].as_f64().unwrap(),
    };
    LoadBalancingDistributedSampler::new(complexities(case), options).unwrap()
}

fn load_balancing(case: &Value) {
    each_rank(case, |rank, expected| check_sampler(&balanced(case, rank), expected, case));
}

fn load_balancing_batches(case: &Value) {
    each_rank(case, |rank, expected| {
        let batching = Batching::MaxTokens(number(case, "max_tokens") as f64);
        let sampler = LoadBalancingBatchSampler::new(balanced(case, rank), batching, false).unwrap();
        assert_eq!(sampler.len(), number(expected, "batches"), "{case}");
        check(&sampler.iter().collect::<Vec<_>>().concat(), expected, case);
    });
}

fn random(case: &Value) {
    let options = RandomOptions {
        len: number(case, "len"),
        replacement: flag(case, "replacement"),
        num_samples: case["num_samples"].as_u64().map(|samples| samples as usize),
        seed: seed(case),
        epoch: 0,
    };
    check_sampler(&RandomSampler::new(options).unwrap(), &case["flat"], case);
}

fn subset(case: &Value) {
    let indices = lcg(case["lcg_seed"].as_u64().unwrap(), number(case, "len"), 1_000_000);
    let indices = indices.into_iter().map(|index| index as usize).collect();
    check_sampler(&SubsetRandomSampler::new(indices, seed(case)).unwrap(), &case["flat"], case);
}

fn weighted(case: &Value) {
    let numbers = lcg(case["lcg_seed"].as_u64().unwrap(), number(case, "len"), number(case, "modulo") as u64);
    let options = WeightedOptions {
        weights: numbers.into_iter().map(|number| number as f64 / 7.0).collect(),
        num_samples: number(case, "num_samples"),
        replacement: flag(case, "replacement"),
        seed: seed(case),
        epoch: 0,
    };
    check_sampler(&WeightedRandomSampler::new(options).unwrap(), &case["flat"], case);
}

fn random_batches(case: &Value) {
    let options = RandomOptions { len: number(case, "len"), seed: seed(case), ..Default::default() };
    let size = number(case, "batch_size");
    let drop_last = flag(case, "drop_last");
    let sampler = BatchSampler::new(RandomSampler::new(options).unwrap(), size, drop_last).unwrap();
    let batches: Vec<Vec<usize>> = sampler.iter().collect();
    assert_eq!((batches.len(), sampler.len()), (number(case, "batches"), batches.len()), "{case}");
    assert!(batches.iter().rev().skip(1).all(|batch| batch.len() == size), "{case}");
    check(&batches.concat(), &case["flat"], case);
    let rest: Vec<_> = sampler.iter_from(sampler.stride()).collect();
    assert_eq!(rest, batches[batches.len().min(1)..], "{case}");
}

fn batch(case: &Value) {
    let size = number(case, "batch_size");
    let drop_last = flag(case, "drop_last");
    let sampler = SequentialSampler::new(number(case, "len")).unwrap();
    let batches: Vec<_> = BatchSampler::new(sampler, size, drop_last).unwrap().iter().collect();
    let expected: Vec<_> = case["batches"].as_array().unwrap().iter().map(indices).collect();
    assert_eq!(batches, expected, "{case}");
}

fn check_case(case: &Value) {
    match case["sampler"].as_str().unwrap() {
        "distributed" => distributed(case),
        "load_balancing" => load_balancing(case),
        "load_balancing_batches" => load_balancing_batches(case),
        "random" => random(case),
        "subset" => subset(case),
        "weighted" => weighted(case),
        "random_batches" => random_batches(case),
        "batch" => batch(case),
        other => panic!("unknown sampler {other}"),
    }
}

#[test]
fn all_orders_equal_pytorch_and_bagua() {
    let cases = cases(include_str!("golden/samplers.json"));
    assert_eq!(cases.len(), 100);
    cases.iter().for_each(check_case);
}

#[test]
fn odd_seeds_ranges_weights_and_complexities_give_equal_orders_too() {
    let cases = cases(include_str!("golden/more.json"));
    assert_eq!(cases.len(), 105);
    cases.iter().for_each(check_case);
}

/// The order and a checksum of `torch.randperm(n, generator=torch.Generator().manual_seed(42))` on both sides
/// of the length from which PyTorch draws 64 bits a place, from torch 2.15.0.
#[test]
#[ignore = "takes 0.9 GB of memory; run with --release -- --ignored"]
fn orders_too_long_for_32_bits_equal_pytorch() {
    let golden = [
        (214_748_363, [105399001, 199900638, 3068019, 143601337], 6_947_994_106_474_264_481u64),
        (214_748_364, [85514504, 93417259, 199404010, 60269803], 16_780_056_653_061_104_777),
        (214_748_365, [85514504, 93417259, 199404010, 60269803], 16_791_174_010_433_021_237),
    ];
    for (len, first, checksum) in golden {
        let options = RandomOptions { len, seed: 42, ..Default::default() };
        let mut order = RandomSampler::new(options).unwrap().iter();
        let mut sum = 0u64;
        for (place, index) in (1u64..).zip(order.by_ref()) {
            if place <= 4 {
                assert_eq!(index, first[place as usize - 1]);
            }
            sum = sum.wrapping_add(place.wrapping_mul(index as u64));
        }
        assert_eq!(sum, checksum, "{len}");
    }
}
