//! Test that kernels have the same bits on every architecture.

use crate::codec::min_max::simd::{Range, add_dequantized, dequantize};
use crate::codec::sign::simd::add_signs;
use hexagram_physical::ReduceOp;
use hexagram_physical::device::kernels::dispatch::each_set;
use hexagram_physical::device::kernels::testing::{bits, odd_f64, pairs, with_odd};
use hexagram_physical::device::kernels::{add_bf16, add_f16, add_scaled, reduce_f32, reduce_f64, scale_f32};
use hexagram_physical::memory::hash;

/// Returns the reductions of floats.
fn ops() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise())
}

/// Returns a hash of the results of all kernels that reduce or decode odd numbers.
fn digest() -> u64 {
    let x = with_odd(700, 1);
    let y = with_odd(700, 2);
    let codes: Vec<u8> = (0..1400u32).map(|i| (i * i / 8) as u8).collect();
    let range = Range { min: -f32::MAX, max: f32::INFINITY };
    let mut all = Vec::new();
    let mut run = |kernel: &dyn Fn(&mut [f32])| {
        let mut to = y.clone();
        kernel(&mut to);
        all.extend(bits(&to));
    };
    ops().for_each(|op| run(&|to| reduce_f32(op, &x, to)));
    run(&|to| scale_f32(1.0 / 3.0, to));
    run(&|to| add_scaled(-0.7, &x, to));
    run(&|to| add_f16(&codes, 0.3, to));
    run(&|to| add_bf16(&codes, 0.3, to));
    run(&|to| add_signs(&codes[..88], f32::NAN, to));
    run(&|to| dequantize(&codes[..700], range, to));
    run(&|to| add_dequantized(&codes[..700], range, 0.3, to));
    let (x, mut wide) = pairs(&odd_f64());
    for op in ops() {
        reduce_f64(op, &x, &mut wide);
        all.extend(wide.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]));
    }
    all.iter().fold(0, |digest, word| hash::step(digest, u64::from(*word)).rotate_left(7))
}

/// The number was computed on x86-64 and on AArch64.
#[test]
fn every_architecture_gives_the_same_bits() {
    each_set(|set| assert_eq!(digest(), 2_089_756_680_902_895_076, "{set}"));
}
