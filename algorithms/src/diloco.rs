//! DiLoCo: every rank makes many local steps, then an outer optimizer steps with the mean change of the parameters.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! after every H-th step:
//!     Δ ← (1/n) Σᵢ (θ − xᵢ)                  all-reduce
//!     v ← μ v + Δ
//!     θ ← θ − η (Δ + μ v)                    Nesterov momentum, with Δ as the gradient
//!     xᵢ ← θ
//! ```
//!
//! θ is the same on all ranks, and so are the replicas after every H-th step. η = 1, μ = 0 is local SGD. Each rank
//! keeps its own state of the inner optimizer, AdamW in the source. [`sparse_loco`](crate::sparse_loco) sends Δ in few
//! bits.
//!
//! State: θ and v, 2 S, S being the size of the parameters; without momentum θ alone. Bytes sent per rank and step:
//! 2(n−1)/n · S / H, or (n−1) · S / H if n · S ≤ 64 KiB. With a codec ([`Averaging`]), Δᵢ is encoded, with its feedback
//! in units of the parameters and the bytes of [`compressed_allreduce`](crate::compressed_allreduce) / H. Elements: f32
//! and f64.
//!
//! A sparse codec that sends a share δ of the elements sends each element in every 1/δ-th round, with a change 1/δ
//! times as large; the momentum multiplies that by 1/(1 − μ). If all elements have the same size, with curvature L,
//! that converges up to γ H L η / ((1 − μ) δ) = 2: to the optimum with difference feedback, close to it with error
//! feedback, as in `topk-ef`. So a tenth of the elements tolerates γ H L = 0.028 with these defaults.
//!
//! Defaults: η = 0.7 and μ = 0.9 as in the source; H = 16 for trainings of some hundred steps, since v needs ten outer
//! steps to reach its full size; the source has 500 for a language model. Source: Douillard et al., "DiLoCo:
//! distributed low-communication training of language models", 2023.
//!
//! # `muloco`
//!
//! [`DiLoCo::muon`] is DiLoCo with [`Muon`](crate::Muon) as the inner optimizer: the engine uses it by default, and
//! refuses all others. The singular values of a Muon step are equal, so the changes of different ranks have more
//! similar directions than with AdamW, and lose less in few bits. The source's 10 % of the elements is
//! `muloco(codec=top-k(10%), feedback=error(decay=0.9))`. Defaults: η = 0.9, μ = 0.8 and Muon without Nesterov
//! momentum, of 0.9, as in the code of the source; H = 16, the source has 30. Steps are scaled to the size of AdamW
//! steps, so that one γ suits both. Source: Thérien, Huang, Defazio, Rish and Belilovsky, "MuLoCo: Muon is a practical
//! inner optimizer for DiLoCo", 2025 (2505.23725).

use crate::plugin::{
    About, Algorithm, Averager, Averaging, Bucket, Buckets, Context, Fields, Needs, Optimizers, Trigram,
};
use hexagram_logical::options_text::{NamedOptions, Options, above, part};
use hexagram_logical::{Buffer, Result};

/// An outer optimizer on top of local steps.
#[derive(Debug, Clone)]
pub struct DiLoCo {
    /// Optimizer of the local steps, which gives the algorithm its name.
    pub inner: Inner,
    /// Number H of local steps of a round.
    pub period: u64,
    /// Outer optimizer, which steps with the mean change.
    pub outer: Outer,
    /// Method of computing the mean change. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for DiLoCo {
    fn default() -> Self {
        let outer = Outer { learning_rate: 0.7, momentum: 0.9 };
        DiLoCo { inner: Inner::Any, period: 16, outer, averaging: Averaging::default() }
    }
}

impl DiLoCo {
    /// Creates `muloco`, with its defaults.
    pub fn muon() -> Self {
        let outer = Outer { learning_rate: 0.9, momentum: 0.8 };
        DiLoCo { inner: Inner::Muon, outer, ..DiLoCo::default() }
    }
}

