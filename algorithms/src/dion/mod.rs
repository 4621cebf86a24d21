//! Dion: matrices move along orthonormal directions of low rank, found by one power iteration on a momentum that is
//! distributed over the ranks.
//!
//! ```text
//! Mᵢ ← Mᵢ + gᵢ
//! P  ← orthonormalized (1/n) Σᵢ Mᵢ Q         all-reduce of r · rows elements per matrix, and of ḡ of all others
//! Rᵢ ← Mᵢᵀ P
//! Mᵢ ← Mᵢ − (1 − μ) P Rᵢᵀ                    the part used decays; the rest stays
//! Q  ← (1/n) Σᵢ Rᵢ, columns normalized       all-reduce of r · columns elements per matrix
//! X  ← X − γ √(rows / columns) P Qᵀ          r = ⌈fraction · min(rows, columns)⌉
//!
//! vectors, by Lion, from the mean gradient:
//! x  ← x − γ sgn(β₁ m + (1 − β₁) ḡ);  m ← β₂ m + (1 − β₂) ḡ
//! ```
//!
//! A tensor with more than two dimensions is a matrix of its first by all others. It is the paper's algorithm with
//! compressed synchronization (decoupled momentum): all steps are linear in Mᵢ, except P and Q, which are computed from
//! means. So (1/n) Σᵢ Mᵢ, P, Q and X are those of one machine with the mean gradient. The authors' code subtracts P
//! times the mean R, not P times the R of the rank: the mean is the same, but every Mᵢ then grows by gᵢ − ḡ in each
//! step, until rounding disturbs X.
//!
//! A matrix whose factors are not smaller, r · (rows + columns) ≥ rows · columns, sends its gradient; its momentum is
//! equal on all ranks, and its step is the same. Q starts with random columns, seeded by the tensor name; columns of P
//! without a direction are 0, and their Q is drawn again. Columns of R are divided by ‖R‖ + 1e-8, as in the authors'
//! code.
//!
//! Use it with plain SGD, optionally with weight decay, which is decoupled then; γ is that of Muon with its original
//! scale, and that of Lion for vectors: .01 in the authors' code. Embeddings and last layers are stepped as matrices,
//! too, where the authors use Lion. Replicas stay bit-identical, if all ranks run on the same kind of machine.
//!
//! State: M, of the size of the bucket, and Q, r · columns elements per matrix. Bytes sent per rank and step: two
//! all-reduces, of 4 (Σ r · rows + everything else) and of 4 Σ r · columns, each sends 2(n−1)/n times its size, or n−1
//! times if n times its size is 64 KiB at most; f32. Defaults: fraction = 1/4, with which the authors report almost no
//! loss at 3·10⁹ parameters; μ = .95, β₁ = .9, β₂ = .95. Trigram: centralized, synchronous, low precision. Source: Ahn,
//! Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: distributed orthonormalized updates", 2025 (arXiv
//! 2504.05295).

mod plan;

use crate::plugin::{About, Algorithm, Bucket, Clipping, Context, Fields, Optimizers, Trigram, check_f32};
use hexagram_logical::options_text::{Options, above};
use hexagram_logical::runtime::Work;
use hexagram_logical::{Buffer, Error, Result};
use plan::{FactorLayout, LionCoefficients};

/// Orthonormal steps of low rank, with averaged factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dion {
    /// Rank of the steps as a share of the smaller side of a matrix, above 0 and at most 1.
    pub fraction: f64,
    /// Share μ of the direction of a step that stays in the momentum, in [0, 1).
    pub momentum: f64,
    /// Weight β₁ of the momentum in the direction of vectors, in [0, 1).
    pub beta1: f64,
    /// Decay β₂ of the momentum of vectors, in [0, 1).
    pub beta2: f64,
}

impl Default for Dion {
    fn default() -> Self {
        Dion { fraction: 0.25, momentum: 0.95, beta1: 0.9, beta2: 0.95 }
    }
}

/// State of one bucket.
pub struct DionState {
    plan: FactorLayout,
    /// Momenta: the local part M of matrices that are sent in factors, and m of Lion for vectors.
    momentum: Buffer,
    /// Factors Q, matrix by matrix.
    right: Buffer,
}

impl Algorithm for Dion {
    type State = DionState;

