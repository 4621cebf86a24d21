//! Top-k with error feedback: every rank sends the largest elements of what it has not sent yet.
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

use crate::plugin::{Algorithm, Averager, Averaging, Bucket, Clipping, Context, Fields, Trigram};
use hexagram_logical::Result;
use hexagram_logical::codec::{Keep, TopK};
use hexagram_logical::encoding::Feedback;
use hexagram_logical::spelling::{Options, above};

/// Mean of the gradients' largest elements, with error feedback.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKEf {
    /// Share k/d of a tensor's elements that are sent: above 0, and at most 1.
    pub fraction: f64,
}

impl Default for TopKEf {
    fn default() -> Self {
        TopKEf { fraction: 0.02 }
    }
}

impl Algorithm for TopKEf {
    type State = Averager;

    fn name(&self) -> &'static str {
        "topk-ef"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: false }
    }

    fn clipping(&self) -> Clipping {
        Clipping::Together
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "fraction",
            &mut self.fraction,
            above(0.0).up_to(1.0),
            "k/d, share of a tensor that is sent",
        )
    }

    fn source(&self) -> &'static str {
        "Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018"
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Averager> {
        let codec = TopK::new(Keep::Ratio(self.fraction))?;
        Averaging::encoded(codec, Feedback::Error).state(context, bucket)
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
        averager.checkpoint("encoding", fields)
    }
}
