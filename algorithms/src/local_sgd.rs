//! Local SGD: every rank steps on its own, and every H steps all replicas are replaced by their mean.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! xᵢ ← (1/n) Σⱼ xⱼ                           after every H-th step: all-reduce of the parameters
//! ```
//!
//! H = 1 with plain SGD is synchronous SGD. The optimizer's memory (momentum) stays each rank's own. Bytes sent per rank
//! and step: 2(n−1)/n · S / H, S being the size of the parameters. State: none. Default: H = 4, which on small data costs
//! no accuracy; 16 and more on large. Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019.

use crate::plugin::{Algorithm, Bucket, Buckets, Context, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::spelling::Options;

/// Mean of the parameters, every `period` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSgd {
    /// Number H of steps from one mean to the next; 1 or more.
    pub period: u64,
}

impl Default for LocalSgd {
    fn default() -> Self {
        LocalSgd { period: 4 }
    }
}

impl Algorithm for LocalSgd {
    type State = ();

    fn name(&self) -> &'static str {
        "local-sgd"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, steps from one mean to the next")
    }

    fn source(&self) -> &'static str {
        "Stich, Local SGD converges fast and communicates little, ICLR 2019"
    }

    /// Returns false: replicas are equal only after every H-th step.
    fn keeps_replicas_identical(&self) -> bool {
        false
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::BySize, parameters: true }
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn after_step(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        if (context.step() + 1).is_multiple_of(self.period) {
            context.mean(&mut bucket.parameters).await?;
        }
        Ok(())
    }
}
