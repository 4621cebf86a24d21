//! Moments of Adam for algorithms that communicate them: exact steps first, then a frozen variance.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g       v ← β₂ v + (1 − β₂) g²       v̂ = v / (1 − β₂ᵏ), k: updates of v
//! d ← (m / (1 − β₁ᵗ)) / (√v̂ + ε)                          direction of Adam in step t
//! D ← 1 / (max(√v̂, φ rms(√v̂)) + ε)                        once v is frozen; 0 where v = 0 and φ = 0
//! ```
//!
//! If v is 0, the element has had no gradient so far. D = 0 is the mask in the code of DeepSpeed; without it, the error
//! of a zero in one bit would be divided by ε. [`Frozen`] has the floor φ and other options for elements with very
//! small gradients. A tensor without any gradient has D = 0 with any floor, and does not move.
//!
//! Sources: Kingma and Ba, "Adam", ICLR 2015; Tang et al., "1-bit Adam", ICML 2021 (the frozen variance).

pub(super) mod moment;

use crate::elementwise::{self, Elementwise};
use crate::plugin::{Context, Tensor};
use hexagram_logical::encoding::Encoding;
use hexagram_logical::options_text::{Options, above, or, truth};
use hexagram_logical::{Buffer, Result};
use moment::{Heading, MomentStep, Scaling};
use std::sync::Arc;

/// Constants of Adam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Decay β₁ of the first moment, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1). Default: 0.999.
    pub beta2: f64,
    /// Constant ε in the denominator, above 0. Default: 1e-8.
    pub epsilon: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// Use of a frozen variance.
///
/// The papers do not have these options: see [`Frozen::papers`]. All three are for elements with very small gradients
/// while the variance was measured: afterwards they are divided by a number near zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frozen {
    /// Floor φ of √v̂, as a share of the root mean square of the tensor: D ← 1 / (max(√v̂, φ rms(√v̂)) + ε). At least
    /// 0; 0 for no floor. Default: 0.1.
    pub floor: f64,
    /// Optional bound of |D g|, above 0. Adam itself stays below 1/√(1 − β₂), since g is part of its v. Default: none.
    pub clip: Option<f64>,
    /// True to encode D m and D g, whose elements are of similar size, instead of m and g. Default: false.
    pub scaled: bool,
}

impl Default for Frozen {
    fn default() -> Self {
        Frozen { floor: 0.1, clip: None, scaled: false }
    }
}

impl Frozen {
    /// Creates the options of the papers: no floor and no clip, and m itself is encoded.
    pub fn papers() -> Self {
        Frozen { floor: 0.0, ..Frozen::default() }
    }

    /// Creates options that bound the step of every element: a floor of 0.1, the clip that follows from the defaults of
    /// Adam, 31.6, and scaled encoding.
    pub fn bounded() -> Self {
        Frozen { clip: Some(31.6), scaled: true, ..Frozen::default() }
    }

