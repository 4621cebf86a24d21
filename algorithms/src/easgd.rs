//! Elastic averaging SGD: replicas explore on their own; springs tie them to a centre, which follows them.
//!
//! ```text
//! eᵢ ← xᵢ − c                                every τ-th step, before the optimizer step
//! c  ← c + α Σᵢ eᵢ                           all-reduce of the extensions; every rank has an equal copy of c
//! xᵢ ← optimizer(xᵢ, gᵢ) − α eᵢ
//! ```
//!
//! The centre, the result of the training, moves by β = nα towards the replicas' mean. Springs that are too strong
//! oscillate: with γ times the curvature = η and τ = 1, it diverges for α > (4 − 2η)/(2 + n(2 − η)), some 2/n. The
//! all-reduce begins as soon as the gradients are ready, during the backward pass of the other buckets.
//!
//! With `momentum` δ above 0 it is EAMSGD, Nesterov momentum between the springs:
//!
//! ```text
//! vᵢ ← δ vᵢ − γ gᵢ(xᵢ + δ vᵢ)                every step, with plain SGD as the optimizer
//! xᵢ ← xᵢ + vᵢ − α eᵢ                        −α eᵢ every τ-th step
//! ```
//!
//! Between steps the parameters are xᵢ + δ vᵢ then, where the gradient is taken; springs and centre use xᵢ. The
//! Nesterov momentum of SGD with δ = 0 is not the same: springs would pull at xᵢ + δ vᵢ, and a change of γ would also
//! scale vᵢ.
//!
//! Replicas differ; their mean stays near the centre, and both meet as γ falls. State: c and the extension of the
//! spring, each of the size of the bucket; with momentum, v too. Bytes sent per rank and step: 2(n−1)/n · S / τ, or
//! (n−1) · S / τ if n · S ≤ 64 KiB, S being the size of the parameters; with a codec ([`Averaging`]) eᵢ is encoded, in
//! f32, with the bytes of [`compressed_allreduce`](crate::compressed_allreduce) / τ. Without a codec: f32 or f64.
//! Defaults: β = .9, the paper's, τ = 4, and δ = 0; the paper's EAMSGD has δ = .99. The paper communicates in the first
//! of every τ steps, where all replicas start at the centre; here it is the last. Trigram: centralized, synchronous,
//! full precision. Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, the
//! synchronous form.

use crate::plugin::{
    About, Algorithm, Averager, Averaging, Bucket, Buckets, Context, Fields, Needs, Optimizers, Trigram,
};
use hexagram_logical::options_text::{Options, above};
use hexagram_logical::{Buffer, Result};

/// Springs between replicas and a centre.
#[derive(Debug, Clone)]
pub struct Easgd {
    /// Number τ of steps between two exchanges with the centre, at least 1. Default: 4.
    pub period: u64,
    /// Strength β = nα of all springs together, above 0. Default: 0.9.
    pub beta: f64,
    /// Momentum δ of EAMSGD, in [0, 1); use plain SGD with it. Default: 0, which is EASGD.
    pub momentum: f64,
    /// Method of computing the mean extension of the springs. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for Easgd {
    fn default() -> Self {
        Easgd { period: 4, beta: 0.9, momentum: 0.0, averaging: Averaging::default() }
    }
}

/// State of one bucket.
pub struct EasgdState {
    /// Centre c, equal on all ranks.
    centre: Buffer,
    /// Extension eᵢ of the spring, from the gradients to the end of the step.
    extension: Buffer,
    /// Velocity vᵢ, with momentum.
    velocity: Option<Buffer>,
    averager: Averager,
}

impl Easgd {
    fn is_due(&self, context: &Context) -> bool {
        context.ends_round(self.period)
    }
}

impl Algorithm for Easgd {
    type State = EasgdState;

    fn about(&self) -> About {
        About::new(
            "easgd",
            Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() },
        )
        .needs_learning_rate(self.momentum != 0.0)
        .source("Zhang, Choromanska and LeCun, Deep learning with elastic averaging SGD, NeurIPS 2015")
        // Each replica explores on its own.
        .keeps_replicas_identical(false)
        // The centre.
        .remembers_parameters(true)
        .period(self.period)
        .needs(Needs { buckets: Buckets::BySize, parameters: true })
        .optimizers(match self.momentum {
            0.0 => Optimizers::Any,
            _ => Optimizers::Sgd("EAMSGD has its own momentum between the springs"),
        })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field(
            "period",
            &mut self.period,
            1..,
            "τ, steps from one exchange with the centre to the next",
        )?;
        options.field(
            "beta",
            &mut self.beta,
            above(0.0),
            "β, strength of the springs; below 2 to be stable",
        )?;
        options.field("momentum", &mut self.momentum, 0.0..1.0, "δ, momentum of EAMSGD")?;
        self.averaging.options(options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<EasgdState> {
        let zeros = || context.zeros_like(&bucket.parameters);
        let velocity = if self.momentum > 0.0 { Some(zeros()?) } else { None };
        let centre = context.copy_of(&bucket.parameters)?;
        let averager = self.averaging.state(context, bucket)?;
        Ok(EasgdState { centre, extension: zeros()?, velocity, averager })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut EasgdState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if !self.is_due(context) {
            return Ok(());
        }
        let EasgdState { centre, extension, velocity, averager } = state;
        context.copy(&bucket.parameters, extension)?;
        if let Some(velocity) = velocity {
            context.add_scaled(-self.momentum, velocity, extension)?;
        }
        context.add_scaled(-1.0, centre, extension)?;
        let mut mean = context.copy_of(extension)?;
        averager.mean(context, &mut mean).await?;
        // α Σᵢ eᵢ = β ē, with the same bits on all ranks.
        context.add_scaled(self.beta, &mean, centre)
    }

    async fn after_step(&self, context: &Context, state: &mut EasgdState, bucket: &mut Bucket) -> Result<()> {
        if let Some(velocity) = &state.velocity {
            // SGD has made xᵢ + δ vᵢ − γ gᵢ of xᵢ + δ vᵢ: the new xᵢ, which lacks the new δ vᵢ.
            context.blend(self.momentum, velocity, -context.learning_rate()?, &bucket.gradients)?;
            context.add_scaled(self.momentum, velocity, &bucket.parameters)?;
        }
        if !self.is_due(context) {
            return Ok(());
        }
        let alpha = self.beta / context.size() as f64;
        context.add_scaled(-alpha, &state.extension, &bucket.parameters)
    }

    fn checkpoint(&self, state: &mut EasgdState, fields: &mut Fields) -> Result<()> {
        fields.shared(|fields| fields.buffer("centre", &mut state.centre))?;
        state.averager.checkpoint("averager", fields)?;
        let Some(velocity) = &mut state.velocity else { return Ok(()) };
        fields.averaged(|fields| fields.buffer("velocity", velocity))
    }
}
