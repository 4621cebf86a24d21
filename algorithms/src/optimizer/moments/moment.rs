//! Elementwise arithmetic on moments, on their device.

use crate::elementwise::Elementwise;
#[cfg(feature = "cuda")]
use crate::elementwise::{KernelEntry, runs};
use hexagram_logical::Result;
use hexagram_logical::device::kernels::{Float, sums::sum_f32};
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Code, Launch, Module, Program};
#[cfg(feature = "cuda")]
use hexagram_logical::device::sums::Sums;
use hexagram_logical::device::{Kernel, Operands};
use std::ops::Range;

#[cfg(feature = "cuda")]
pub(crate) static MODULE: Module = Module { name: "moment", code: Code::Packed(hexagram_ptx::MOMENT) };

/// Work that changes x, a moment or a gradient, given y: a gradient or the scale D.
#[derive(Debug, Clone, Copy)]
pub(super) enum MomentStep {
    /// x ← keep x + take y.
    First { keep: f32, take: f32 },
    /// x ← keep x + take y².
    Second { keep: f32, take: f32 },
    /// x ← clip(y x) / y; 0 where y is 0.
    Limit { clip: f32 },
    /// x ← x y.
    Multiply,
    /// x ← x / y; 0 where y is 0.
    Divide,
    /// x ← 0 where y is 0.
    Silence,
}

impl Elementwise<f32, 1, 1> for MomentStep {
    #[inline(always)]
    fn run(&self, [y]: [&[f32]; 1], [x]: [&mut [f32]; 1]) {
        let pairs = x.iter_mut().zip(y);
        match *self {
            MomentStep::First { keep, take } => {
                pairs.for_each(|(x, y)| *x = (keep * *x + take * y).canonical())
            }
            MomentStep::Second { keep, take } => {
                pairs.for_each(|(x, y)| *x = (keep * *x + take * y * y).canonical());
            }
            MomentStep::Limit { clip } => {
                pairs.for_each(|(x, y)| *x = if *y == 0.0 { 0.0 } else { bounded(*x, clip / y) });
            }
            MomentStep::Multiply => pairs.for_each(|(x, y)| *x = (*x * y).canonical()),
            MomentStep::Divide => {
                pairs.for_each(|(x, y)| *x = if *y == 0.0 { 0.0 } else { (*x / y).canonical() });
            }
            MomentStep::Silence => pairs.for_each(|(x, y)| *x = if *y == 0.0 { 0.0 } else { x.canonical() }),
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let (name, scalars) = match *self {
            MomentStep::First { keep, take } => ("moment_first", vec![keep, take]),
            MomentStep::Second { keep, take } => ("moment_second", vec![keep, take]),
            MomentStep::Limit { clip } => ("moment_limit", vec![clip]),
            MomentStep::Multiply => ("moment_multiply", Vec::new()),
            MomentStep::Divide => ("moment_divide", Vec::new()),
            MomentStep::Silence => ("moment_silence", Vec::new()),
        };
        KernelEntry { module: &MODULE, name, scalars: scalars.into_iter().map(Argument::F32).collect() }
    }
}

/// Returns a number, limited to ±`bound`; NaN if the bound is NaN.
fn bounded(x: f32, bound: f32) -> f32 {
    let x = if x > bound { bound } else { x };
    let x = if x < -bound { -bound } else { x };
    // D is NaN if the training had diverged before the variance was frozen. The codec names such an element.
    if bound.is_nan() { f32::NAN } else { x.canonical() }
}

/// Direction from the first moment m, and the second moment v or the scale D.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heading {
    /// (unbias m) / (root √v + ε).
    Adam { unbias: f32, root: f32, epsilon: f32 },
    /// unbias (D m).
    Frozen { unbias: f32 },
}