    /// Declares `floor`, `clip` and `scaled` among the options of an algorithm.
    ///
    /// # Errors
    /// As [`Options`], for values out of range.
    pub fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("floor", &mut self.floor, 0.0.., "φ, least √v̂ as a part of the tensor's rms")?;
        options.field("clip", &mut self.clip, or("none", above(0.0)), "bound of |D g|")?;
        options.field("scaled", &mut self.scaled, truth(), "true to encode D m, not m")
    }

    /// Replaces the second moment by its scale, tensor by tensor: `v ← D`.
    pub(crate) fn scale(
        &self,
        moments: &Moments,
        tensors: &[Tensor],
        updates: u64,
        second: &mut Buffer,
    ) -> Result<()> {
        let ranges = || tensors.iter().map(|tensor| &tensor.elements);
        elementwise::within(elementwise::alike::<f32>(&[], &[second])?, ranges())?;
        let scaling = Scaling {
            tensors: ranges().cloned().collect(),
            floor: self.floor,
            root: moments.root(updates),
            epsilon: moments.epsilon as f32,
        };
        elementwise::run(Arc::new(scaling), &[], &[second])
    }

    /// Bounds the gradients, `g ← clip(D g) / D`, and clears them where D is 0.
    pub(crate) fn limit(&self, scale: &Buffer, gradients: &mut Buffer) -> Result<()> {
        let clip = self.clip.unwrap_or(f64::INFINITY) as f32;
        whole(MomentStep::Limit { clip }, [scale], gradients)
    }

    /// Averages a moment or a gradient over all ranks, encoded in the coordinates of the options.
    pub(crate) async fn mean(
        &self,
        context: &Context,
        scale: &Buffer,
        moment: &mut Buffer,
        encoding: &mut Encoding,
    ) -> Result<()> {
        if self.scaled {
            multiply(scale, moment)?;
            context.mean_encoded(moment, encoding).await?;
            return divide(scale, moment);
        }
        context.mean_encoded(moment, encoding).await?;
        silence(scale, moment)
    }

    /// Averages a displacement in units of the parameters over all ranks, encoded in the coordinates of the options.
    pub(crate) async fn mean_way(
        &self,
        context: &Context,
        scale: &Buffer,
        way: &mut Buffer,
        encoding: &mut Encoding,
    ) -> Result<()> {
        if self.scaled {
            context.mean_encoded(way, encoding).await?;
            return silence(scale, way);
        }
        divide(scale, way)?;
        context.mean_encoded(way, encoding).await?;
        multiply(scale, way)
    }
}

impl Moments {
    /// Declares `beta1`, `beta2` and `epsilon` among the options of an algorithm.
    ///
    /// # Errors
    /// As [`Options`], for values out of range.
    pub fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("beta1", &mut self.beta1, 0.0..1.0, "β₁, decay of the first moment")?;
        options.field("beta2", &mut self.beta2, 0.0..1.0, "β₂, decay of the second moment")?;
        options.field("epsilon", &mut self.epsilon, above(0.0), "ε, constant in the denominator")
    }

    /// Updates the first moment: `m ← β₁ m + (1 − β₁) g`.
    pub(crate) fn first(&self, gradients: &Buffer, first: &mut Buffer) -> Result<()> {
        let keep = self.beta1 as f32;
        let take = 1.0 - keep;
        whole(MomentStep::First { keep, take }, [gradients], first)
    }

    /// Updates the second moment: `v ← β₂ v + (1 − β₂) g²`.
    pub(crate) fn second(&self, gradients: &Buffer, second: &mut Buffer) -> Result<()> {
        let keep = self.beta2 as f32;
        let take = 1.0 - keep;
        whole(MomentStep::Second { keep, take }, [gradients], second)
    }

    /// Returns the bias correction of the first moment after `step` steps: `1 / (1 − β₁ᵗ)`.
    pub(crate) fn unbias(&self, step: u64) -> f32 {
        (1.0 / (1.0 - self.beta1.powf(step as f64))) as f32
    }

    /// Stores the direction of Adam: `direction ← (m / (1 − β₁ᵗ)) / (√v̂ + ε)`, with t = `step` updates of both
    /// moments.
    pub(crate) fn direction(
        &self,
        step: u64,
        (first, second): (&Buffer, &Buffer),
        direction: &mut Buffer,
    ) -> Result<()> {
        let unbias = self.unbias(step);
        let root = self.root(step);
        let epsilon = self.epsilon as f32;
        whole(Heading::Adam { unbias, root, epsilon }, [first, second], direction)
    }

    /// Stores the direction with a frozen variance: `direction ← D m / (1 − β₁ᵗ)`, with t = `step`.
    pub(crate) fn frozen_direction(
        &self,
        step: u64,
        (first, scale): (&Buffer, &Buffer),
        direction: &mut Buffer,
    ) -> Result<()> {
        whole(Heading::Frozen { unbias: self.unbias(step) }, [first, scale], direction)
    }

    /// Returns √v̂ / √v.
    fn root(&self, updates: u64) -> f32 {
        (1.0 / (1.0 - self.beta2.powf(updates as f64))).sqrt() as f32
    }
}

