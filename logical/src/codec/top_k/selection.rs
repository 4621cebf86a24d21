//! Finds the largest elements of a run in one pass over it.

use crate::codec::{CodecError, NotFinite};
use hexagram_physical::device::kernels::LANES;
use hexagram_physical::device::kernels::reach::{MAGNITUDE, reaching, threshold};

/// Magnitude of infinity; above it is NaN.
const INFINITY: u32 = f32::INFINITY.to_bits();

/// Number of elements per step.
const BLOCK: usize = 4096;
/// Maximum number of elements in the sample for the first threshold.
const SAMPLE: usize = 1 << 14;
/// Minimum distance between two sampled elements.
const APART: usize = 16;

/// Candidates for the k largest elements.
pub(crate) struct Selection {
    k: usize,
    not_finite: NotFinite,
    /// Magnitude below which elements are not candidates.
    least: u32,
    /// Indices of the candidates, ascending.
    indices: Vec<usize>,
    magnitudes: Vec<u32>,
}

impl Selection {
    pub(crate) fn new(k: usize, not_finite: NotFinite) -> Self {
        Selection { k, not_finite, least: 0, indices: Vec::new(), magnitudes: Vec::new() }
    }

    /// Returns the indices of the k largest elements, in order.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] if NaN or infinity is refused and the run contains one, chosen or not.
    pub(crate) fn choose(mut self, from: &[f32]) -> Result<impl Iterator<Item = usize>, CodecError> {
        self.least = self.guess(from);
        self.collect(from)?;
        if self.indices.len() < self.k {
            self.least = 0;
            self.collect(from)?;
        }
        self.raise();
        Ok(self.indices.into_iter())
    }

    /// Returns a threshold that somewhat more than k elements reach, if the sample is representative.
    fn guess(&self, from: &[f32]) -> u32 {
        // Odd, so that a period of a power of two in the run does not hide elements.
        let stride = (from.len() / SAMPLE).max(APART) | 1;
        let sample: Vec<u32> = from.iter().step_by(stride).map(|x| x.to_bits() & MAGNITUDE).collect();
        let wanted = (self.k as f64 / from.len().max(1) as f64 * sample.len() as f64) as usize;
        let few = wanted + wanted / 8 + 3 * wanted.isqrt() + 2;
        if few >= sample.len() {
            return 0;
        }
        // NaN and infinity must always be candidates: they are refused, come first, or are replaced.
        threshold(few, few + few / 8, &sample).min(INFINITY)
    }

    /// Collects all elements that reach the threshold, which rises on the way.
    fn collect(&mut self, from: &[f32]) -> Result<(), CodecError> {
        self.indices.clear();
        self.magnitudes.clear();
        let room = 2 * self.k + BLOCK;
        let mut places = [0; BLOCK + LANES];
        for (number, block) in from.chunks(BLOCK).enumerate() {
            let count = reaching(self.least, block, &mut places);
            for place in &places[..count] {
                let place = *place as usize;
                self.admit(number * BLOCK + place, block[place])?;
            }
            if self.indices.len() > room {
                self.raise();
            }
        }
        Ok(())
    }

    #[inline]
    fn admit(&mut self, index: usize, value: f32) -> Result<(), CodecError> {
        let mut magnitude = value.to_bits() & MAGNITUDE;
        if magnitude >= INFINITY {
            match self.not_finite {
                NotFinite::Refuse => return Err(CodecError::NotFinite { index, value }),
                NotFinite::Propagate => {}
                NotFinite::Saturate if value.is_nan() => magnitude = 0,
                NotFinite::Saturate => magnitude = f32::MAX.to_bits(),
            }
        }
        if magnitude >= self.least {
            self.indices.push(index);
            self.magnitudes.push(magnitude);
        }
        Ok(())
    }

    /// Keeps the k largest candidates, or all if there are fewer; later elements must exceed the smallest.
    fn raise(&mut self) {
        if self.k == 0 {
            self.indices.clear();
        }
        if self.indices.len() <= self.k {
            return;
        }
        let smallest = threshold(self.k, self.k, &self.magnitudes);
        let mut equal = self.k - self.magnitudes.iter().filter(|magnitude| **magnitude > smallest).count();
        let mut kept = 0;
        for candidate in 0..self.indices.len() {
            let magnitude = self.magnitudes[candidate];
            let keep = magnitude > smallest || (magnitude == smallest && equal > 0);
            equal -= usize::from(keep && magnitude == smallest);
            self.indices[kept] = self.indices[candidate];
            self.magnitudes[kept] = magnitude;
            kept += usize::from(keep);
        }
        self.indices.truncate(kept);
        self.magnitudes.truncate(kept);
        // Infinity must remain a candidate because of NotFinite.
        self.least = (smallest + 1).min(INFINITY);
    }
}
