//! DeMo: every rank keeps its momentum local, and sends only its strongest frequencies.
//!
//! ```text
//! Δᵢ ← β Δᵢ + γ DCT(gᵢ)                      blockwise and orthonormal; Δ is kept as coefficients
//! qᵢ ← the k coefficients of the largest magnitude of each block of Δᵢ
//! Δᵢ ← Δᵢ − qᵢ
//! Q  ← mean of the qᵢ over its senders, for each coefficient             all-gather of the qᵢ
//! x  ← x − γ sign(DCT⁻¹(Q))
//! ```
//!
//! A block is 64 × 64 elements of a weight, viewed as a matrix of its first dimension by all others, or 64 elements of
//! a vector; or fewer: the largest divisors of the tensor sizes. The transform is linear and orthonormal. So Δ is
//! stored as coefficients, and a step transforms only the gradient; the paper stores Δ as elements.
//!
//! Use it with plain SGD, optionally with weight decay, at the learning rate of a sign method: about 1/100 of that of
//! SGD. Replicas stay bit-identical, if all ranks run the same program on the same kind of machine: the sign must be
//! computed from the same bits. State: Δ and the memory of the codec, twice the size of the bucket. Bytes sent per rank
//! and step: (n−1) · 6 · Σ min(k, elements of the block) over all blocks; f32. Defaults: β = .999 and k = 32, the
//! authors', which for blocks of 64 × 64 is .8 % of the coefficients. Trigram: centralized, synchronous, low precision.
//! Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", 2024.

mod blocks;
mod codec;
mod dct;

use crate::plugin::{About, Algorithm, Bucket, Clipping, Context, Fields, Optimizers, Trigram, check_f32};
use blocks::DctBlocks;
use codec::LargestOfEach;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use hexagram_logical::runtime::Work;
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result};
use std::sync::Arc;

/// Signs of the strongest frequencies of all ranks' momenta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeMo {
    /// Decay β of the momentum, at least 0 and at most 1.
    pub decay: f64,
    /// Number k of coefficients to send per block, at least 1.
    pub keep: usize,
}

impl Default for DeMo {
    fn default() -> Self {
        DeMo { decay: 0.999, keep: 32 }
    }
}

/// State of one bucket.
pub struct DeMoState {
    blocks: DctBlocks,
    /// Coefficients that are sent and received, followed by the number of senders of each.
    exchanged: Buffer,
    /// Encoding that stores Δ as the first half of its error; the other half belongs to the codec, and is unused.
    encoding: Encoding,
}

impl Algorithm for DeMo {
    type State = DeMoState;

    fn about(&self) -> About {
        About::new("demo", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .needs_learning_rate(true)
            .source("Peng, Quesnelle and Kingma, DeMo: decoupled momentum optimization, 2024")
            .clipping(Clipping::Together)
            .optimizers(Optimizers::Sgd("it leaves signs, and its momentum is before the exchange"))
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("decay", &mut self.decay, 0.0..=1.0, "β, decay of the momentum")?;
        options.field("keep", &mut self.keep, 1.., "k, coefficients that a block keeps")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<DeMoState> {
        check_f32(bucket)?;
        let blocks = DctBlocks::new(&bucket.tensors);
        let codec = Arc::new(LargestOfEach::new(self.keep, blocks.places().collect()));
        let exchanged = bucket.gradients.zeroed_same_device(bucket.gradients.dtype(), 2 * bucket.len())?;
        Ok(DeMoState { blocks, exchanged, encoding: context.encoding(codec, Feedback::Error) })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut DeMoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let rate = context.learning_rate()?;
        let rule = async |ranks: &Communicator, gradients: &mut Buffer| {
            let DeMoState { blocks, exchanged, encoding } = state;
            if let Some(momentum) = encoding.state().get("error") {
                context.scale(self.decay, momentum)?;
            }
            frequencies(blocks, gradients, exchanged)?;
            context.scale(rate, exchanged)?;
            ranks.all_reduce_sparse(exchanged, ReduceOp::Sum, encoding).await?;
            direction(blocks, exchanged, gradients)
        };
        context.among_hosts(&mut bucket.gradients, rule).await
    }

    fn checkpoint(&self, state: &mut DeMoState, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| fields.encoding("encoding", &mut state.encoding))
    }
}

/// Stores the coefficients of the gradient, with zero senders.
fn frequencies(blocks: &DctBlocks, gradients: &Buffer, exchanged: &mut Buffer) -> Result<()> {
    if !gradients.queue().computes(|| Work::Product { operations: blocks.operations() }) {
        return Ok(());
    }
    let gradients = gradients.host::<f32>()?;
    let mut exchanged = exchanged.host_mut::<f32>()?;
    let (coefficients, senders) = exchanged.split_at_mut(gradients.len());
    blocks.transform(&gradients, coefficients);
    senders.fill(0.0);
    Ok(())
}

/// Stores the sign of each element of the inverse transform of the mean coefficients.
fn direction(blocks: &DctBlocks, exchanged: &mut Buffer, gradients: &mut Buffer) -> Result<()> {
    if !gradients.queue().computes(|| Work::Product { operations: blocks.operations() }) {
        return Ok(());
    }
    let mut exchanged = exchanged.host_mut::<f32>()?;
    let mut gradients = gradients.host_mut::<f32>()?;
    let (coefficients, senders) = exchanged.split_at_mut(gradients.len());
    coefficients.iter_mut().zip(senders).for_each(|(sum, senders)| *sum /= senders.max(1.0));
    blocks.transform_back(coefficients, &mut gradients);
    // Unlike `signum`, 0 for 0: elements without a coefficient do not move.
    gradients.iter_mut().for_each(|x| *x = if *x == 0.0 { 0.0 } else { x.signum() });
    Ok(())
}