impl Elementwise<f32, 2, 1> for Heading {
    #[inline(always)]
    fn run(&self, [first, other]: [&[f32]; 2], [to]: [&mut [f32]; 1]) {
        let all = to.iter_mut().zip(first).zip(other);
        match *self {
            Heading::Adam { unbias, root, epsilon } => {
                all.for_each(|((to, m), v)| *to = (unbias * m / (v.sqrt() * root + epsilon)).canonical());
            }
            Heading::Frozen { unbias } => {
                all.for_each(|((to, m), d)| *to = (unbias * (d * m)).canonical());
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let (name, scalars) = match *self {
            Heading::Adam { unbias, root, epsilon } => ("moment_adam", vec![unbias, root, epsilon]),
            Heading::Frozen { unbias } => ("moment_frozen", vec![unbias]),
        };
        KernelEntry { module: &MODULE, name, scalars: scalars.into_iter().map(Argument::F32).collect() }
    }
}

/// Work that replaces second moments by their scale D, tensor by tensor.
#[derive(Debug)]
pub(super) struct Scaling {
    /// Ranges of the tensors.
    pub tensors: Vec<Range<usize>>,
    /// Floor φ.
    pub floor: f64,
    /// Quotient √v̂ / √v.
    pub root: f32,
    /// Constant ε.
    pub epsilon: f32,
}

impl Kernel for Scaling {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let ([], [second]) = operands.all::<f32, 0, 1>()?;
        for tensor in &self.tensors {
            let values = &mut second[tensor.clone()];
            let mean = sum_f32(values) / values.len().max(1) as f64;
            let least = (self.floor * mean.sqrt()) as f32 * self.root;
            for v in values {
                let own = v.sqrt() * self.root;
                let deviation = if own > least || least.is_nan() { own } else { least };
                *v = if deviation == 0.0 { 0.0 } else { (1.0 / (deviation + self.epsilon)).canonical() };
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let mut launches = Vec::new();
        let mut scratch = 0;
        for tensor in self.tensors.iter().filter(|tensor| !tensor.is_empty()) {
            let sum = Argument::Scratch(0);
            let run = || runs::<f32>(0..1, tensor).chain([Argument::U64(tensor.len() as u64)]);
            let sums = Sums::new("moment_sums", 1, tensor.len(), sum, 8);
            scratch = scratch.max(sums.scratch);
            let blocks = run().chain([sums.blocks]).collect();
            launches.push(Launch::summing("moment_sum", tensor.len(), blocks));
            launches.extend(sums.launches);
            let scalars = [Argument::F64(self.floor), Argument::F32(self.root), Argument::F32(self.epsilon)];
            let arguments = run().chain(scalars).chain([sum]).collect();
            launches.push(Launch::over("moment_scale", tensor.len(), arguments));
        }
        Some(Program::in_turn(&MODULE, launches, scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::{each, run};
    use hexagram_logical::Buffer;
    use hexagram_logical::testing::buffer;
    use std::sync::Arc;

    /// Numbers of both signs, including zeros, infinities and NaNs.
    fn drawn(len: usize, seed: usize) -> Vec<f32> {
        let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e-42];
        let number = |at: usize| match (at + seed) % 13 {
            0 => odd[(at / 13 + seed) % odd.len()],
            _ => ((at * 7919 + seed * 31) % 4001) as f32 / 1000.0 - 2.0,
        };
        (0..len).map(number).collect()
    }

    /// Returns the index of the first element whose bits differ between the host and the device under test, after
    /// `work` has changed the last of three buffers.
    fn differing(numbers: impl Fn(usize) -> Vec<f32>, work: impl Fn([&Buffer; 3])) -> Option<usize> {
        let place: [fn(&[f32]) -> Buffer; 2] = [|x| Buffer::from_slice(x).unwrap(), |x| buffer(x)];
        let [host, device] = place.map(|place| {
            let buffers = [1, 2, 3].map(|seed| place(&numbers(seed)));
            work(buffers.each_ref());
            buffers[2].host::<f32>().unwrap().to_vec()
        });
        host.iter().zip(&device).position(|(host, device)| host.to_bits() != device.to_bits())
    }

    #[test]
    fn the_device_under_test_has_the_bits_of_the_host() {
        let moments = [
            MomentStep::First { keep: 0.9, take: 0.1 },
            MomentStep::Second { keep: 0.999, take: 0.001 },
            MomentStep::Limit { clip: 1.5 },
            MomentStep::Limit { clip: f32::INFINITY },
            MomentStep::Multiply,
            MomentStep::Divide,
            MomentStep::Silence,
        ];
        let headings =
            [Heading::Adam { unbias: 1.7, root: 3.1, epsilon: 1e-8 }, Heading::Frozen { unbias: 1.3 }];
        for len in [0, 1, 63, 257, 5000] {
            let parts = [0..len / 3, len / 2..len];
            let numbers = |seed| drawn(len, seed);
            for moment in moments {
                let parts = || parts.clone().map(|range| (range, moment)).to_vec();
                let found = differing(numbers, |[y, _, x]| each(parts(), [y], [x]).unwrap());
                assert_eq!(found, None, "{moment:?}, length {len}");
            }
            for heading in headings {
                let parts = || parts.clone().map(|range| (range, heading)).to_vec();
                let found = differing(numbers, |[m, v, to]| each(parts(), [m, v], [to]).unwrap());
                assert_eq!(found, None, "{heading:?}, length {len}");
            }
        }
    }

    #[test]
    fn scales_on_the_device_under_test_have_the_bits_of_the_host() {
        let seconds = |len| (0..len).map(|at| if at % 5 == 0 { 0.0 } else { (at % 89) as f32 * 1e-3 });
        for (len, floor, odd) in [(0, 0.1, false), (6, 0.0, false), (9000, 0.25, false), (300, 0.1, true)] {
            let numbers = |seed| if odd { drawn(len, seed) } else { seconds(len).collect() };
            let tensors = vec![0..len / 3, len / 3..len / 3, len / 3..len];
            let found = differing(numbers, |[_, _, second]| {
                let scaling = Scaling { tensors: tensors.clone(), floor, root: 1.1, epsilon: 1e-8 };
                run(Arc::new(scaling), &[], &[second]).unwrap();
            });
            assert_eq!(found, None, "length {len}");
        }
    }

    #[test]
    fn a_bound_that_is_none_is_told() {
        assert_eq!([-3.0, 3.0, 1.0].map(|x| bounded(x, 2.0)), [-2.0, 2.0, 1.0]);
        assert!(bounded(3.0, f32::NAN).is_nan());
        assert!(bounded(f32::NAN, 2.0).is_nan());
    }
}
