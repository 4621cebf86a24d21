//! Adam's moments, for algorithms that communicate them: exact steps first, and then a variance that no longer changes.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g       v ← β₂ v + (1 − β₂) g²       v̂ = v / (1 − β₂ᵏ), k: updates of v
//! d ← (m / (1 − β₁ᵗ)) / (√v̂ + ε)                          Adam's direction in step t
//! D ← 1 / (max(√v̂, φ rms(√v̂)) + ε)                        once v is frozen; rms over the elements of a tensor
//! ```
//!
//! Two things keep elements from blowing up that had next to no gradient while v was measured. φ, the floor: without it
//! their first one would be divided by ε. And |D g| is clipped to 1/√(1 − β₂), which it never exceeds in Adam, where v
//! has seen g. Of a tensor without any gradient so far, D is 0: it stays where it is.
//!
//! Sources: Kingma and Ba, "Adam", ICLR 2015; Tang et al., "1-bit Adam", ICML 2021 (the frozen variance).

use crate::plugin::{Tensor, check_option};
use hexagram_logical::{Buffer, Result};

/// Constants of Adam, and the floor of a frozen variance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Decay β₁ of the first moment, in [0, 1). Default: 0.9.
    pub beta1: f64,
    /// Decay β₂ of the second moment, in [0, 1). Default: 0.999.
    pub beta2: f64,
    /// Constant ε in the denominator, above 0. Default: 1e-8.
    pub epsilon: f64,
    /// Floor φ: the least √v̂, once frozen, as a part of the tensor's root mean square. Default: 0.1.
    pub floor: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, floor: 0.1 }
    }
}

impl Moments {
    /// Returns itself, if its constants can be used.
    pub(crate) fn checked(self) -> Result<Self> {
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        let positive = |x: f64| x.is_finite() && x > 0.0;
        check_option(below_one(self.beta1), "β₁", &self.beta1, "0 or more, and less than 1")?;
        check_option(below_one(self.beta2), "β₂", &self.beta2, "0 or more, and less than 1")?;
        check_option(positive(self.epsilon), "ε", &self.epsilon, "something above 0")?;
        check_option(positive(self.floor), "the variance's floor", &self.floor, "something above 0")?;
        Ok(self)
    }

    /// Updates the first moment: `m ← β₁ m + (1 − β₁) g`.
    pub(crate) fn first(&self, gradients: &Buffer, first: &mut Buffer) -> Result<()> {
        let keep = self.beta1 as f32;
        let take = 1.0 - keep;
        let gradients = gradients.host::<f32>()?;
        let mut first = first.host_mut::<f32>()?;
        first.iter_mut().zip(gradients.iter()).for_each(|(m, g)| *m = keep * *m + take * g);
        Ok(())
    }

    /// Updates the first moment in units of the direction: `z ← β₁ z + (1 − β₁) clip(D g)`.
    pub(crate) fn first_scaled(&self, gradients: &Buffer, scale: &Buffer, first: &mut Buffer) -> Result<()> {
        let keep = self.beta1 as f32;
        let take = 1.0 - keep;
        let largest = self.largest();
        let gradients = gradients.host::<f32>()?;
        let scale = scale.host::<f32>()?;
        let mut first = first.host_mut::<f32>()?;
        for ((z, d), g) in first.iter_mut().zip(scale.iter()).zip(gradients.iter()) {
            *z = keep * *z + take * (d * g).clamp(-largest, largest);
        }
        Ok(())
    }

    /// Returns the bound that |D g| is clipped to.
    fn largest(&self) -> f32 {
        (1.0 / (1.0 - self.beta2).sqrt()) as f32
    }

    /// Updates the second moment: `v ← β₂ v + (1 − β₂) g²`.
    pub(crate) fn second(&self, gradients: &Buffer, second: &mut Buffer) -> Result<()> {
        let keep = self.beta2 as f32;
        let take = 1.0 - keep;
        let gradients = gradients.host::<f32>()?;
        let mut second = second.host_mut::<f32>()?;
        second.iter_mut().zip(gradients.iter()).for_each(|(v, g)| *v = keep * *v + take * g * g);
        Ok(())
    }

    /// Returns the factor that undoes the first moment's bias after `step` steps: `1 / (1 − β₁ᵗ)`.
    pub(crate) fn unbias(&self, step: u64) -> f32 {
        (1.0 / (1.0 - self.beta1.powf(step as f64))) as f32
    }

    /// Stores Adam's direction: `direction ← (m / (1 − β₁ᵗ)) / (√v̂ + ε)`, `step` being t and `updates` those of v.
    pub(crate) fn direction(
        &self,
        (step, updates): (u64, u64),
        (first, second): (&Buffer, &Buffer),
        direction: &mut Buffer,
    ) -> Result<()> {
        let unbias = self.unbias(step);
        let root = self.root(updates);
        let epsilon = self.epsilon as f32;
        let first = first.host::<f32>()?;
        let second = second.host::<f32>()?;
        let mut direction = direction.host_mut::<f32>()?;
        for ((d, m), v) in direction.iter_mut().zip(first.iter()).zip(second.iter()) {
            *d = unbias * m / (v.sqrt() * root + epsilon);
        }
        Ok(())
    }

    /// Returns √v̂ / √v.
    fn root(&self, updates: u64) -> f32 {
        (1.0 / (1.0 - self.beta2.powf(updates as f64))).sqrt() as f32
    }

