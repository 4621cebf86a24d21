//! 0/1 Adam: one-bit Adam that updates its variance at growing intervals, and then communicates at growing intervals.
//!
//! ```text
//! t ≤ F, every kᵥ-th step    g ← (1/n) Σᵢ gᵢ                in full precision
//!                            v ← β₂ v + (1 − β₂) g²;  D ← 1 / (max(√v̂, φ rms(√v̂)) + ε)
//! t ≤ F, the other steps     g ← C((1/n) Σᵢ C(gᵢ + eᵢ) + s)               one bit
//! t ≤ F                      m ← β₁ m + (1 − β₁) g
//!                            x ← x − γ D m / (1 − β₁ᵗ)
//! t = F                      v is frozen;  e, s ← 0;  x₀ ← x
//! t > F, every step          mᵢ ← β₁ mᵢ + (1 − β₁) gᵢ
//!                            xᵢ ← xᵢ − γ D mᵢ / (1 − β₁ᵗ)   local
//! t > F, every kₗ-th step    u ← C((1/n) Σᵢ C((x₀ − xᵢ)/D + eᵢ) + s)      one bit
//!                            x₀ ← x₀ − D u;  xᵢ ← x₀;  mᵢ ← u / Σ γ/(1 − β₁ᵗ), over the steps since the last average
//! ```
//!
//! kᵥ is 1 and doubles after every 16 updates of v; kₗ is 1 and doubles every L steps up to a maximum. e and s are the
//! errors of ranks and of the owners of chunks; after F in units of γ m, so that γ may change. (x₀ − xᵢ)/D is the sum
//! of the local γ mᵢ. Local steps are undone exactly by returning to x₀. C, the floor φ (not in the paper) and the
//! other options of [`Frozen`] are those of [`qadam`](crate::qadam), for the same reasons: on the digits φ = 0 diverges
//! at γ = 0.001 and reaches 98.1 % at 0.0003, and φ = 0.1 reaches 98.9 % at 0.001. As in the authors' code, gradients
//! are encoded up to F, and never together with an exact one; the pseudocode of the paper encodes γ m there, too.
//!
//! State: m, D, e, and v or x₀, four elements per parameter, and s, 1/n. Bytes sent per rank: those of
//! [all-reduce](crate::gradient_all_reduce) in a step that updates v; 2(n−1)/n · Σ (⌈c/8⌉ + 4⌈c/B⌉) over the n chunks
//! of c elements that a bucket is cut into in the other steps up to F, and after that in every kₗ-th. Hierarchically,
//! only messages between hosts are encoded.
//!
//! Defaults: F = 200, of which 60 update v; L = 200 and kₗ ≤ 4, for trainings of about a thousand steps. For long ones
//! the authors' code has F = 100 000, L = 32 678 and kₗ ≤ 16. B = 2048.
//!
//! Replicas: bit-identical up to F, and after that in every kₗ-th step. Use it with plain SGD, without weight decay,
//! which would be treated as a gradient, and a learning rate for Adam. Elements: f32. Source: Lu et al., "Maximizing
//! communication efficiency for large-scale training via 0/1 Adam", ICLR 2023 (arXiv 2202.06009).

use crate::optimizer::moments::{self, Frozen, Moments};
use crate::plugin::{
    About, Algorithm, Bucket, Buckets, Clipping, Context, Fields, Needs, Optimizers, Trigram, check_f32,
};
use hexagram_logical::codec::Sign;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Adam that communicates one bit, and not in every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZeroOneAdam {
    /// Number F of steps until the variance is frozen, at least 1.
    pub freeze: u64,
    /// Number of updates of the variance after which their interval kᵥ doubles, at least 1.
    pub variance_doubling: u64,
    /// Number L of steps after which the interval kₗ of communication doubles, at least 1.
    pub local_doubling: u64,
    /// Maximum kₗ, at least 1.
    pub local_largest: u64,
    /// Constants β₁, β₂ and ε.
    pub moments: Moments,
    /// Use of the variance. Default: a floor of 0.1, otherwise as in the paper.
    pub frozen: Frozen,
    /// Number B of elements that share a scale.
    pub block: usize,
}

