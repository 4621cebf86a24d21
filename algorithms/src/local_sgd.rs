//! Local SGD: every rank steps on its own, and every H steps all replicas are replaced by their mean.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! xᵢ ← (1/n) Σⱼ xⱼ                           after every H-th step: all-reduce of the parameters
//! ```
//!
//! H = 1 with plain SGD is synchronous SGD. The optimizer's memory (momentum) stays each rank's own. Bytes sent per
//! rank and step: 2(n−1)/n · S / H, or (n−1) · S / H if n · S ≤ 64 KiB, S being the size of the parameters. State:
//! none. With a codec ([`Averaging`]), changes since the last mean travel, as [`ParameterMean`] says, with the last
//! mean as the state, what its feedback remembers, and the bytes of
//! [`compressed_allreduce`](crate::compressed_allreduce) / H. Default: H = 4, which on small data costs no accuracy; 16
//! and more on large. Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019.

use crate::plugin::{Algorithm, Averaging, Bucket, Buckets, Context, Fields, Needs, ParameterMean, Trigram};
use hexagram_logical::Result;
use hexagram_logical::spelling::Options;

/// Mean of the parameters, every `period` steps.
#[derive(Debug, Clone)]
pub struct LocalSgd {
    /// Number H of steps from one mean to the next; 1 or more.
    pub period: u64,
    /// Way to make the mean. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for LocalSgd {
    fn default() -> Self {
        LocalSgd { period: 4, averaging: Averaging::default() }
    }
}

impl Algorithm for LocalSgd {
    type State = ParameterMean;

    fn name(&self) -> &'static str {
        "local-sgd"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, steps from one mean to the next")?;
        self.averaging.options(options)
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn source(&self) -> &'static str {
        "Stich, Local SGD converges fast and communicates little, ICLR 2019"
    }

    /// Returns false: replicas are equal only after every H-th step.
    fn keeps_replicas_identical(&self) -> bool {
        false
    }

    /// Returns true with a codec, whose changes are those since the last mean.
    fn remembers_parameters(&self) -> bool {
        !self.averaging.is_exact()
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::BySize, parameters: true }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<ParameterMean> {
        ParameterMean::new(&self.averaging, context, bucket)
    }

    async fn after_step(
        &self,
        context: &Context,
        mean: &mut ParameterMean,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.ends_round(self.period) {
            mean.meet(context, &mut bucket.parameters).await?;
        }
        Ok(())
    }

    fn checkpoint(&self, mean: &mut ParameterMean, fields: &mut Fields) -> Result<()> {
        mean.checkpoint(fields)
    }
}
