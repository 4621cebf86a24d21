//! Runs to encode: random ones for properties, and those of known distributions.

use proptest::prelude::*;

/// Runs of 0 to 5000 numbers: plain, constant, denormal, of a huge range, tiny, near to each other but far from 0.
pub(crate) fn run() -> impl Strategy<Value = Vec<f32>> {
    let len =
        prop_oneof![Just(0usize), Just(1), Just(2047), Just(2048), Just(2049), 2usize..40, 40usize..5000];
    let kind = prop_oneof![
        Just((1.0f32, 0.0f32)),
        Just((0.0, 0.3)),
        Just((0.0, -0.0)),
        Just((1e-40, 0.0)),
        Just((f32::MAX, 0.0)),
        Just((1e-11, 0.0)),
        Just((0.0005, 1000.0)),
    ];
    (len, kind, any::<u64>()).prop_map(|(len, (scale, offset), seed)| {
        let mut draw = Draw(seed);
        (0..len).map(|_| (2.0 * draw.uniform() as f32 - 1.0) * scale + offset).collect()
    })
}

/// Bits of each.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// SplitMix64.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    /// In (0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 12) as f64 / (1u64 << 52) as f64 + f64::EPSILON
    }

    /// Mean 0, variance 1 (Box and Muller).
    pub(crate) fn gaussian(&mut self) -> f64 {
        let u = self.uniform();
        let v = self.uniform();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Student's t with 3 degrees of freedom.
    pub(crate) fn student(&mut self) -> f64 {
        let square = |x: f64| x * x;
        let chi = square(self.gaussian()) + square(self.gaussian()) + square(self.gaussian());
        self.gaussian() / (chi / 3.0).sqrt()
    }
}