/// Optimizer of the local steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// Any optimizer: `diloco`.
    Any,
    /// Muon: `muloco`.
    Muon,
}

/// Outer optimizer: SGD with Nesterov momentum; its gradient is the mean change.
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
    /// Velocity v; empty without momentum.
    pub(crate) velocity: Buffer,
}

/// State of one bucket, for all algorithms with outer steps.
pub struct DiLoCoState {
    global: Global,
    averager: Averager,
}

impl Algorithm for DiLoCo {
    type State = DiLoCoState;

    fn about(&self) -> About {
        let (name, source) = match self.inner {
            Inner::Any => (
                "diloco",
                "Douillard et al., DiLoCo: distributed low-communication training of language models, 2023",
            ),
            Inner::Muon => ("muloco", "Thérien, Huang, Defazio, Rish and Belilovsky, MuLoCo, 2025"),
        };
        let trigram =
            Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() };
        About::new(name, trigram)
            .source(source)
            // Replicas are equal only after every H-th step.
            .keeps_replicas_identical(false)
            // θ.
            .remembers_parameters(true)
            .period(self.period)
            .needs(Needs { buckets: Buckets::BySize, parameters: true })
            .optimizers(match self.inner {
                Inner::Any => Optimizers::default(),
                Inner::Muon => Optimizers::Named {
                    optimizer: "muon(momentum=0.9, nesterov=false)",
                    reason: "it is DiLoCo with Muon inside: with another optimizer use `diloco`",
                },
            })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, local steps of a round")?;
        options.field("outer", &mut self.outer, part(), "optimizer that steps with the mean change")?;
        self.averaging.options(options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<DiLoCoState> {
        DiLoCoState::new(&self.outer, &self.averaging, context, bucket)
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut DiLoCoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.after_step(self.period, &self.outer, context, bucket).await
    }

    fn checkpoint(&self, state: &mut DiLoCoState, fields: &mut Fields) -> Result<()> {
        state.checkpoint(fields)
    }
}

impl DiLoCoState {
    /// Creates the state of a bucket, whose parameters are equal on all ranks.
    pub(crate) fn new(
        outer: &Outer,
        averaging: &Averaging,
        context: &Context,
        bucket: &Bucket,
    ) -> Result<Self> {
        let parameters = context.copy_of(&bucket.parameters)?;
        let elements = if outer.momentum == 0.0 { 0 } else { parameters.len() };
        let velocity = parameters.zeroed_same_device(parameters.dtype(), elements)?;
        let averager = averaging.state(context, bucket)?;
        Ok(DiLoCoState { global: Global { parameters, velocity }, averager })
    }

    /// Makes the outer step, if a round of `period` local steps is complete.
    pub(crate) async fn after_step(
        &mut self,
        period: u64,
        outer: &Outer,
        context: &Context,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if !context.ends_round(period) {
            return Ok(());
        }
        let DiLoCoState { global, averager } = self;
        let change = &mut bucket.parameters;
        context.blend(-1.0, change, 1.0, &global.parameters)?;
        averager.mean(context, change).await?;
        outer.step(context, global, change)?;
        context.copy(&global.parameters, &bucket.parameters)
    }

    pub(crate) fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        fields.shared(|fields| self.global.checkpoint(fields))?;
        self.averager.checkpoint("averager", fields)
    }
}

impl NamedOptions for Outer {
    fn keyword(&self) -> &'static str {
        "nesterov"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("learning_rate", &mut self.learning_rate, above(0.0), "η, outer learning rate")?;
        options.field("momentum", &mut self.momentum, 0.0..1.0, "μ, outer momentum coefficient")
    }
}

impl Outer {
    /// Makes an outer step: `v ← μ v + Δ; θ ← θ − η (Δ + μ v)`.
    pub(crate) fn step(&self, context: &Context, global: &Global, change: &Buffer) -> Result<()> {
        let Outer { learning_rate, momentum } = self;
        if *momentum == 0.0 {
            return context.add_scaled(-learning_rate, change, &global.parameters);
        }
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
