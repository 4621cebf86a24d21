//! MuLoCo: DiLoCo with Muon as the inner optimizer, whose changes can be sent in few bits.
//!
//! ```text
//! xᵢ ← muon(xᵢ, gᵢ)                          every step, with this rank's own gradient; AdamW for all but matrices
//! after every H-th step:
//!     Δ ← (1/n) Σᵢ (θ − xᵢ)                  all-reduce, or with a codec C and error feedback: eᵢ ← β eᵢ + (θ − xᵢ);
//!                                            cᵢ ← C(eᵢ); eᵢ ← eᵢ − cᵢ; Δ ← (1/n) Σᵢ cᵢ
//!     v ← μ v + Δ
//!     θ ← θ − η (Δ + μ v)                    Nesterov's momentum, with Δ as the gradient
//!     xᵢ ← θ
//! ```
//!
//! Muon's steps have singular values of one size, so that changes of different ranks point in more alike directions
//! than AdamW's, and less is lost of them in few bits. Muon's and AdamW's memory stays each rank's own. θ is the same
//! on all ranks, and so are the replicas after every H-th step. The engine steps with [`Muon`](crate::Muon) where it is
//! given no optimizer, and refuses all others: with another it is [`diloco`](crate::diloco).
//!
//! State: θ and v, 2 S, S being the size of the parameters, and e with feedback. Bytes sent per rank and step: 2(n−1)/n
//! · S / H, or (n−1) · S / H if n · S ≤ 64 KiB; with a codec those of
//! [`compressed_allreduce`](crate::compressed_allreduce) / H. The source's 10 % of the elements is
//! `muloco(codec=top-k(10%), feedback=error(decay=0.9))`. Elements: f32 and f64, with a codec f32.
//!
//! Defaults: η = 0.9, μ = 0.8 and Muon without Nesterov's momentum, of 0.9, as in the source's code; H = 16 as in
//! [`diloco`](crate::diloco), the source has 30. The factor of a step is the one that matches AdamW's size, so that one
//! γ does for both. Trigram: centralized, synchronous, full precision, with a codec low. Source: Thérien, Huang,
//! Defazio, Rish and Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025 (2505.23725).

use crate::diloco::{DiLoCoState, Outer};
use crate::plugin::{Algorithm, Averaging, Bucket, Buckets, Context, Fields, Needs, Optimizers, Trigram};
use hexagram_logical::Result;
use hexagram_logical::spelling::{Options, part};

/// An outer optimizer on top of Muon's local steps.
#[derive(Debug, Clone)]
pub struct MuLoCo {
    /// Number H of local steps of a round.
    pub period: u64,
    /// Outer optimizer, which steps with the mean change.
    pub outer: Outer,
    /// Way to make the mean change. Default: in full precision.
    pub averaging: Averaging,
}

impl Default for MuLoCo {
    fn default() -> Self {
        let outer = Outer { learning_rate: 0.9, momentum: 0.8 };
        MuLoCo { period: 16, outer, averaging: Averaging::default() }
    }
}

impl Algorithm for MuLoCo {
    type State = DiLoCoState;

    fn name(&self) -> &'static str {
        "muloco"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: self.averaging.is_exact() }
    }

    /// Returns false: replicas are equal only after every H-th step.
    fn keeps_replicas_identical(&self) -> bool {
        false
    }

    /// Returns true: θ.
    fn remembers_parameters(&self) -> bool {
        true
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::BySize, parameters: true }
    }

    fn optimizers(&self) -> Optimizers {
        let reason = "it is DiLoCo with Muon inside: with another optimizer use `diloco`";
        Optimizers::Named { optimizer: "muon(momentum=0.9, nesterov=false)", reason }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "H, local steps of a round")?;
        options.field("outer", &mut self.outer, part(), "optimizer that steps with the mean change")?;
        self.averaging.options(options)
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn source(&self) -> &'static str {
        "Thérien, Huang, Defazio, Rish and Belilovsky, MuLoCo, 2025"
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
