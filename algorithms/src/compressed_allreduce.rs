//! Compressed all-reduce: synchronous data-parallel SGD whose mean is computed with any codec and any feedback that
//! suits it.
//!
//! ```text
//! gᵢ ← γ gᵢ                             with error or two-level feedback, so that e is in units of x; γ = 1 without
//! ḡ  ← the mean of the gᵢ, encoded      by scatter-gather, all-gather or all-reduce: see `Averaging`
//! x  ← optimizer(x, ḡ/γ)                the same on every rank
//! ```
//!
//! | codec | feedback | bytes for d elements (f32: 4d) | source |
//! |---|---|---|---|
//! | bf16, f16 | none | 2d | PyTorch's `bf16_compress_hook`, `fp16_compress_hook` |
//! | E4M3 | none | d + 4⌈d/B⌉ | Peng et al., "FP8-LM", 2023 |
//! | 8 bits by minimum and maximum | none | d + 8⌈d/B⌉ | `bytegrad` |
//! | QSGD of s levels | none: it is unbiased | d(1 + ⌈log₂(s+1)⌉)/8 + 4⌈d/B⌉ | Alistarh et al., "QSGD", NeurIPS 2017 |
//! | signs | error or two-level | d/8 + 4⌈d/B⌉ | Karimireddy et al., 2019; Zheng et al., "dist-EF-SGDM", 2019 |
//! | top-k | error or difference | see `topk-ef` | `topk-ef`, `ef21` |
//! | low rank | error | see `powersgd` | `powersgd` |
//!
//! Values are encoded twice with a dense codec, by the ranks and by the owner of each chunk; error feedback makes up
//! for the first loss, two-level feedback for both. State: none without feedback; error feedback has e, difference
//! feedback hᵢ and h, each of the size of the bucket; two-level feedback has 1/n of that in addition. Bytes sent per
//! rank and step: with dense codecs 2(n−1)/n times the bytes of the table, summed over the n chunks that a bucket is
//! cut into, for example 2(n−1)/n · 2d with bf16; with sparse ones (n−1) times the sum over all tensors.
//! Hierarchically, only messages between hosts are encoded.
//!
//! Default: bf16 without feedback. Replicas: bit-identical. Optimizer: the same as in full precision, with the same
//! learning rate; for error feedback and sparse codecs, see those algorithms. Elements: f32. Sources: the papers in the
//! table.
//!
//! # `topk-ef`
//!
//! [`CompressedAllReduce::TopK`]: every rank sends the largest elements of its unsent gradient.
//!
//! ```text
//! eᵢ ← eᵢ + γ gᵢ
//! cᵢ ← the k elements of eᵢ of the largest magnitude, in each tensor
//! eᵢ ← eᵢ − cᵢ
//! x  ← x − (1/n) Σᵢ cᵢ                       all-gather of the cᵢ
//! ```
//!
//! Nothing is lost, only delayed: x − (1/n) Σᵢ eᵢ equals the parameters of SGD with the same gradients. k = d is
//! synchronous SGD. e is in units of x, so that γ may change.
//!
//! Use it with plain SGD: momentum would multiply the delayed elements (`dgc` has the remedy). If all elements of a
//! tensor have the same size, each is sent every d/k steps, and moves d/k times as far: on quadratics of curvature L it
//! converges up to γ L d/k = 2, and ranks whose minima are D apart leave an error of some γ L D/4 · d/k in x. Replicas
//! stay bit-identical. State: e, of the size of the bucket. Bytes sent per rank and step: n−1 messages, each with the
//! sum over all tensors of 4k + ⌈(k l + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1, with d elements in the tensor, k = ⌈d · fraction⌉ and l
//! = ⌊log₂(d/k)⌋; f32. That is less than an all-reduce sends if k/d is below some 1.6/n. Vectors are treated like all
//! other tensors: at least one element of a bias is sent. Default: 2 % of the elements, which costs no accuracy on
//! small data; large models tolerate .1 %. Trigram: centralized, synchronous, low precision. Sources: Aji and Heafield,
//! "Sparse communication for distributed gradient descent", EMNLP 2017; Stich, Cordonnier and Jaggi, "Sparsified SGD
//! with memory", NeurIPS 2018.
//!
//! # `powersgd`
//!
//! [`CompressedAllReduce::LowRank`]: gradients that are matrices travel as products of two thin ones, found by one step
//! of power iteration.
//!
//! ```text
//! eᵢ ← eᵢ + γ gᵢ
//! P  ← orthogonalized (1/n) Σᵢ eᵢ Q          all-reduce of r · rows elements per matrix
//! Qᵢ ← eᵢᵀ P
//! Q  ← (1/n) Σᵢ Qᵢ                           all-reduce of r · columns elements per matrix, and of all other tensors
//! x  ← x − P Qᵀ                              other tensors: x ← x − (γ/n) Σᵢ gᵢ
//! eᵢ ← eᵢ − P Qᵢᵀ
//! ```
//!
//! Q is kept: the iteration continues from step to step (warm start). A tensor with more than two dimensions is a
//! matrix of its first by all others; vectors, and matrices with saving · r · (rows + columns) ≥ rows · columns, are
//! sent uncompressed, and have no e. That is the rule of PyTorch, with its 2 (`min_compression_rate`); the authors'
//! code, which sends one of the factors a step, counts half of r · (rows + columns), so that its 2 is 1 here. The first
//! steps are plain all-reduces, because Q needs gradients that do not change too fast to find its directions.
//!
//! e is the residual of this rank's own Qᵢ, as in the paper (its algorithm 2). The authors' code subtracts P Qᵀ of the
//! mean: x moves the same, but every eᵢ then grows by gᵢ − ḡ in each step, until rounding disturbs x.
//!
//! Use it with SGD, with or without momentum. Replicas stay bit-identical. State: e, of the size of the bucket, and r ·
//! (rows + columns) elements per matrix. Bytes sent per rank and step, after the start: two all-reduces, of 4r Σ rows
//! and of 4 (r Σ columns + uncompressed elements), each sends 2(n−1)/n times its size, or n−1 times if n times its size
//! is 64 KiB at most; f32. Defaults: r = 2, with which the paper loses nothing on ResNet-18; 10 plain steps. Trigram:
//! centralized, synchronous, low precision. Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank
//! gradient compression for distributed optimization", NeurIPS 2019.

