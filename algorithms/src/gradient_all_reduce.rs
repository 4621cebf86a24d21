//! Synchronous data-parallel SGD: every rank steps with the mean of all gradients.
//!
//! ```text
//! ḡ ← (1/n) Σᵢ gᵢ           all-reduce of each bucket, as soon as it is complete
//! x ← optimizer(x, ḡ)       the same on every rank
//! ```
//!
//! n ranks with batches of b equal one rank with batches of n·b on the same samples. State: none. Bytes sent per rank
//! and step: 2(n−1)/n · S, or (n−1) · S if n · S ≤ 64 KiB, S being the size of the gradients. Source: the baseline of
//! every paper on the subject; as a bucketed, overlapped implementation, Li et al., "PyTorch Distributed", VLDB 2020.

use crate::plugin::Bucket;
use crate::plugin::Context;
use crate::plugin::{About, Algorithm, Trigram};
use hexagram_logical::Result;

/// Mean of the gradients, exact and the same on every rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct GradientAllReduce;

impl Algorithm for GradientAllReduce {
    type State = ();

    fn about(&self) -> About {
        About::new(
            "gradient-allreduce",
            Trigram { centralized: true, synchronous: true, full_precision: true },
        )
        .period(1)
        .source("Li et al., PyTorch Distributed, VLDB 2020")
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        context.mean(&mut bucket.gradients).await
    }
}
