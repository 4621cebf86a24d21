//! SparseLoCo: DiLoCo that sends the largest elements of its changes in two bits, with the unsent part of each rank as
//! outer momentum.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! after every H-th step:
//!     eᵢ ← β eᵢ + (θ − xᵢ)
//!     cᵢ ← Q(the k largest of eᵢ in each chunk)   chunks of C elements of a tensor; Q: two bits, means of four bins
//!     eᵢ ← eᵢ − cᵢ
//!     θ  ← θ − η (1/n) Σᵢ cᵢ                 all-gather of the cᵢ
//!     xᵢ ← θ
//! ```
//!
//! Elements on which all changes agree grow in e until they are sent, as in a momentum; β removes those that are never
//! large. θ is the same on all ranks, and so are the replicas after every H-th step. β = 1 and cᵢ = eᵢ is DiLoCo with
//! plain outer SGD. Q and the layout of a message are in the code of [`TopK`]; other codecs can be used instead.
//!
//! State: θ and e, 2 S, S being the size of the parameters. Bytes sent per rank and step: (n−1) / H · Σ (16 + ⌈k/4⌉ +
//! ⌈(k l + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1) over the tensors of d elements, of which k are sent (the sum over its chunks of the
//! share, rounded up in each), with l = ⌊log₂(d/k)⌋. Hierarchically, only messages between hosts are encoded. Elements:
//! f32. e is in units of the parameters, so that γ may change.
//!
//! Defaults: β = 0.95, η = 1, C = 4096 of which 64 are sent, and four bins over 6σ, as in the code of the source (where
//! a chunk is 64 × 64 elements of a matrix, here 4096 consecutive ones, and an index has 12 bits, here 8); H = 16 as in
//! [`diloco`](crate::diloco), the source has 15 to 250. Trigram: centralized, synchronous, low precision. Source:
//! Sarfi, Thérien, Lidin and Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025 (2508.15706),
//! with AdamW inside.

use crate::diloco::{DiLoCoState, Outer};
use crate::plugin::{About, Algorithm, Averaging, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::codec::TopK;
use hexagram_logical::encoding::Feedback;
use hexagram_logical::options_text::{Options, above};

/// An outer step with the largest elements of the changes of the ranks.
#[derive(Debug, Clone)]
pub struct SparseLoCo {
    /// Number H of local steps in a round.
    pub period: u64,
    /// Outer learning rate η.
    pub learning_rate: f64,
    /// Method of computing the mean change. Default: 1/64 of every 4096 elements in two bits, keeping 0.95 of the
    /// error.
    pub averaging: Averaging,
}

impl Default for SparseLoCo {
    fn default() -> Self {
        let averaging = Averaging::encoded(TopK::sparse_loco(), Feedback::Decaying(0.95));
        SparseLoCo { period: 16, learning_rate: 1.0, averaging }
    }
}

impl SparseLoCo {
    fn outer(&self) -> Outer {
        Outer { learning_rate: self.learning_rate, momentum: 0.0 }
    }
}

impl Algorithm for SparseLoCo {
    type State = DiLoCoState;

    fn about(&self) -> About {
        About::new(
            "sparse-loco",
            Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() },
        )
        .source("Sarfi, Thérien, Lidin and Belilovsky, SparseLoCo, 2025")
        // Replicas are equal only after every H-th step.
        .keeps_replicas_identical(false)
        // θ.
        .remembers_parameters(true)
        .period(self.period)
        .needs(Needs { buckets: Buckets::BySize, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, local steps of a round")?;
        options.field("learning_rate", &mut self.learning_rate, above(0.0), "η, outer learning rate")?;
        self.averaging.options(options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<DiLoCoState> {
        DiLoCoState::new(&self.outer(), &self.averaging, context, bucket)
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut DiLoCoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.after_step(self.period, &self.outer(), context, bucket).await
    }

    fn checkpoint(&self, state: &mut DiLoCoState, fields: &mut Fields) -> Result<()> {
        state.checkpoint(fields)
    }
}
