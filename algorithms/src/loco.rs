//! LoCo: gradients in four bits, corrected by the mean error of earlier steps.
//!
//! ```text
//! hᵢ ← gᵢ + eᵢ
//! cᵢ ← C(hᵢ)                               four bits per number, in blocks; sent to the owner of each chunk
//! eᵢ ← β eᵢ + (1 − β) (hᵢ − cᵢ)            and every T steps eᵢ ← 0
//! ḡ  ← C((1/n) Σᵢ cᵢ + s)                  on the owner, sent to all; s ← its error
//! x  ← optimizer(x, ḡ)                     the same on every rank
//! ```
//!
//! C gives every number of a block one of 15 values up to the largest of the block ([`Int4`]). e is a moving average of
//! errors, where error feedback has their sum (β = 0 here): it adds the expected error, so that the mean of the
//! messages is the mean of the gradients, and no step has to correct many others. So it suits Adam, whose second moment
//! such bursts would inflate. Every T steps e is cleared, since it stems from old gradients.
//!
//! The paper and its implementation in DeepSpeed keep e in eight bits, here it is f32. In their sharded training a mean
//! stays with the owner of a chunk; here all ranks have whole replicas, so the mean is sent back, in four bits too,
//! with an error feedback s of the owner. Without e, the first half is the quantized reduce-scatter of ZeRO++, β = 1
//! with e = 0.
//!
//! State: e, of the size of the bucket, and s, 1/n of it. With blocks of B elements, bytes sent per rank and step:
//! 2(n−1)/n · Σ (⌈c/2⌉ + 4⌈c/B⌉) over the n chunks of c elements that a bucket is cut into: .13 of full precision with
//! B = 128. Hierarchically, only messages between hosts are encoded. e is in units of gradients, not of steps: a sudden
//! change of γ scales both alike.
//!
//! Defaults: β = .8 and T = 1024, those of DeepSpeed's option `zeropp_loco_param` (pull request 6730, of the paper's
//! first author; removed since), whose kernels update e by the rule above, within hosts and between them. Its counter
//! for T counts tensors; ours counts steps, as documented there. B = 128 is our choice; DeepSpeed uses one block per
//! row or column of a matrix. Replicas: bit-identical. Optimizer: the same as in full precision, with the same learning
//! rate. Elements: f32. Trigram: centralized, synchronous, low precision. Sources: Xie, Lin, Toh and Zhou, "LoCo:
//! low-bit communication adaptor for large-scale model training", 2024 (2407.04480); Wang et al., "ZeRO++", 2023
//! (2306.10209).

use crate::plugin::{About, Algorithm, Bucket, Clipping, Context, Fields, Trigram, check_f32};
use hexagram_logical::codec::Int4;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Mean of the gradients in four bits, with the mean of earlier errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoCo {
    /// Share β of the error that is kept in each step, in [0, 1).
    pub memory: f64,
    /// Number T of steps after which the error is cleared, at least 1.
    pub reset: u64,
    /// Number B of elements that share a scale, at least 1.
    pub block: usize,
}

impl Default for LoCo {
    fn default() -> Self {
        LoCo { memory: 0.8, reset: 1024, block: 128 }
    }
}

/// State of one bucket.
pub struct LoCoState {
    /// Number of steps so far.
    steps: u64,
    /// Encoding that stores e as its error.
    encoding: Encoding,
}

impl Algorithm for LoCo {
    type State = LoCoState;

    fn about(&self) -> About {
        About::new("loco", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .source("Xie, Lin, Toh and Zhou, LoCo, 2024; Wang et al., ZeRO++, 2023")
            .clipping(Clipping::Together)
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "memory",
            &mut self.memory,
            0.0..1.0,
            "β, share of the error that is kept in each step",
        )?;
        options.field("reset", &mut self.reset, 1.., "T, steps after which the error is cleared")?;
        options.field("block", &mut self.block, 1.., "B, elements that share a scale")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<LoCoState> {
        check_f32(bucket)?;
        let codec = Arc::new(Int4::in_blocks(self.block));
        Ok(LoCoState { steps: 0, encoding: context.encoding(codec, Feedback::TwoLevel) })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut LoCoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let LoCoState { steps, encoding } = state;
        let before = error(encoding).map(Buffer::copied).transpose()?;
        context.mean_encoded(&mut bucket.gradients, encoding).await?;
        if let Some(error) = error(encoding) {
            match before {
                Some(before) => context.blend(1.0 - self.memory, error, self.memory, &before)?,
                None => context.scale(1.0 - self.memory, error)?,
            }
            *steps += 1;
            if steps.is_multiple_of(self.reset) {
                error.write_all()?.clear();
            }
        }
        Ok(())
    }

    fn checkpoint(&self, state: &mut LoCoState, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| {
            fields.count("steps", &mut state.steps)?;
            fields.encoding("encoding", &mut state.encoding)
        })
    }
}

/// Returns e, on ranks that encode, from their first step on.
fn error(encoding: &Encoding) -> Option<&Buffer> {
    encoding.state().get("error")
}
