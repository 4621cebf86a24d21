//! ByteGrad: synchronous data-parallel SGD whose gradients are sent in 8 bits per element.
//!
//! ```text
//! cᵢ ← Q(gᵢ)                       gradient of each rank, sent to the owner of each chunk
//! c  ← Q((1/n) Σᵢ Q⁻¹(cᵢ))          on the owner, sent to all
//! x  ← optimizer(x, Q⁻¹(c))        the same on every rank
//! ```
//!
//! Q gives every number of a block one of 256 values between the block's smallest and largest ([`MinMax8`]). It rounds
//! to nearest, so the result is biased, twice, by at most 1/510 of the range of a block each time. It has no error
//! feedback, and so no proof of convergence: if gradients are so small compared to others of their block that they
//! round to zero, use `qadam-8bit`. In practice 8 bits are as accurate as full precision, so this is the first
//! algorithm to try on a slow network.
//!
//! State: none. With blocks of B elements, bytes sent per rank and step: 2(n−1)/n · Σ (c + 8⌈c/B⌉) over the n chunks of
//! c elements that a bucket is cut into: 1/4 of full precision. Hierarchically, only messages between hosts are
//! encoded. Default: B = 2048, in which one outlier makes all elements of its block coarse; Bagua uses one range per
//! chunk.
//!
//! Replicas: bit-identical. Optimizer: the same as in full precision, with the same learning rate. Elements: f32.
//! Source: Bagua, Gan et al., VLDB 2022.

use crate::plugin::{About, Algorithm, Bucket, Context, Trigram, check_f32};
use hexagram_logical::Result;
use hexagram_logical::codec::MinMax8;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use std::sync::Arc;

/// Mean of the gradients, in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteGrad {
    /// Number B of elements that share a range.
    pub block: usize,
}

impl Default for ByteGrad {
    fn default() -> Self {
        ByteGrad::in_blocks(2048)
    }
}

impl ByteGrad {
    /// Uses a range of values for each `block` elements, and the default of any other option.
    pub fn in_blocks(block: usize) -> ByteGrad {
        ByteGrad { block }
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