/// Multiplies element by element: `to ← D to`.
fn multiply(scale: &Buffer, to: &mut Buffer) -> Result<()> {
    whole(MomentStep::Multiply, [scale], to)
}

/// Divides element by element, `to ← to / D`; 0 where D is 0.
pub(crate) fn divide(scale: &Buffer, to: &mut Buffer) -> Result<()> {
    whole(MomentStep::Divide, [scale], to)
}

/// Clears elements where D is 0.
fn silence(scale: &Buffer, to: &mut Buffer) -> Result<()> {
    whole(MomentStep::Silence, [scale], to)
}

/// Runs elementwise work on whole buffers.
fn whole<const R: usize>(work: impl Elementwise<f32, R, 1>, reads: [&Buffer; R], to: &Buffer) -> Result<()> {
    elementwise::each(vec![(0..to.len(), work)], reads, [to])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns D of six elements; the last two are a tensor without gradients.
    fn scale(frozen: Frozen, second: [f32; 6]) -> Vec<f32> {
        let tensor = |elements: std::ops::Range<usize>| Tensor {
            name: "p".into(),
            shape: vec![elements.len()],
            elements,
        };
        let tensors = [tensor(0..4), tensor(4..4), tensor(4..6)];
        let mut second = Buffer::from_slice(&second).unwrap();
        let moments = Moments { beta2: 0.0, ..Moments::default() };
        frozen.scale(&moments, &tensors, 1, &mut second).unwrap();
        second.host::<f32>().unwrap().to_vec()
    }

    fn assert_near(found: &[f32], expected: [f32; 6]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} and not {expected}");
        }
    }

    #[test]
    fn a_frozen_variance_is_adams_and_masks_what_has_none() {
        let found = scale(Frozen::papers(), [0.0, 16.0, 1e-20, 48.0, 0.0, 0.0]);
        assert_near(&found, [0.0, 0.25, 1.0 / (1e-10 + 1e-8), 1.0 / 48.0f32.sqrt(), 0.0, 0.0]);
    }

    #[test]
    fn a_floor_is_of_the_tensors_root_mean_square_and_dead_tensors_have_none() {
        let found = scale(Frozen { floor: 0.25, ..Frozen::default() }, [0.0, 16.0, 1e-20, 48.0, 0.0, 0.0]);
        // The root mean square of √v is 4.
        assert_near(&found, [1.0, 0.25, 1.0, 1.0 / 48.0f32.sqrt(), 0.0, 0.0]);
    }

    #[test]
    fn a_clip_is_of_what_the_scale_makes_of_gradients() {
        let scale = Buffer::from_slice(&[2.0f32, 0.5, 0.0]).unwrap();
        let mut gradients = Buffer::from_slice(&[-5.0f32, 5.0, 5.0]).unwrap();
        Frozen { clip: Some(4.0), ..Frozen::default() }.limit(&scale, &mut gradients).unwrap();
        assert_eq!(*gradients.host::<f32>().unwrap(), [-2.0, 5.0, 0.0]);
        Frozen::default().limit(&scale, &mut gradients).unwrap();
        assert_eq!(*gradients.host::<f32>().unwrap(), [-2.0, 5.0, 0.0]);
    }

    #[test]
    fn nan_in_gradients_or_in_their_scale_stays_nan() {
        let scale = Buffer::from_slice(&[f32::NAN, 2.0, f32::NAN, 0.0]).unwrap();
        for clip in [None, Some(4.0)] {
            let mut gradients = Buffer::from_slice(&[1.0, f32::NAN, f32::NAN, f32::NAN]).unwrap();
            Frozen { clip, ..Frozen::default() }.limit(&scale, &mut gradients).unwrap();
            let found = gradients.host::<f32>().unwrap();
            assert!(found[..3].iter().all(|g| g.is_nan()) && found[3] == 0.0, "{:?}", &found[..]);
        }
    }
}
