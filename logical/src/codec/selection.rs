//! Finds the largest elements of a run in one pass over it. Open this for how top-k selects.

use super::{CodecError, NotFinite};
use hexagram_physical::device::kernels::reach::reaching;

/// The magnitude of an element, as a number of the same order; above [`INFINITY`] it is NaN.
const MAGNITUDE: u32 = u32::MAX >> 1;
const INFINITY: u32 = 0x7f80_0000;

/// Elements that are looked at together.
const BLOCK: usize = 4096;
/// Elements that the first threshold is guessed from, at most.
const SAMPLE: usize = 1 << 16;

/// The candidates for the k largest elements.
pub(super) struct Selection {
    k: usize,
    not_finite: NotFinite,
    /// Elements below this magnitude are no candidates any more.
    least: u32,
    /// In the order of indices.
    indices: Vec<usize>,
    magnitudes: Vec<u32>,
    spare: Vec<u32>,
}

impl Selection {
    pub(super) fn new(k: usize, not_finite: NotFinite) -> Self {
        let (indices, magnitudes, spare) = (Vec::new(), Vec::new(), Vec::new());
        Selection { k, not_finite, least: 0, indices, magnitudes, spare }
    }

    /// The indices of the k largest elements, in order.
    ///
    /// # Errors
    /// [`CodecError::NotFinite`] if such are refused and there is one, whether chosen or not.
    pub(super) fn choose(mut self, from: &[f32]) -> Result<impl Iterator<Item = usize>, CodecError> {
        self.least = self.guess(from);
        self.collect(from)?;
        if self.indices.len() < self.k {
            self.least = 0;
            self.collect(from)?;
        }
        self.raise();
        Ok(self.indices.into_iter())
    }

    /// A threshold that somewhat more than k elements of the sample's like reach.
    fn guess(&mut self, from: &[f32]) -> u32 {
        let stride = (from.len() / SAMPLE).max(8) | 1;
        let sample = from.iter().step_by(stride).map(|x| x.to_bits() & MAGNITUDE);
        self.spare.clear();
        self.spare.extend(sample);
        let wanted = (self.k as f64 / from.len().max(1) as f64 * self.spare.len() as f64) as usize;
        let above = wanted + wanted / 8 + 3 * wanted.isqrt() + 2;
        if above >= self.spare.len() {
            return 0;
        }
        let place = self.spare.len() - above;
        let (_, guess, _) = self.spare.select_nth_unstable(place);
        // NaN and infinity must always be candidates: they are refused, or come first, or are replaced.
        (*guess).min(INFINITY)
    }

    /// Makes candidates of all elements that reach the threshold, which rises on the way.
    fn collect(&mut self, from: &[f32]) -> Result<(), CodecError> {
        self.indices.clear();
        self.magnitudes.clear();
        let room = 2 * self.k + BLOCK;
        for (number, block) in from.chunks(BLOCK).enumerate() {
            let mut places = [0; BLOCK];
            let count = reaching(self.least, block, &mut places);
            for place in &places[..count] {
                let place = usize::from(*place);
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

    /// Keeps the k largest candidates, or all if there are fewer; later elements have to be larger than the smallest.
    fn raise(&mut self) {
        let Some(place) = self.indices.len().checked_sub(self.k) else { return };
        if self.k == 0 {
            self.indices.clear();
            return;
        }
        self.spare.clone_from(&self.magnitudes);
        let (_, smallest, larger) = self.spare.select_nth_unstable(place);
        let smallest = *smallest;
        let mut equal = self.k - larger.iter().filter(|magnitude| **magnitude > smallest).count();
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
        // Infinity must remain a candidate for the sake of NotFinite.
        self.least = (smallest + 1).min(INFINITY);
    }
}