    fn about(&self) -> About {
        About::new("dion", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .source("Ahn et al., Dion: distributed orthonormalized updates, 2025")
            .clipping(Clipping::Together)
            .optimizers(Optimizers::Sgd(
                "it leaves orthonormal directions, and its momentum is before the exchange",
            ))
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let rank = "rank of the steps, as a share of the smaller side of a matrix";
        options.field("fraction", &mut self.fraction, above(0.0).up_to(1.0), rank)?;
        options.field(
            "momentum",
            &mut self.momentum,
            0.0..1.0,
            "μ, share of a step that stays in the momentum",
        )?;
        options.field("beta1", &mut self.beta1, 0.0..1.0, "β₁, weight of the momentum of vectors")?;
        options.field("beta2", &mut self.beta2, 0.0..1.0, "β₂, decay of the momentum of vectors")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<DionState> {
        check_f32(bucket)?;
        let plan = FactorLayout::new(&bucket.tensors, self.fraction);
        let momentum = context.zeros_like(&bucket.gradients)?;
        let right = bucket.gradients.zeroed_same_device(bucket.gradients.dtype(), plan.right_len())?;
        Ok(DionState { plan, momentum, right })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut DionState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let mut first = state.first_message(context, bucket)?;
        context.mean(&mut first).await?;
        let DionState { plan, momentum, right } = state;
        let queue = bucket.gradients.queue();
        let [_, way_back, direction] = plan.operations();
        let mut second = bucket.gradients.zeroed_same_device(bucket.gradients.dtype(), plan.second_len())?;
        let mut left = Vec::new();
        if queue.computes(|| Work::Product { operations: way_back }) {
            left = plan.project_back(
                &first.host::<f32>()?,
                1.0 - self.momentum,
                &mut momentum.host_mut::<f32>()?,
                &mut right.host_mut::<f32>()?,
                &mut second.host_mut::<f32>()?,
            );
        }
        if plan.second_len() > 0 {
            context.mean(&mut second).await?;
        }
        if !queue.computes(|| Work::Product { operations: direction }) {
            return Ok(());
        }
        let gradients = &mut bucket.gradients.host_mut::<f32>()?;
        plan.direct(&second.host::<f32>()?, &left, &mut right.host_mut::<f32>()?, gradients);
        let lion = LionCoefficients { beta1: self.beta1, beta2: self.beta2 };
        plan.direct_vectors(&first.host::<f32>()?, lion, &mut momentum.host_mut::<f32>()?, gradients);
        Ok(())
    }

    fn checkpoint(&self, state: &mut DionState, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| fields.buffer("momentum", &mut state.momentum))?;
        fields.shared(|fields| fields.buffer("right", &mut state.right))
    }
}

impl DionState {
    /// Adds the gradient to the momentum, and returns the first message.
    fn first_message(&mut self, context: &Context, bucket: &Bucket) -> Result<Buffer> {
        let DionState { plan, momentum, right } = self;
        let [operations, ..] = plan.operations();
        let mut message = bucket.gradients.zeroed_same_device(bucket.gradients.dtype(), plan.first_len())?;
        if bucket.gradients.queue().computes(|| Work::Product { operations }) {
            check_finite(context, bucket)?;
            plan.project(
                &bucket.gradients.host::<f32>()?,
                &mut momentum.host_mut::<f32>()?,
                &mut right.host_mut::<f32>()?,
                &mut message.host_mut::<f32>()?,
            );
        }
        Ok(message)
    }
}

/// Fails if a gradient would make a momentum NaN permanently.
fn check_finite(context: &Context, bucket: &Bucket) -> Result<()> {
    let gradients = bucket.gradients.host::<f32>()?;
    let Some(at) = gradients.iter().position(|x| !x.is_finite()) else { return Ok(()) };
    let tensor = bucket.tensors.iter().find(|tensor| tensor.elements.contains(&at));
    let (name, start) = tensor.map_or(("", 0), |tensor| (&*tensor.name, tensor.elements.start));
    let what = format!(
        "element {} of the gradient of `{name}` is {} on rank {}, and would stay in the momentum",
        at - start,
        gradients[at],
        context.rank()
    );
    Err(Error::usage(what, "find out why training diverges there, and lower the learning rate"))
}
