//! Post-local SGD: synchronous SGD until a step, local SGD from there on.
//!
//! ```text
//! step < start       ḡ ← (1/n) Σᵢ gᵢ;  x ← optimizer(x, ḡ)          all-reduce of the gradients
//! step ≥ start       xᵢ ← optimizer(xᵢ, gᵢ)                          and after every H-th step:
//!                    xᵢ ← (1/n) Σⱼ xⱼ                                all-reduce of the parameters
//! ```
//!
//! In the beginning gradients are large and replicas would drift far apart; later, local steps cost nothing, and often
//! generalize better. start = 0 is local SGD, and without end it is synchronous SGD.
//!
//! Replicas are bit-identical until `start`, and then after every H-th step, counted from the first of all. State: that
//! of [`local_sgd`](crate::local_sgd), as are its codecs. Bytes sent per rank and step: 2(n−1)/n · S, or (n−1) · S if n
//! · S ≤ 64 KiB, S being the size of the gradients; after `start` 2(n−1)/n · S / H, or (n−1) · S / H if n · S ≤ 64 KiB.
//! Defaults: 100 steps, then H = 4, as in PyTorch's example. Trigram: centralized, synchronous, full precision. Source:
//! Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020.

use crate::gradient_all_reduce::GradientAllReduce;
use crate::local_sgd::LocalSgd;
use crate::plugin::{Algorithm, Averaging, Bucket, Context, Fields, Needs, ParameterMean, Trigram};
use hexagram_logical::Result;
use hexagram_logical::spelling::Options;

/// Mean of the gradients, then of the parameters every `period` steps.
#[derive(Debug, Clone)]
pub struct PostLocalSgd {
    /// Number of the algorithm's first steps, which are of synchronous SGD.
    pub start: u64,
    /// Number H of steps from one mean to the next; 1 or more.
    pub period: u64,
    /// Way to make the mean of the parameters. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for PostLocalSgd {
    fn default() -> Self {
        PostLocalSgd { start: 100, period: 4, averaging: Averaging::default() }
    }
}

impl PostLocalSgd {
    fn local(&self) -> LocalSgd {
        LocalSgd { period: self.period, averaging: self.averaging.clone() }
    }
}

impl Algorithm for PostLocalSgd {
    type State = ParameterMean;

    fn name(&self) -> &'static str {
        "post-local-sgd"
    }

    fn trigram(&self) -> Trigram {
        self.local().trigram()
    }

    fn keeps_replicas_identical(&self) -> bool {
        self.local().keeps_replicas_identical()
    }

    fn remembers_parameters(&self) -> bool {
        self.local().remembers_parameters()
    }

    fn needs(&self) -> Needs {
        self.local().needs()
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.start > 0).then(|| Self { start: 0, ..self.clone() })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("start", &mut self.start, .., "first steps, of synchronous SGD")?;
        options.field("period", &mut self.period, 1.., "H, steps from one mean to the next")?;
        self.averaging.options(options)
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn source(&self) -> &'static str {
        "Lin, Stich, Patel and Jaggi, Don't use large mini-batches, use local SGD, ICLR 2020"
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<ParameterMean> {
        self.local().state(context, bucket).await
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        _: &mut ParameterMean,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.own_step() >= self.start {
            return Ok(());
        }
        GradientAllReduce.gradients_ready(context, &mut (), bucket).await
    }

    async fn after_step(
        &self,
        context: &Context,
        mean: &mut ParameterMean,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.own_step() < self.start {
            return mean.begin(context, &bucket.parameters);
        }
        self.local().after_step(context, mean, bucket).await
    }

    fn checkpoint(&self, mean: &mut ParameterMean, fields: &mut Fields) -> Result<()> {
        mean.checkpoint(fields)
    }
}
