//! ByteGrad: synchronous data-parallel SGD whose gradients travel as 8 bits a number.
//!
//! ```text
//! cᵢ ← Q(gᵢ)                       each rank's gradient, in a message for the owner of each chunk
//! c  ← Q((1/n) Σᵢ Q⁻¹(cᵢ))          on the owner, for everyone
//! x  ← optimizer(x, Q⁻¹(c))        the same on every rank
//! ```
//!
//! Q gives every number of a block one of 256 values between the block's smallest and largest ([`MinMax8`]). It rounds
//! to the nearest, so that the result is biased, twice, by at most 1/510 of a block's range each time; there is no
//! error feedback, and so no proof of convergence: where gradients are so small beside others of their block that they
//! round to nothing, take `qadam-8bit`. In practice 8 bits are fine enough to train as full precision does, which makes
//! this the first thing to try on a slow network.
//!
//! State: none. With blocks of B elements, bytes sent per rank and step: 2(n−1)/n · Σ (c + 8⌈c/B⌉) over the n chunks of
//! c elements that a bucket is cut into: 1/4 of full precision. Hierarchically, only what hosts send to each other is
//! encoded. Default: B = 2048, which one outlier spoils; Bagua has one range for a whole chunk.
//!
//! Replicas: bit-identical. Optimizer: the one of full precision, with its learning rate. Elements: f32. Source: Bagua,
//! Gan et al., VLDB 2022.

use crate::plugin::{About, Algorithm, Bucket, Context, Trigram, check_f32};
use hexagram_logical::Result;
use hexagram_logical::codec::MinMax8;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::spelling::Options;
use std::sync::Arc;

/// Mean of the gradients, in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteGrad {
    /// Number B of elements that share a range.
    pub block: usize,
}

impl Default for ByteGrad {
    fn default() -> Self {
        ByteGrad { block: 2048 }
    }
}

impl Algorithm for ByteGrad {
    type State = Encoding;

    fn about(&self) -> About {
        About::new("bytegrad", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .source("Gan et al., Bagua: scaling up distributed learning with system relaxations, VLDB 2022")
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("block", &mut self.block, 1.., "B, elements that share a range")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Encoding> {
        check_f32(bucket)?;
        Ok(context.encoding(Arc::new(MinMax8::in_blocks(self.block)), Feedback::None))
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        encoding: &mut Encoding,
        bucket: &mut Bucket,
    ) -> Result<()> {
        context.mean_encoded(&mut bucket.gradients, encoding).await
    }
}
