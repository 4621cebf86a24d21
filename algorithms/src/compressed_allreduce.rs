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
//!
//! # `topk-ef`
//!
//! [`CompressedAllReduce::TopK`]: every rank sends the largest elements of what it has not sent yet.
//!
//! ```text
//! eᵢ ← eᵢ + γ gᵢ
//! cᵢ ← the k elements of eᵢ of the largest magnitude, in each tensor
//! eᵢ ← eᵢ − cᵢ
//! x  ← x − (1/n) Σᵢ cᵢ                       all-gather of the cᵢ
//! ```
//!
//! Nothing is lost, only late: x − (1/n) Σᵢ eᵢ is where SGD would be with the same gradients. k = d is synchronous SGD.
//! e is in units of x, so that γ may change.
//!
//! To be run with plain SGD: a momentum would multiply what arrives late (`dgc` has the remedy). Where all elements of
//! a tensor are alike, each is sent every d/k steps, and steps d/k times as far: on quadratics of curvature L it
//! converges up to γ L d/k = 2, and ranks whose minima are D apart leave x some γ L D/4 · d/k off. Replicas stay
//! bit-identical. State: e, of the bucket's size. Bytes sent per rank and step: n−1 messages of the sum over all
//! tensors of 4k + ⌈(k l + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1, with d elements in the tensor, k = ⌈d · fraction⌉ and l =
//! ⌊log₂(d/k)⌋; f32. That is less than an all-reduce sends if k/d is below some 1.6/n. Vectors are tensors like all
//! others: of a bias one element is sent at least. Default: 2 % of the elements, which on small data costs no accuracy;
//! large models bear .1 %. Trigram: centralized, synchronous, low precision. Sources: Aji and Heafield, "Sparse
//! communication for distributed gradient descent", EMNLP 2017; Stich, Cordonnier and Jaggi, "Sparsified SGD with
//! memory", NeurIPS 2018.
//!
//! # `powersgd`
//!
//! [`CompressedAllReduce::LowRank`]: gradients that are matrices travel as products of two thin ones, found by one step
//! of power iteration.
//!
//! ```text
//! eᵢ ← eᵢ + γ gᵢ
//! P  ← orthogonalized (1/n) Σᵢ eᵢ Q          all-reduce of r · rows elements a matrix
//! Qᵢ ← eᵢᵀ P
//! Q  ← (1/n) Σᵢ Qᵢ                           all-reduce of r · columns elements a matrix, and of all other tensors
//! x  ← x − P Qᵀ                              other tensors: x ← x − (γ/n) Σᵢ gᵢ
//! eᵢ ← eᵢ − P Qᵢᵀ
//! ```
//!
//! Q is remembered: the iteration goes on from step to step (warm start). A tensor with more than two dimensions is a
//! matrix of its first by all others; vectors, and matrices with saving · r · (rows + columns) ≥ rows · columns, go as
//! they are, and have no e. That is PyTorch's rule, with its 2 (`min_compression_rate`); the authors' code, which sends
//! one of the factors a step, counts half of r · (rows + columns), so that its 2 is 1 here. The first steps are plain
//! all-reduces, because Q has to find its directions from gradients that do not change too fast.
//!
//! e is what this rank's own Qᵢ leaves, as in the paper (its algorithm 2). The authors' code subtracts P Qᵀ, the
//! mean's: x moves the same, but every eᵢ then grows by gᵢ − ḡ in each step, until rounding it disturbs x.
//!
//! To be run with SGD, with momentum or without. Replicas stay bit-identical. State: e, of the bucket's size, and r ·
//! (rows + columns) elements a matrix. Bytes sent per rank and step, after the start: two all-reduces, of 4r Σ rows and
//! of 4 (r Σ columns + what goes as it is), each with 2(n−1)/n times its size, or n−1 times if n times its size is 64
//! KiB at most; f32. Defaults: r = 2, with which the paper loses nothing on ResNet-18; 10 plain steps. Trigram:
//! centralized, synchronous, low precision. Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank
//! gradient compression for distributed optimization", NeurIPS 2019.

use crate::plugin::{
    About, Algorithm, Averager, Averaging, Bucket, Clipping, Context, Fields, MeanCodec, Trigram,
};
use hexagram_logical::Result;
use hexagram_logical::codec::{Half, Keep, TopK};
use hexagram_logical::encoding::Feedback;
use hexagram_logical::spelling::{Options, above};

/// Mean of the gradients, by any codec. Presets are algorithms with a name and options of their own.
#[derive(Debug, Clone)]
pub enum CompressedAllReduce {
    /// `compressed-allreduce`: a codec, and what becomes of its error.
    Any(Averaging),
    /// `topk-ef`: the largest elements, with error feedback.
    TopK {
        /// Share k/d of a tensor's elements that are sent: above 0, and at most 1.
        fraction: f64,
    },
    /// `powersgd`: matrices in low rank, with error feedback.
    LowRank {
        /// Rank r of the approximation, at least 1.
        rank: usize,
        /// Number of times by which a matrix has to be larger than its factors to be compressed, at least 1.
        saving: f64,
        /// Number of the algorithm's first steps, which are plain all-reduces.
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
                let about = "k/d, share of a tensor that is sent";
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
