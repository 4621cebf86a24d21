//! SlowMo: local SGD, with a momentum over what whole periods change.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! x̄  ← (1/n) Σⱼ xⱼ                           after every τ-th step: all-reduce of the parameters
//! u  ← β u + (x₀ − x̄) / γ̄                    x₀: where the period began; γ̄: the mean γ of its steps
//! x₀ ← x₀ − α γ̄ u;  xᵢ ← x₀
//! ```
//!
//! α = 1 and β = 0 is local SGD; otherwise it is heavy-ball momentum on the periods' changes. u is in units of gradients,
//! so that γ may change in any step: in the source, where it changes between periods only, γ̄ is γ. If γ was 0 in all of
//! a period, it ends with the mean, and u stays.
//!
//! To be run with SGD, plain or with momentum, which stays each rank's own. Replicas are bit-identical after every τ-th
//! step. State: u and x₀, each of the bucket's size. Bytes sent per rank and step: 2(n−1)/n · S / τ, S being the size of
//! the parameters; f32 or f64. Defaults: τ = 8, and α = 1 and β = .5, as fairscale's for eight ranks; it has .2 for
//! four, .6 for sixteen, and τ = 48 for large data. A β multiplies the learning rate by 1/(1−β) in the long run.
//! Trigram: centralized, synchronous, full precision. Source: Wang, Tantia, Ballas and Rabbat, "SlowMo: improving
//! communication-efficient distributed SGD with slow momentum", ICLR 2020.

use crate::plugin::with_float;
use crate::plugin::{Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::spelling::{Options, above};
use hexagram_logical::{Buffer, Result};

/// Local SGD with slow momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowMo {
    /// Number τ of steps of a period, at least 1.
    pub period: u64,
    /// Slow learning rate α, above 0.
    pub slow_rate: f64,
    /// Slow momentum coefficient β, in [0, 1).
    pub slow_momentum: f64,
}

impl Default for SlowMo {
    fn default() -> Self {
        SlowMo { period: 8, slow_rate: 1.0, slow_momentum: 0.5 }
    }
}

/// State of one bucket; equal on all ranks.
pub struct SlowMoState {
    /// Parameters x₀ at the start of the period.
    start: Buffer,
    /// Slow momentum u.
    momentum: Buffer,
    /// Number of steps of the period so far, and below it the sum of their γ.
    steps: u64,
    rates: f64,
}

impl Algorithm for SlowMo {
    type State = SlowMoState;

    fn name(&self) -> &'static str {
        "slowmo"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "τ, steps of a period")?;
        options.field("slow_rate", &mut self.slow_rate, above(0.0), "α, slow learning rate")?;
        options.field("slow_momentum", &mut self.slow_momentum, 0.0..1.0, "β, slow momentum coefficient")
    }

    fn source(&self) -> &'static str {
        "Wang, Tantia, Ballas and Rabbat, SlowMo, ICLR 2020"
    }

    /// Returns false: replicas are equal only after every τ-th step.
    fn keeps_replicas_identical(&self) -> bool {
        false
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::BySize, parameters: true }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<SlowMoState> {
        let start = context.copy_of(&bucket.parameters)?;
        let momentum = context.zeros_like(&bucket.parameters)?;
        Ok(SlowMoState { start, momentum, steps: 0, rates: 0.0 })
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.steps += 1;
        state.rates += context.learning_rate()?;
        if !(context.step() + 1).is_multiple_of(self.period) {
            return Ok(());
        }
        context.mean(&mut bucket.parameters).await?;
        let rate = state.rates / state.steps as f64;
        state.steps = 0;
        state.rates = 0.0;
        if rate == 0.0 {
            return context.copy(&bucket.parameters, &state.start);
        }
        let alpha = self.slow_rate;
        let beta = self.slow_momentum;
        let parameters = &mut bucket.parameters;
        with_float!(parameters.dtype(), T => {
            let step = (alpha * rate) as T;
            let per_rate = (1.0 / rate) as T;
            let beta = beta as T;
            let mut x = parameters.host_mut::<T>()?;
            let mut start = state.start.host_mut::<T>()?;
            let mut u = state.momentum.host_mut::<T>()?;
            for ((x, start), u) in x.iter_mut().zip(start.iter_mut()).zip(u.iter_mut()) {
                *u = beta * *u + (*start - *x) * per_rate;
                *start -= step * *u;
                *x = *start;
            }
            Ok(())
        })
    }

    fn checkpoint(&self, state: &mut SlowMoState, fields: &mut Fields) -> Result<()> {
        fields.buffer("start", &mut state.start)?;
        fields.buffer("momentum", &mut state.momentum)?;
        fields.count("steps", &mut state.steps)?;
        fields.number("rates", &mut state.rates)
    }
}
