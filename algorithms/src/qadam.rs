//! One-bit Adam: Adam in full precision until its variance has settled, then with momenta of one bit per element.
//!
//! ```text
//! t ≤ W   g ← (1/n) Σᵢ gᵢ                                all-reduce in full precision
//!         x ← Adam(x, g), with its m and v
//! t = W   D ← 1 / (max(√v̂, φ rms(√v̂)) + ε)               from here on v and its bias correction are frozen
//! t > W   mᵢ ← β₁ m + (1 − β₁) gᵢ                        each rank with its own gradient
//!         m  ← C((1/n) Σᵢ C(mᵢ + eᵢ) + s)                eᵢ, s: the errors of ranks and of the owners of chunks
//!         x  ← x − γ D m / (1 − β₁ᵗ)
//! ```
//!
//! C is one bit per element with a scale for each block of B ([`Sign`], the mean of the magnitudes), or, as
//! `qadam-8bit`, eight ([`MinMax8`]). The bias correction of the first moment continues, like the first moment itself;
//! the formula of the paper has neither correction, which amounts to a different γ. Errors are stored in units of m, so
//! that γ may change.
//!
//! Three options of [`Frozen`] are not in the paper. All elements of a block get a momentum of one size, which D then
//! divides by deviations that differ by orders of magnitude, without limit close to 0. So the **floor** φ is 0.1 here:
//! on the digits, φ = 0 of the paper diverges at γ = 0.001 and 0.002, some 25 steps after the warm-up, and reaches 97.5
//! % at 0.0005, while φ = 0.1 reaches 98.9 % at 0.002. A **clip** of |D gᵢ| bounds elements that get their first
//! gradient after the warm-up, and **scaled** encodes D m instead of m, so that all elements of a block have similar
//! size: with both, no element steps further than with Adam, and the digits reach 98.3 %. Elements of a tensor without
//! any gradient so far have D = 0.
//!
//! State: m, v and e, three elements per parameter, and s, 1/n. Bytes sent per rank and step: those of
//! [all-reduce](crate::gradient_all_reduce) during the warm-up, then 2(n−1)/n · Σ (⌈c/8⌉ + 4⌈c/B⌉) over the n chunks of
//! c elements that a bucket is cut into, 1/31.5 of full precision, or with 8 bits 2(n−1)/n · Σ (c + 8⌈c/B⌉) over the n
//! chunks of c elements, 1/4. Hierarchically, only messages between hosts are encoded.
//!
//! Defaults: W = 100 as in Bagua, enough for some thousand steps; the paper takes 15 to 25 % of long trainings. B =
//! 2048. Replicas: bit-identical. Use it with plain SGD and a learning rate for Adam; the weight decay of SGD is then
//! decoupled, as in AdamW, before and after the switch. Elements: f32. Source: Tang et al., "1-bit Adam", ICML 2021;
//! Bagua calls it QAdam.

use crate::optimizer::moments::{Frozen, Moments};
use crate::plugin::{About, Algorithm, Bucket, Clipping, Context, Fields, Optimizers, Trigram, check_f32};
use hexagram_logical::codec::{Codec, MinMax8, Sign};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Adam whose momenta are communicated in few bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QAdam {
    /// Size of an element after the warm-up.
    pub bits: Bits,
    /// Number W of steps in full precision, at least 1.
    pub warmup: u64,
    /// Constants β₁, β₂ and ε.
    pub moments: Moments,
    /// Use of the frozen variance. Default: a floor of 0.1, otherwise as in the paper.
    pub frozen: Frozen,
    /// Number B of elements that share a scale or a range.
    pub block: usize,
}

/// Size of an element of a momentum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// One bit, its sign: `qadam`.
    One,
    /// Eight bits, its position in the range of its block: `qadam-8bit`.
    Eight,
}

impl Default for QAdam {
    fn default() -> Self {
        QAdam {
            bits: Bits::One,
            warmup: 100,
            moments: Moments::default(),
            frozen: Frozen::default(),
            block: 2048,
        }
    }
}

impl QAdam {
    /// Creates `qadam-8bit`, with its defaults.
    pub fn eight_bits() -> Self {
        QAdam { bits: Bits::Eight, ..QAdam::default() }
    }
}

/// State of one bucket.
pub struct QAdamState {
    /// Number of steps so far.
    steps: u64,
    /// First moment m.
    first: Buffer,
    /// Second moment v; after the switch D.
    second: Buffer,
    encoding: Encoding,
}

impl Algorithm for QAdam {
    type State = QAdamState;

    fn about(&self) -> About {
        About::new(
            match self.bits {
                Bits::One => "qadam",
                Bits::Eight => "qadam-8bit",
            },
            Trigram { centralized: true, synchronous: true, full_precision: false },
        )
        .period(1)
        .source("Tang et al., 1-bit Adam, ICML 2021")
        .clipping(Clipping::Together)
        .optimizers(Optimizers::Sgd(
            "it leaves the direction of Adam, which a second momentum or scale would change",
        ))
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.warmup > 1).then_some(Self { warmup: 1, ..*self })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("warmup", &mut self.warmup, 1.., "W, first steps, in full precision")?;
        self.moments.options(options)?;
        self.frozen.options(options)?;
        options.field("block", &mut self.block, 1.., "B, elements that share a scale or a range")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<QAdamState> {
        check_f32(bucket)?;
        let codec: Arc<dyn Codec> = match self.bits {
            Bits::One => Arc::new(Sign::in_blocks(self.block)),
            Bits::Eight => Arc::new(MinMax8::in_blocks(self.block)),
        };
        Ok(QAdamState {
            steps: 0,
            first: context.zeros_like(&bucket.gradients)?,
            second: context.zeros_like(&bucket.gradients)?,
            encoding: context.encoding(codec, Feedback::TwoLevel),
        })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut QAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.steps += 1;
        let QAdamState { steps, first, second, encoding } = state;
        if *steps <= self.warmup {
            context.mean(&mut bucket.gradients).await?;
            self.moments.first(&bucket.gradients, first)?;
            self.moments.second(&bucket.gradients, second)?;
            return self.moments.direction(*steps, (first, second), &mut bucket.gradients);
        }
        if *steps == self.warmup + 1 {
            self.frozen.scale(&self.moments, &bucket.tensors, self.warmup, second)?;
        }
        let scale = &*second;
        self.frozen.limit(scale, &mut bucket.gradients)?;
        self.moments.first(&bucket.gradients, first)?;
        self.frozen.mean(context, scale, first, encoding).await?;
        self.moments.frozen_direction(*steps, (first, scale), &mut bucket.gradients)
    }

    fn checkpoint(&self, state: &mut QAdamState, fields: &mut Fields) -> Result<()> {
        fields.shared(|fields| {
            fields.count("steps", &mut state.steps)?;
            fields.buffer("first-moment", &mut state.first)?;
            fields.buffer("second-moment", &mut state.second)
        })?;
        fields.averaged(|fields| fields.encoding("encoding", &mut state.encoding))
    }
}
