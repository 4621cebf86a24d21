//! EF21: every rank sends the largest elements of what its gradient has changed by since it was last understood.
//!
//! ```text
//! mᵢ ← β mᵢ + (1 − β) gᵢ                    each rank's own estimate of its gradient; β = 0: the gradient itself
//! cᵢ ← the k elements of mᵢ − hᵢ of the largest magnitude, in each bucket
//! hᵢ ← hᵢ + cᵢ                              what all ranks know of rank i
//! h  ← h + (1/n) Σᵢ cᵢ                      all-gather of the cᵢ: h = (1/n) Σᵢ hᵢ
//! x  ← x − γ h
//! ```
//!
//! Near the minimum gradients no longer change, so that nothing is lost in the end: with exact gradients it converges for
//! every γ ≤ 1/(L + L̃√(b/θ)), however different the ranks' data, θ = 1 − √(1 − δ), b = (1 − δ)/θ, δ = k/d,
//! L̃² = (1/n) Σ Lᵢ². With stochastic gradients it needs the momentum, without which h would follow their noise.
//!
//! h is an old gradient for most elements: k/d small and γ large do not go together. State: m (if β > 0), hᵢ and h, three
//! elements for each parameter. Bytes sent per rank and step: n−1 messages of 4k + ⌈(k l + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1 each,
//! with l = ⌊log₂(d/k)⌋, for a bucket of d elements. Hierarchically, hosts take the place of ranks.
//!
//! Defaults: 5 % of the elements, β = .9. Replicas: bit-identical. To be run with plain SGD. Elements: f32. Sources:
//! Richtárik, Sokolov and Fatkhullin, "EF21", NeurIPS 2021; Fatkhullin, Tyurin and Richtárik, "Momentum provably improves
//! error feedback", NeurIPS 2023 (β).

use crate::plugin::{Algorithm, Bucket, Clipping, Context, Fields, Trigram, check_f32, check_option};
use hexagram_logical::codec::{Keep, TopK};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Mean of estimates of the gradients that are kept up to date in their largest elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ef21 {
    /// Share k/d of the elements that are sent: above 0, and at most 1.
    pub fraction: f64,
    /// Momentum coefficient β, in [0, 1).
    pub momentum: f64,
}

impl Default for Ef21 {
    fn default() -> Self {
        Ef21 { fraction: 0.05, momentum: 0.9 }
    }
}

/// State of one bucket.
pub struct Ef21State {
    /// Momentum mᵢ, if β > 0.
    momentum: Option<Buffer>,
    /// Encoding that remembers the estimates hᵢ and h.
    encoding: Encoding,
}

impl Algorithm for Ef21 {
    type State = Ef21State;

    fn name(&self) -> &'static str {
        "ef21"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: false }
    }

    fn clipping(&self) -> Clipping {
        Clipping::Together
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Ef21State> {
        check_f32(bucket)?;
        let below_one = (0.0..1.0).contains(&self.momentum);
        check_option(below_one, "ef21's momentum", &self.momentum, "0 or more, and less than 1")?;
        let codec = TopK::new(Keep::Ratio(self.fraction))?;
        let momentum = match self.momentum {
            0.0 => None,
            _ => Some(context.zeros_like(&bucket.gradients)?),
        };
        Ok(Ef21State { momentum, encoding: context.encoding(Arc::new(codec), Feedback::Difference) })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Ef21State,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if let Some(momentum) = &state.momentum {
            context.blend(self.momentum, momentum, 1.0 - self.momentum, &bucket.gradients)?;
            context.copy(momentum, &bucket.gradients)?;
        }
        context.mean_sparse(&mut bucket.gradients, &mut state.encoding).await
    }

    fn checkpoint(&self, state: &mut Ef21State, fields: &mut Fields) -> Result<()> {
        if let Some(momentum) = &mut state.momentum {
            fields.buffer("momentum", momentum)?;
        }
        fields.encoding("encoding", &mut state.encoding)
    }
}