impl Default for ZeroOneAdam {
    fn default() -> Self {
        ZeroOneAdam {
            freeze: 200,
            variance_doubling: 16,
            local_doubling: 200,
            local_largest: 4,
            moments: Moments::default(),
            frozen: Frozen::default(),
            block: 2048,
        }
    }
}

impl ZeroOneAdam {
    fn encoding(&self, context: &Context) -> Encoding {
        context.encoding(Arc::new(Sign::in_blocks(self.block)), Feedback::TwoLevel)
    }

    /// Returns kₗ in a step after the freeze.
    fn local_interval(&self, step: u64) -> u64 {
        doubled((step - self.freeze - 1) / self.local_doubling).min(self.local_largest)
    }
}

fn doubled(times: u64) -> u64 {
    1 << times.min(62)
}

/// State of one bucket.
pub struct ZeroOneAdamState {
    /// Number t of steps so far.
    steps: u64,
    /// Number of updates of the variance.
    updates: u64,
    /// Step that updates the variance next.
    next_update: u64,
    /// Number of steps since the replicas were last equal.
    local: u64,
    /// Sum of γ/(1 − β₁ᵗ) over these steps.
    moved: f64,
    /// First moment m.
    first: Buffer,
    /// Second moment v; after the freeze x₀.
    second: Buffer,
    /// Frozen scale D.
    scale: Buffer,
    encoding: Encoding,
}

impl Algorithm for ZeroOneAdam {
    type State = ZeroOneAdamState;

    fn about(&self) -> About {
        let reason = "it requires steps of γ times its direction, and reads them from the parameters";
        About::new("zero-one-adam", Trigram { centralized: true, synchronous: true, full_precision: false })
            .needs_learning_rate(true)
            .source("Lu et al., Maximizing communication efficiency for large-scale training via 0/1 Adam, ICLR 2023")
            // Replicas are equal only up to the freeze, and in every kₗ-th step after it.
            .keeps_replicas_identical(false)
            // x₀, to which local steps are undone.
            .remembers_parameters(true)
            // Its moment, which contains gradients of this rank.
            .remembers_gradients(true)
            .period(self.local_largest)
            .needs(Needs { buckets: Buckets::BySize, parameters: true })
            .clipping(Clipping::Together)
            .optimizers(Optimizers::BareSgd(reason))
    }