use crate::plugin::{
    About, Algorithm, Averager, Averaging, Bucket, Clipping, Context, Fields, MeanCodec, Trigram,
};
use hexagram_logical::Result;
use hexagram_logical::codec::{Half, Keep, TopK};
use hexagram_logical::encoding::Feedback;
use hexagram_logical::options_text::{Options, above};

/// Mean of the gradients, with any codec. Presets are algorithms with a name and options of their own.
#[derive(Debug, Clone)]
pub enum CompressedAllReduce {
    /// `compressed-allreduce`: a codec and its feedback.
    Any(Averaging),
    /// `topk-ef`: the largest elements, with error feedback.
    TopK {
        /// Share k/d of the elements of a tensor to send, above 0 and at most 1.
        fraction: f64,
    },
    /// `powersgd`: low-rank matrices, with error feedback.
    LowRank {
        /// Rank r of the approximation, at least 1.
        rank: usize,
        /// A matrix is compressed only if it is this many times larger than its factors; at least 1.
        saving: f64,
        /// Number of plain all-reduces at the start, in steps.
        start: u64,
    },
}

impl Default for CompressedAllReduce {
    fn default() -> Self {
        CompressedAllReduce::Any(Averaging::encoded(Half::BF16, Feedback::None))
    }
}

impl CompressedAllReduce {
    /// Creates `topk-ef`, with its defaults.
    pub fn top_k() -> Self {
        CompressedAllReduce::TopK { fraction: 0.02 }
    }

    /// Creates `powersgd`, with its defaults.
    pub fn low_rank() -> Self {
        CompressedAllReduce::LowRank { rank: 2, saving: 2.0, start: 10 }
    }

    fn averaging(&self) -> Result<Averaging> {
        Ok(match self {
            Self::Any(averaging) => averaging.clone(),
            Self::TopK { fraction } => {
                Averaging::encoded(TopK::new(Keep::Ratio(*fraction))?, Feedback::Error)
            }
            Self::LowRank { rank, saving, .. } => {
                let codec = MeanCodec::LowRank { rank: *rank, saving: *saving };
                Averaging { codec, feedback: Feedback::Error }
            }
        })
    }
}

impl Algorithm for CompressedAllReduce {
    type State = Averager;

    fn about(&self) -> About {
        let (name, source) = match self {
            Self::Any(_) => (
                "compressed-allreduce",
                "Alistarh et al., QSGD, NeurIPS 2017; Karimireddy et al., Error feedback fixes SignSGD, ICML 2019",
            ),
            Self::TopK { .. } => (
                "topk-ef",
                "Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018",
            ),
            Self::LowRank { .. } => ("powersgd", "Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019"),
        };
        let full_precision = matches!(self, Self::Any(averaging) if averaging.is_exact());
        About::new(name, Trigram { centralized: true, synchronous: true, full_precision })
            .period(1)
            .source(source)
            .needs_learning_rate(match self {
                Self::Any(averaging) => averaging.feedback.error_kept().is_some(),
                Self::TopK { .. } | Self::LowRank { .. } => true,
            })
            .clipping(match self {
                Self::Any(Averaging { feedback: Feedback::None, .. }) => Clipping::Outcome,
                _ => Clipping::Together,
            })
    }

    fn without_warm_up(&self) -> Option<Self> {
        match *self {
            Self::LowRank { rank, saving, start: 1.. } => Some(Self::LowRank { rank, saving, start: 0 }),
            _ => None,
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        match self {
            Self::Any(averaging) => averaging.options(options),
            Self::TopK { fraction } => {
                let about = "k/d, share of a tensor to send";
                options.field("fraction", fraction, above(0.0).up_to(1.0), about)
            }
            Self::LowRank { rank, saving, start } => {
                options.field("rank", rank, 1.., "r, rank of the approximation")?;
                options.field("saving", saving, 1.0.., "least ratio of a matrix to its factors")?;
                options.field("start", start, 0.., "steps of plain all-reduce at the beginning")
            }
        }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averager> {
        self.averaging()?.state(context, bucket)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        averager: &mut Averager,
        bucket: &mut Bucket,
    ) -> Result<()> {
        match self {
            Self::LowRank { start, .. } if context.own_step() < *start => {
                context.mean(&mut bucket.gradients).await
            }
            _ => averager.mean_of_gradients(context, &mut bucket.gradients).await,
        }
    }

    fn checkpoint(&self, averager: &mut Averager, fields: &mut Fields) -> Result<()> {
        averager.checkpoint(if matches!(self, Self::Any(_)) { "mean" } else { "encoding" }, fields)
    }
}
