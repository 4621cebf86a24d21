//! PowerSGD: gradients that are matrices travel as products of two thin ones, found by one step of power iteration.
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

use crate::plugin::{Algorithm, Averager, Averaging, Bucket, Clipping, Context, Fields, MeanCodec, Trigram};
use hexagram_logical::Result;
use hexagram_logical::encoding::Feedback;
use hexagram_logical::spelling::Options;

/// Mean of the gradients in low rank, with error feedback.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerSgd {
    /// Rank r of the approximation, at least 1.
    pub rank: usize,
    /// Number of times by which a matrix has to be larger than its factors to be compressed, at least 1.
    pub saving: f64,
    /// Number of the algorithm's first steps, which are plain all-reduces.
    pub start: u64,
}

impl Default for PowerSgd {
    fn default() -> Self {
        PowerSgd { rank: 2, saving: 2.0, start: 10 }
    }
}

impl Algorithm for PowerSgd {
    type State = Averager;

    fn name(&self) -> &'static str {
        "powersgd"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: false }
    }

    fn clipping(&self) -> Clipping {
        Clipping::Together
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.start > 0).then_some(Self { start: 0, ..*self })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("rank", &mut self.rank, 1.., "r, rank of the approximation")?;
        options.field("saving", &mut self.saving, 1.0.., "least ratio of a matrix to its factors")?;
        options.field("start", &mut self.start, 0.., "steps of plain all-reduce at the beginning")
    }

    fn source(&self) -> &'static str {
        "Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019"
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averager> {
        let codec = MeanCodec::LowRank { rank: self.rank, saving: self.saving };
        Averaging { codec, feedback: Feedback::Error }.state(context, bucket)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        averager: &mut Averager,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.own_step() < self.start {
            return context.mean(&mut bucket.gradients).await;
        }
        averager.mean_of_gradients(context, &mut bucket.gradients).await
    }

    fn checkpoint(&self, averager: &mut Averager, fields: &mut Fields) -> Result<()> {
        averager.checkpoint("encoding", fields)
    }
}
