//! DiLoCo: every rank steps on its own for a long while, and an outer optimizer steps with the mean of what has changed.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! after every H-th step:
//!     Δ ← (1/n) Σᵢ (θ − xᵢ)                  all-reduce
//!     v ← μ v + Δ
//!     θ ← θ − η (Δ + μ v)                    Nesterov's momentum, with Δ as the gradient
//!     xᵢ ← θ
//! ```
//!
//! θ is the same on all ranks, and so are the replicas after every H-th step. η = 1, μ = 0 is local SGD. The inner
//! optimizer's memory stays each rank's own; the source has AdamW.
//!
//! State: θ and v, 2 S, S being the size of the parameters. Bytes sent per rank and step: 2(n−1)/n · S / H. Elements: f32
//! and f64. Defaults: η = 0.7 and μ = 0.9 as in the source; H = 16 for data on which a training has some hundred steps,
//! since v needs ten outer steps to come up to speed; the source has 500 for a language model. Source: Douillard et al.,
//! "DiLoCo: distributed low-communication training of language models", 2023.

use crate::plugin::{Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, check_option};
use hexagram_logical::{Buffer, Result};

/// An outer optimizer on top of local steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiLoCo {
    /// Number H of local steps of a round.
    pub period: u64,
    /// Outer optimizer, which steps with the mean change.
    pub outer: Outer,
}

impl Default for DiLoCo {
    fn default() -> Self {
        DiLoCo { period: 16, outer: Outer { learning_rate: 0.7, momentum: 0.9 } }
    }
}

/// Outer optimizer: SGD with Nesterov's momentum, whose gradient is the mean change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outer {
    /// Outer learning rate η.
    pub learning_rate: f64,
    /// Outer momentum coefficient μ.
    pub momentum: f64,
}

/// State of the outer optimizer.
pub struct Global {
    /// Global parameters θ.
    pub(crate) parameters: Buffer,
    /// Velocity v.
    pub(crate) velocity: Buffer,
}

impl Algorithm for DiLoCo {
    type State = Global;

    fn name(&self) -> &'static str {
        "diloco"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: true }
    }

    /// Returns false: replicas are equal only after every H-th step.
    fn keeps_replicas_identical(&self) -> bool {
        false
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::BySize, parameters: true }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Global> {
        check_option(self.period > 0, "DiLoCo::period", &self.period, "1 step or more")?;
        self.outer.check()?;
        Ok(Global {
            parameters: context.copy_of(&bucket.parameters)?,
            velocity: context.zeros_like(&bucket.parameters)?,
        })
    }

    async fn after_step(&self, context: &Context, global: &mut Global, bucket: &mut Bucket) -> Result<()> {
        if !(context.step() + 1).is_multiple_of(self.period) {
            return Ok(());
        }
        let change = &mut bucket.parameters;
        context.blend(-1.0, change, 1.0, &global.parameters)?;
        context.mean(change).await?;
        self.outer.step(context, global, change)?;
        context.copy(&global.parameters, &bucket.parameters)
    }

    fn checkpoint(&self, global: &mut Global, fields: &mut Fields) -> Result<()> {
        global.checkpoint(fields)
    }
}

impl Outer {
    pub(crate) fn check(&self) -> Result<()> {
        let Outer { learning_rate: rate, momentum } = self;
        check_option(*rate > 0.0 && rate.is_finite(), "Outer::learning_rate", rate, "a number above 0")?;
        check_option((0.0..1.0).contains(momentum), "Outer::momentum", momentum, "0 or more, and below 1")
    }

    /// Makes an outer step: `v ← μ v + Δ; θ ← θ − η (Δ + μ v)`.
    pub(crate) fn step(&self, context: &Context, global: &Global, change: &Buffer) -> Result<()> {
        let Outer { learning_rate, momentum } = self;
        context.blend(*momentum, &global.velocity, 1.0, change)?;
        let terms = [(-learning_rate, change), (-learning_rate * momentum, &global.velocity)];
        context.combine(1.0, &global.parameters, &terms)
    }
}

impl Global {
    pub(crate) fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        fields.buffer("global", &mut self.parameters)?;
        fields.buffer("velocity", &mut self.velocity)
    }
}
