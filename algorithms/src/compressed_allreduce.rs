//! Compressed all-reduce: synchronous data-parallel SGD whose mean is made by any codec, with any feedback that suits
//! it.
//!
//! ```text
//! gᵢ ← γ gᵢ                             with error or two-level feedback, so that e is in units of x; γ = 1 without
//! ḡ  ← the mean of the gᵢ, encoded      by scatter-gather, all-gather or all-reduce, as `Averaging` says
//! x  ← optimizer(x, ḡ/γ)                the same on every rank
//! ```
//!
//! | codec | feedback | bytes for d elements, against 4d | where from |
//! |---|---|---|---|
//! | bf16, f16 | none | 2d | PyTorch's `bf16_compress_hook`, `fp16_compress_hook` |
//! | E4M3 | none | d + 4⌈d/B⌉ | Peng et al., "FP8-LM", 2023 |
//! | 8 bits by minimum and maximum | none | d + 8⌈d/B⌉ | `bytegrad` |
//! | QSGD of s levels | none: it is unbiased | d(1 + ⌈log₂(s+1)⌉)/8 + 4⌈d/B⌉ | Alistarh et al., "QSGD", NeurIPS 2017 |
//! | signs | error or two-level | d/8 + 4⌈d/B⌉ | Karimireddy et al., 2019; Zheng et al., "dist-EF-SGDM", 2019 |
//! | top-k | error or difference | see `topk-ef` | `topk-ef`, `ef21` |
//! | low rank | error | see `powersgd` | `powersgd` |
//!
//! What a dense codec encodes is encoded twice, by the ranks and by the owner of each chunk; error feedback makes up
//! for the first loss, two-level feedback for both. State: none without feedback; with it e, or hᵢ and h, of the
//! bucket's size, and of an n-th with two levels. Bytes sent per rank and step: with dense codecs 2(n−1)/n times the
//! sum of those of the table over the n chunks that a bucket is cut into, so 2(n−1)/n · 2d with bf16; with sparse ones
//! (n−1) times the sum over all tensors. Hierarchically, only what hosts send to each other is encoded.
//!
//! Default: bf16 without feedback. Replicas: bit-identical. Optimizer: the one of full precision, with its learning
//! rate; with error feedback and sparse codecs as those algorithms say. Elements: f32. Source: the papers of the table.

use crate::plugin::{Algorithm, Averager, Averaging, Bucket, Clipping, Context, Fields, Trigram};
use hexagram_logical::Result;
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::Feedback;
use hexagram_logical::spelling::Options;

/// Mean of the gradients, by any codec.
#[derive(Debug, Clone)]
pub struct CompressedAllReduce {
    /// Way to make the mean.
    pub averaging: Averaging,
}

impl Default for CompressedAllReduce {
    fn default() -> Self {
        CompressedAllReduce { averaging: Averaging::encoded(Half::BF16, Feedback::None) }
    }
}

impl Algorithm for CompressedAllReduce {
    type State = Averager;

    fn name(&self) -> &'static str {
        "compressed-allreduce"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() }
    }

    fn clipping(&self) -> Clipping {
        match self.averaging.feedback {
            Feedback::None => Clipping::Outcome,
            _ => Clipping::Together,
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.averaging.options(options)
    }

    fn source(&self) -> &'static str {
        "Alistarh et al., QSGD, NeurIPS 2017; Karimireddy et al., Error feedback fixes SignSGD, ICML 2019"
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averager> {
        self.averaging.state(context, bucket)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        averager: &mut Averager,
        bucket: &mut Bucket,
    ) -> Result<()> {
        averager.mean_of_gradients(context, &mut bucket.gradients).await
    }

    fn checkpoint(&self, averager: &mut Averager, fields: &mut Fields) -> Result<()> {
        averager.checkpoint("mean", fields)
    }
}