    /// Returns the algorithm with the maximum interval of communication from its fourth step on.
    fn without_warm_up(&self) -> Option<Self> {
        let without = Self { freeze: 1, local_doubling: 1, ..*self };
        (without != *self).then_some(without)
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("freeze", &mut self.freeze, 1.., "F, steps until the variance is frozen")?;
        let doubling = &mut self.variance_doubling;
        options.field(
            "variance_doubling",
            doubling,
            1..,
            "updates of v after which their interval doubles",
        )?;
        let doubling = &mut self.local_doubling;
        options.field(
            "local_doubling",
            doubling,
            1..,
            "L, steps after which the length of local rounds doubles",
        )?;
        options.field("local_largest", &mut self.local_largest, 1.., "longest local round, in steps")?;
        self.moments.options(options)?;
        self.frozen.options(options)?;
        options.field("block", &mut self.block, 1.., "B, elements that share a scale")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<ZeroOneAdamState> {
        check_f32(bucket)?;
        let zeros = || context.zeros_like(&bucket.gradients);
        Ok(ZeroOneAdamState {
            steps: 0,
            updates: 0,
            next_update: 1,
            local: 0,
            moved: 0.0,
            first: zeros()?,
            second: zeros()?,
            scale: zeros()?,
            encoding: self.encoding(context),
        })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut ZeroOneAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.steps += 1;
        if state.steps > self.freeze {
            self.local_step(context, state, bucket)
        } else if state.steps == state.next_update {
            self.exact_step(context, state, bucket).await
        } else {
            self.encoded_step(context, state, bucket).await
        }
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut ZeroOneAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if state.steps > self.freeze && state.local >= self.local_interval(state.steps) {
            self.synchronize(context, state, bucket).await?;
        }
        Ok(())
    }

    fn checkpoint(&self, state: &mut ZeroOneAdamState, fields: &mut Fields) -> Result<()> {
        fields.shared(|fields| {
            fields.count("steps", &mut state.steps)?;
            fields.count("updates", &mut state.updates)?;
            fields.count("next-update", &mut state.next_update)?;
            fields.count("local", &mut state.local)?;
            fields.number("moved", &mut state.moved)?;
            fields.buffer("second-moment", &mut state.second)?;
            fields.buffer("scale", &mut state.scale)
        })?;
        fields.averaged(|fields| {
            fields.buffer("first-moment", &mut state.first)?;
            fields.encoding("encoding", &mut state.encoding)
        })
    }
}

impl ZeroOneAdam {
    /// Makes a step of Adam itself, which updates the variance.
    async fn exact_step(
        &self,
        context: &Context,
        state: &mut ZeroOneAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let ZeroOneAdamState { steps, updates, first, second, scale, .. } = state;
        *updates += 1;
        state.next_update += doubled(*updates / self.variance_doubling);
        context.mean(&mut bucket.gradients).await?;
        self.moments.first(&bucket.gradients, first)?;
        self.moments.second(&bucket.gradients, second)?;
        context.copy(second, scale)?;
        self.frozen.scale(&self.moments, &bucket.tensors, *updates, scale)?;
        self.moments.frozen_direction(*steps, (first, scale), &mut bucket.gradients)
    }

    /// Makes a step with the present variance, and the gradient in one bit.
    async fn encoded_step(
        &self,
        context: &Context,
        state: &mut ZeroOneAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let ZeroOneAdamState { steps, first, scale, encoding, .. } = state;
        self.frozen.limit(scale, &mut bucket.gradients)?;
        self.frozen.mean(context, scale, &mut bucket.gradients, encoding).await?;
        self.moments.first(&bucket.gradients, first)?;
        self.moments.frozen_direction(*steps, (first, scale), &mut bucket.gradients)
    }

    /// Makes a local step of this rank.
    fn local_step(&self, context: &Context, state: &mut ZeroOneAdamState, bucket: &mut Bucket) -> Result<()> {
        let ZeroOneAdamState { steps, first, second, scale, .. } = state;
        if *steps == self.freeze + 1 {
            context.copy(&bucket.parameters, second)?;
            state.encoding = self.encoding(context);
        }
        state.local += 1;
        state.moved += context.learning_rate()? * f64::from(self.moments.unbias(*steps));
        self.frozen.limit(scale, &mut bucket.gradients)?;
        self.moments.first(&bucket.gradients, first)?;
        self.moments.frozen_direction(*steps, (first, scale), &mut bucket.gradients)
    }

    /// Moves all replicas by the mean of their displacements from x₀, up to the error of one bit per element.
    async fn synchronize(
        &self,
        context: &Context,
        state: &mut ZeroOneAdamState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let ZeroOneAdamState { first, second: start, scale, encoding, .. } = state;
        // The gradients have been used.
        let way = &mut bucket.gradients;
        context.copy(start, way)?;
        context.add_scaled(-1.0, &bucket.parameters, way)?;
        self.frozen.mean_way(context, scale, way, encoding).await?;
        context.add_scaled(-1.0, way, start)?;
        context.copy(start, &bucket.parameters)?;
        if state.moved > 0.0 {
            moments::divide(scale, way)?;
            context.copy(way, first)?;
            context.scale(1.0 / state.moved, first)?;
        }
        state.local = 0;
        state.moved = 0.0;
        Ok(())
    }
}
