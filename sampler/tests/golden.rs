//! Every order against the one PyTorch gave: `golden/distributed.json` holds, for each rank, the number of
//! indices, all of them or the first 16, and a hash of all.
#![allow(clippy::unwrap_used)]

use hexagram_sampler::{DistributedOptions, DistributedSampler, Mersenne, randperm};
use serde_json::Value;

/// FNV-1a over the indices as little-endian 64-bit integers.
fn fnv1a64(indices: &[usize]) -> u64 {
    let bytes = indices.iter().flat_map(|&index| (index as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn options(case: &Value, rank: usize) -> DistributedOptions {
    DistributedOptions {
        len: number(&case["len"]) as usize,
        replicas: number(&case["num_replicas"]) as usize,
        rank,
        shuffle: case["shuffle"].as_bool().unwrap(),
        seed: number(&case["seed"]),
        epoch: number(&case["epoch"]),
        drop_last: case["drop_last"].as_bool().unwrap(),
        exact: false,
    }
}

fn check_rank(case: &Value, rank: usize, expected: &Value) {
    let options = options(case, rank);
    let sampler = DistributedSampler::new(options).unwrap();
    let indices = sampler.indices();
    assert_eq!(indices.len() as u64, number(&expected["len"]), "{options:?}");
    assert_eq!(sampler.len(), indices.len(), "{options:?}");
    let listed = expected.get("indices").or(expected.get("first")).unwrap().as_array().unwrap();
    let listed: Vec<usize> = listed.iter().map(|index| number(index) as usize).collect();
    assert_eq!(indices[..listed.len()], listed, "{options:?}");
    assert_eq!(format!("{:016x}", fnv1a64(&indices)), expected["fnv1a64"].as_str().unwrap(), "{options:?}");
}

#[test]
fn all_orders_equal_pytorch() {
    let golden: Value = serde_json::from_str(include_str!("golden/distributed.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 40);
    for case in cases {
        let ranks = case["ranks"].as_array().unwrap();
        assert_eq!(ranks.len() as u64, number(&case["num_replicas"]));
        for (rank, expected) in ranks.iter().enumerate() {
            check_rank(case, rank, expected);
        }
    }
}

/// The order and a checksum of `torch.randperm(n, generator=torch.Generator().manual_seed(42))` on both sides
/// of the length from which PyTorch draws 64 bits a place, from torch 2.15.0.
#[test]
#[ignore = "takes 1.7 GB of memory; run with --release -- --ignored"]
fn orders_too_long_for_32_bits_equal_pytorch() {
    let golden = [
        (214_748_363, [105399001, 199900638, 3068019, 143601337], 6_947_994_106_474_264_481u64),
        (214_748_364, [85514504, 93417259, 199404010, 60269803], 16_780_056_653_061_104_777),
        (214_748_365, [85514504, 93417259, 199404010, 60269803], 16_791_174_010_433_021_237),
    ];
    for (n, first, checksum) in golden {
        let order = randperm(n, &mut Mersenne::new(42));
        assert_eq!(order[..4], first);
        let weighted = (1u64..).zip(&order).map(|(place, &index)| place.wrapping_mul(index as u64));
        assert_eq!(weighted.fold(0, u64::wrapping_add), checksum, "{n}");
    }
}
