//! Top-k: the k elements of the largest magnitude; the rest counts as 0 (Aji and Heafield 2017; Stich et al. 2018).
//! Of equal magnitudes, the lower index comes first.
//!
//! ```text
//! C(x)_i = x_i if |x_i| is among the k largest, else 0        ‖C(x) − x‖² ≤ (1 − k/d) ‖x‖²
//!
//! message = k values in the order of indices, places          16 + ⌈k/4⌉ or 4k bytes, and those of places
//! places  = Elias' and Fano's code of the indices             ⌈(kl + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1 bytes, l = ⌊log₂(d/k)⌋
//! ```
//!
//! Values are exact f32, or two bits each: the mean of one of the four bins of a message (see `bins`). With
//! **chunks**, the k largest of every chunk are kept, the last chunk being the rest. k is then the sum over chunks,
//! and every part of a run has its share (SparseLoCo, 2025, keeps 64 of every 4096, with 12 bits per index, where
//! this code takes 8).
//!
//! Selection reads the input once: elements that reach the threshold are candidates. The threshold begins with a
//! guess from a sample, and rises to the k-th candidate whenever the number of candidates reaches twice k. If the
//! guess was too high, selection restarts without one, so that the result never depends on the sample. A GPU counts
//! magnitudes by their upper bits instead: see `top_k.cu`.

#[cfg(feature = "cuda")]
mod cuda;
mod index_coding;
mod selection;
mod two_bit;

use super::shared::blocks::expect_len;
use super::shared::fields::{KeepValues, not_finite_field};
use super::shared::not_finite::saturated;
use super::{Codec, CodecError, Keep, Noise, NotFinite, Properties};
use crate::options_text::{NamedOptions, Options, one_of, or};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::Float;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use index_coding::IndexLayout;
use selection::Selection;
use std::sync::Arc;
use two_bit::Bins;

/// Codec that keeps the largest elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    keep: Keep,
    /// Number of elements of a chunk; the whole run, if `None`.
    chunk: Option<usize>,
    values: KeptValues,
    not_finite: NotFinite,
}

/// Form in which values are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum KeptValues {
    /// Exact f32.
    #[default]
    Whole,
    /// Two bits, and the means of four bins.
    Bins,
}

impl TopK {
    /// Creates a codec that keeps `keep` elements of a run exactly, and refuses NaN and infinity.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] if no elements are kept, as in `top-k(0%)`.
    pub fn new(keep: Keep) -> Result<Self> {
        TopK { keep, ..Self::default() }.checked()
    }

    /// Creates the codec of SparseLoCo: a 64th of every 4096 elements in two bits.
    pub fn sparse_loco() -> Self {
        let keep = Keep::Ratio(1.0 / 64.0);
        TopK { keep, ..Self::default() }.in_chunks(4096).in_two_bits()
    }

    /// Applies the selection to every `size` elements, at least 1, instead of the whole run.
    #[must_use]
    pub fn in_chunks(self, size: usize) -> Self {
        TopK { chunk: Some(size), ..self }
    }

    /// Sends values in two bits: each becomes the mean of its bin.
    #[must_use]
    pub fn in_two_bits(self) -> Self {
        TopK { values: KeptValues::Bins, ..self }
    }

    /// Sets the treatment of NaN and infinity. They propagate unchanged, and before all other elements; of more than
    /// k, k propagate. In two bits they make all values NaN or infinite.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        TopK { not_finite, ..self }
    }

    /// Returns the number of elements of a chunk of a run, not 0.
    fn chunk_len(&self, len: usize) -> usize {
        self.chunk.unwrap_or(len).max(1)
    }

    /// Returns the number k of elements that are kept of a run.
    fn kept(&self, len: usize) -> usize {
        let size = self.chunk_len(len);
        (len / size).saturating_mul(self.keep.of(size)) + self.keep.of(len % size)
    }

    /// Returns the size of k values, in bytes.
    fn values_len(&self, k: usize) -> usize {
        match self.values {
            KeptValues::Whole => 4 * k,
            KeptValues::Bins => two_bit::bytes(k),
        }
    }

    /// Returns the places of the kept elements, in order.
    fn choose(&self, from: &[f32]) -> Result<Vec<usize>, CodecError> {
        let size = self.chunk_len(from.len());
        let mut chosen = Vec::with_capacity(self.kept(from.len()));
        for (number, chunk) in from.chunks(size).enumerate() {
            let start = number * size;
            let places = Selection::new(self.keep.of(chunk.len()), self.not_finite).choose(chunk);
            chosen.extend(places.map_err(|error| error.counted_from(start))?.map(|place| start + place));
        }
        Ok(chosen)
    }

    fn encode_values(&self, from: &[f32], chosen: &[usize], to: &mut [u8]) {
        match self.values {
            KeptValues::Whole => {
                for (place, value) in chosen.iter().zip(to.as_chunks_mut().0) {
                    let x = from[*place];
                    let saturate = self.not_finite == NotFinite::Saturate;
                    *value = if saturate { saturated(x, f32::MAX) } else { x }.to_le_bytes();
                }
            }
            KeptValues::Bins => {
                let values: Vec<f32> = chosen.iter().map(|place| from[*place]).collect();
                two_bit::encode(&values, self.not_finite, to);
            }
        }
    }
}

impl Default for TopK {
    /// Returns the codec that keeps 1 % of the elements of a run exactly.
    fn default() -> Self {
        let not_finite = NotFinite::default();
        TopK { keep: Keep::Ratio(0.01), chunk: None, values: KeptValues::Whole, not_finite }
    }
}

impl NamedOptions for TopK {
    fn keyword(&self) -> &'static str {
        "top-k"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.positional("keep", &mut self.keep, KeepValues, "elements that are kept")?;
        options.field(
            "chunk",
            &mut self.chunk,
            or("whole", 1..),
            "elements of a chunk; each chunk keeps its share",
        )?;
        let forms = [("32", KeptValues::Whole), ("2", KeptValues::Bins)];
        options.field("bits", &mut self.values, one_of(&forms), "size of a value")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for TopK {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    /// Returns δ = k/d of the selection alone. The means of bins have none: it decreases with k.
    fn properties(&self) -> Properties {
        let contraction = match self.values {
            KeptValues::Whole => self.keep.contraction(self.chunk),
            KeptValues::Bins => None,
        };
        Properties { unbiased: false, contraction, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        let k = self.kept(len);
        self.values_len(k) + IndexLayout::new(k, len).bytes()
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let chosen = self.choose(from)?;
        let bytes = self.encoded_len(from.len());
        let (values, places) = to[..bytes].split_at_mut(self.values_len(chosen.len()));
        self.encode_values(from, &chosen, values);
        IndexLayout::new(chosen.len(), from.len()).encode(&chosen, places);
        Ok(bytes)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let len = to.len();
        let k = self.kept(len);
        expect_len(from, self.encoded_len(len), to)?;
        if k == 0 {
            return Ok(());
        }
        let places = IndexLayout::new(k, len);
        let (values, indices) = from.split_at(self.values_len(k));
        let mut add = |place: usize, value: f32| to[place] = (to[place] + weight * value).canonical();
        match self.values {
            KeptValues::Whole => {
                let values = values.as_chunks().0;
                places.decode(indices, len, |number, place| add(place, f32::from_le_bytes(values[number])))
            }
            KeptValues::Bins => {
                let bins = Bins::new(values)?;
                places.decode(indices, len, |number, place| add(place, bins.number(number)))
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(self.encoding(len))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(self.decoding(len, weight))
    }
}
