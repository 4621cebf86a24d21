//! Local SGD: every rank steps on its own, and every H steps all replicas are replaced by their mean.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! xᵢ ← (1/n) Σⱼ xⱼ                           after every H-th step: all-reduce of the parameters
//! ```
//!
//! H = 1 with plain SGD is synchronous SGD. Each rank keeps its own optimizer state (momentum). Bytes sent per rank and
//! step: 2(n−1)/n · S / H, or (n−1) · S / H if n · S ≤ 64 KiB, S being the size of the parameters. State: none. With a
//! codec ([`Averaging`]), ranks send their changes since the last mean ([`ParameterMean`]); the state is the last mean
//! and the feedback, and the bytes are those of [`compressed_allreduce`](crate::compressed_allreduce) / H. Default: H =
//! 4, which costs no accuracy on small data; use 16 and more on large data. Source: Stich, "Local SGD converges fast
//! and communicates little", ICLR 2019.
//!
//! # `post-local-sgd`
//!
//! [`LocalSgd::post`] starts with steps of synchronous SGD: `ḡ ← (1/n) Σᵢ gᵢ; x ← optimizer(x, ḡ)`. In the beginning
//! gradients are large and replicas would drift far apart; later, local steps do no harm, and often generalize better.
//! start = 0 is local SGD, start = ∞ synchronous SGD. Replicas are bit-identical until `start`, and then after every
//! H-th step, counted from the first step. Bytes sent per rank and step: before `start` 2(n−1)/n · S, or (n−1) · S if n
//! · S ≤ 64 KiB, S being the size of the gradients. Defaults: 100 steps, then H = 4, as in the example of PyTorch.
//! Source: Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020.

use crate::plugin::{
    About, Algorithm, Averaging, Bucket, Buckets, Context, Fields, Needs, ParameterMean, Trigram,
};
use hexagram_logical::Result;
use hexagram_logical::options_text::Options;

/// Mean of the parameters, every `period` steps.
#[derive(Debug, Clone)]
pub struct LocalSgd {
    /// Number of initial steps of synchronous SGD: an option of `post-local-sgd`; `None` for `local-sgd`.
    pub start: Option<u64>,
    /// Number H of steps from one mean to the next, at least 1.
    pub period: u64,
    /// Method of computing the mean. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for LocalSgd {
    fn default() -> Self {
        LocalSgd { start: None, period: 4, averaging: Averaging::default() }
    }
}

impl LocalSgd {
    /// Creates `post-local-sgd`, whose first `start` steps are synchronous SGD.
    pub fn post(start: u64) -> Self {
        LocalSgd { start: Some(start), ..LocalSgd::default() }
    }

    fn is_synchronous(&self, context: &Context) -> bool {
        self.start.is_some_and(|start| context.own_step() < start)
    }
}

impl Algorithm for LocalSgd {
    type State = ParameterMean;

    fn about(&self) -> About {
        About::new(
            if self.start.is_some() { "post-local-sgd" } else { "local-sgd" },
            Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() },
        )
        .source(match self.start {
            None => "Stich, Local SGD converges fast and communicates little, ICLR 2019",
            Some(_) => "Lin, Stich, Patel and Jaggi, Don't use large mini-batches, use local SGD, ICLR 2020",
        })
        // Replicas are equal only after every H-th step.
        .keeps_replicas_identical(false)
        // With a codec, which encodes changes since the last mean.
        .remembers_parameters(!self.averaging.is_exact())
        .period(self.period)
        .needs(Needs { buckets: Buckets::BySize, parameters: true })
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.start > Some(0)).then(|| Self { start: Some(0), ..self.clone() })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        if let Some(start) = &mut self.start {
            options.field("start", start, .., "first steps, of synchronous SGD")?;
        }
        options.field("period", &mut self.period, 1.., "H, steps from one mean to the next")?;
        self.averaging.options(options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<ParameterMean> {
        ParameterMean::new(&self.averaging, context, bucket)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        _: &mut ParameterMean,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if self.is_synchronous(context) {
            context.mean(&mut bucket.gradients).await?;
        }
        Ok(())
    }

    async fn after_step(
        &self,
        context: &Context,
        mean: &mut ParameterMean,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if self.is_synchronous(context) {
            return mean.begin(context, &bucket.parameters);
        }
        if context.ends_round(self.period) {
            mean.meet(context, &mut bucket.parameters).await?;
        }
        Ok(())
    }

    fn checkpoint(&self, mean: &mut ParameterMean, fields: &mut Fields) -> Result<()> {
        mean.checkpoint(fields)
    }
}