    /// Preconditions the gradients: `g ← clip(D g)`.
    pub(crate) fn precondition(&self, scale: &Buffer, gradients: &mut Buffer) -> Result<()> {
        let largest = self.largest();
        let scale = scale.host::<f32>()?;
        let mut gradients = gradients.host_mut::<f32>()?;
        gradients.iter_mut().zip(scale.iter()).for_each(|(g, d)| *g = (d * *g).clamp(-largest, largest));
        Ok(())
    }

    /// Stores the direction of preconditioned gradients p: `m ← β₁ m + (1 − β₁) p / D`, then `p ← D m / (1 − β₁ᵗ)`.
    pub(crate) fn direction_of_preconditioned(
        &self,
        step: u64,
        (scale, first): (&Buffer, &mut Buffer),
        direction: &mut Buffer,
    ) -> Result<()> {
        let keep = self.beta1 as f32;
        let unbias = self.unbias(step);
        let take = 1.0 - keep;
        let scale = scale.host::<f32>()?;
        let mut first = first.host_mut::<f32>()?;
        let mut direction = direction.host_mut::<f32>()?;
        for ((p, m), d) in direction.iter_mut().zip(first.iter_mut()).zip(scale.iter()) {
            *m = keep * *m + if *d == 0.0 { 0.0 } else { take * *p / d };
            *p = unbias * d * *m;
        }
        Ok(())
    }

    /// Replaces the second moment by the frozen scale, tensor by tensor: `v ← D`.
    pub(crate) fn freeze(&self, tensors: &[Tensor], updates: u64, second: &mut Buffer) -> Result<()> {
        let root = self.root(updates);
        let epsilon = self.epsilon as f32;
        let mut second = second.host_mut::<f32>()?;
        for tensor in tensors {
            let values = &mut second[tensor.elements.clone()];
            let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
            let least = (self.floor * (sum / values.len() as f64).sqrt()) as f32 * root;
            match sum == 0.0 {
                true => values.fill(0.0),
                false => values.iter_mut().for_each(|v| *v = 1.0 / ((v.sqrt() * root).max(least) + epsilon)),
            }
        }
        Ok(())
    }
}

/// Stores the direction of a scaled moment: `direction ← weight · z`; 0 where nothing is known of a tensor's variance.
pub(crate) fn directions(
    tensors: &[Tensor],
    weight: f32,
    (scaled, scale): (&Buffer, &Buffer),
    direction: &mut Buffer,
) -> Result<()> {
    let all = scaled.host::<f32>()?;
    let mut to = direction.host_mut::<f32>()?;
    to.iter_mut().zip(all.iter()).for_each(|(d, z)| *d = weight * z);
    drop(to);
    silence(tensors, scale, direction)
}

/// Clears the direction where nothing is known of a tensor's variance.
pub(crate) fn silence(tensors: &[Tensor], scale: &Buffer, direction: &mut Buffer) -> Result<()> {
    let scale = scale.host::<f32>()?;
    let mut direction = direction.host_mut::<f32>()?;
    for elements in tensors.iter().map(|tensor| tensor.elements.clone()) {
        if !elements.is_empty() && scale[elements.start] == 0.0 {
            direction[elements].fill(0.0);
        }
    }
    Ok(())
}

/// Multiplies element by element: `to ← factor · to`.
pub(crate) fn multiply(factor: &Buffer, to: &mut Buffer) -> Result<()> {
    let factor = factor.host::<f32>()?;
    let mut to = to.host_mut::<f32>()?;
    to.iter_mut().zip(factor.iter()).for_each(|(x, factor)| *x *= factor);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_variance_has_a_floor_and_dead_tensors_have_none() {
        let tensor = |elements: std::ops::Range<usize>| Tensor {
            name: "p".into(),
            shape: vec![elements.len()],
            elements,
        };
        let tensors = [tensor(0..4), tensor(4..4), tensor(4..6)];
        let mut second = Buffer::from_slice(&[0.0f32, 16.0, 1e-20, 48.0, 0.0, 0.0]).unwrap();
        let moments = Moments { beta2: 0.0, floor: 0.25, ..Moments::default() };
        moments.freeze(&tensors, 1, &mut second).unwrap();
        // The root mean square of √v is 4.
        let found = second.host::<f32>().unwrap().to_vec();
        for (found, expected) in found.iter().zip([1.0, 0.25, 1.0, 1.0 / 48.0f32.sqrt(), 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} and not {expected}");
        }
        let scaled = Buffer::from_slice(&[3.0f32; 6]).unwrap();
        let mut direction = Buffer::from_slice(&[9.0f32; 6]).unwrap();
        directions(&tensors, 2.0, (&scaled, &second), &mut direction).unwrap();
        assert_eq!(*direction.host::<f32>().unwrap(), [6.0, 6.0, 6.0, 6.0, 0.0, 0.0]);
    }

    #[test]
    fn constants_out_of_range_are_refused() {
        let good = Moments::default();
        good.checked().unwrap();
        for bad in [
            Moments { beta1: 1.0, ..good },
            Moments { beta2: f64::NAN, ..good },
            Moments { epsilon: 0.0, ..good },
            Moments { floor: f64::INFINITY, ..good },
        ] {
            bad.checked().unwrap_err();
        }
    }
}
