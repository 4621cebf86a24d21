//! Deep gradient compression: top-k of the gradients not yet sent, with the momentum on the senders' side.
//!
//! ```text
//! uᵢ ← μ uᵢ + gᵢ                             Nesterov: uᵢ ← μ (uᵢ + gᵢ)
//! vᵢ ← vᵢ + γ uᵢ                             Nesterov: vᵢ ← vᵢ + γ (uᵢ + gᵢ)
//! cᵢ ← the k elements of vᵢ of the largest magnitude, in each matrix; all of a vector
//! vᵢ ← vᵢ − cᵢ;  uᵢ ← 0 where cᵢ was sent    the second: masking, in matrices
//! w  ← μ w + λ x                             optional weight decay
//! x  ← x − (1/n) Σᵢ cᵢ − γ w                 all-gather of the cᵢ; Nesterov: λ x + μ w instead of w
//! ```
//!
//! A delayed element includes the momentum that it would have had (momentum correction). After it is sent, its momentum
//! is cleared (masking), so that stale momentum does not drive it. k = d is SGD with momentum without masking, and
//! plain SGD with it. In the beginning, when gradients change fast, more elements are sent: a quarter, then a quarter
//! of that, down to the chosen fraction. v is in units of x, so that γ may change. Weight decay has momentum, as in
//! SGD; all ranks have the same w, so it is not sent, and never delayed.
//!
//! As in the authors' code, biases and other vectors are sent whole, and are stepped by SGD with momentum; at least one
//! element of a matrix is sent, and weight decay is as above. A tensor of more than two dimensions counts as a matrix.
//!
//! Use it with plain SGD, at the learning rate of momentum SGD: some (1−μ) times that of plain SGD. If all elements of
//! a matrix have the same size, each is sent every T = d/k steps, with the momentum of all of them, so its step has
//! length γ S, S = Σₜ (1−μᵗ)/(1−μ) with t = 1 … T: 910 γ with μ = .9 and 1 %. On quadratics of curvature L it then
//! converges up to γ L S = 2 and diverges from 3 to 6 on, and ranks whose minima are D apart leave an error of some γ L
//! S D/4 in x. Elements of real gradients differ in size, and large ones are sent often.
//!
//! Replicas stay bit-identical. State: u and v, and w with weight decay, each of the size of the bucket. Bytes sent per
//! rank and step: n−1 messages, each with the sum over all matrices of 4k + ⌈(k l + k + ⌊(d−1)/2ˡ⌋)/8⌉ + 1, with d
//! elements in the matrix, k = ⌈d · fraction⌉ and l = ⌊log₂(d/k)⌋, and 4 for each element of a vector; f32. Gradients
//! are clipped before all of this, on all ranks by one factor, as the authors' code can; the paper clips by each rank's
//! own norm. Defaults: μ = .9, masking; 1 % of the elements after three stages of 16 steps, for small models (the
//! paper: .1 % after four epochs). Trigram: centralized, synchronous, low precision. Source: Lin, Han, Mao, Wang and
//! Dally, "Deep gradient compression", ICLR 2018.

#[cfg(feature = "cuda")]
use crate::elementwise::KernelEntry;
use crate::elementwise::{self, Elementwise};
use crate::plugin::{
    About, Algorithm, Bucket, Clipping, Context, Fields, Needs, Optimizers, Tensor, Trigram, check_f32,
};
use hexagram_logical::codec::{Codec, Keep, TopK};
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Code, Module};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::{Options, above, truth};
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result};
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(crate) static MODULE: Module = Module { name: "dgc", code: Code::Packed(hexagram_ptx::DGC) };

/// Mean of the largest accumulated momenta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dgc {
    /// Share k/d of the elements of a matrix to send after the warm-up, above 0 and at most 1.
    pub fraction: f64,
    /// Number of steps in each stage of the warm-up, which begins with the first step of the algorithm; 0 for no
    /// warm-up.
    pub warm_up: u64,
    /// Momentum coefficient μ, in [0, 1).
    pub momentum: f64,
    /// True for Nesterov momentum, which looks ahead.
    pub nesterov: bool,
    /// True to clear the momentum of elements that are sent.
    pub masking: bool,
    /// Weight decay λ, at least 0. The weight decay of the optimizer would have no momentum.
    pub weight_decay: f64,
    /// True to compress vectors like matrices.
    pub vectors: bool,
}

impl Default for Dgc {
    fn default() -> Self {
        Dgc {
            fraction: 0.01,
            warm_up: 16,
            momentum: 0.9,
            nesterov: false,
            masking: true,
            weight_decay: 0.0,
            vectors: false,
        }
    }
}

/// State of one bucket.
pub struct DgcState {
    /// Momentum u.
    momentum: Buffer,
    /// Momentum w of the weight decay, if there is one.
    decay: Option<Buffer>,
    /// Encoding that stores v as its error.
    encoding: Encoding,
    /// Share k/d of the elements that the encoding keeps.
    kept: f64,
}

impl Dgc {
    /// Returns k/d in a step: ¼, ¹⁄₁₆, … down to the chosen fraction.
    fn kept(&self, step: u64) -> f64 {
        let Some(stage) = step.checked_div(self.warm_up) else { return self.fraction };
        self.fraction.max(0.25f64.powf(1.0 + stage as f64))
    }

    fn is_compressed(&self, tensor: &Tensor) -> bool {
        self.vectors || tensor.matrix().is_some()
    }

    fn encoding(&self, context: &Context, bucket: &Bucket, kept: f64) -> Result<Encoding> {
        let largest: Arc<dyn Codec> = Arc::new(TopK::new(Keep::Ratio(kept))?);
        let codec = bucket.per_tensor(&largest, |tensor| self.is_compressed(tensor));
        Ok(context.encoding(Arc::new(codec), Feedback::Error))
    }

    /// Switches to the k of this step, if it changes.
    fn warm_up(&self, context: &Context, state: &mut DgcState, bucket: &Bucket) -> Result<()> {
        let kept = self.kept(context.own_step());
        if kept != state.kept {
            let mut next = self.encoding(context, bucket, kept)?;
            std::mem::swap(next.state_mut(), state.encoding.state_mut());
            state.encoding = next;
            state.kept = kept;
        }
        Ok(())
    }

    /// Replaces the gradients by the increments of v.
    fn accelerate(&self, context: &Context, u: &Buffer, gradients: &Buffer) -> Result<()> {
        if self.nesterov {
            context.blend(self.momentum, u, self.momentum, gradients)?;
            context.add_scaled(1.0, u, gradients)
        } else {
            context.blend(self.momentum, u, 1.0, gradients)?;
            context.copy(u, gradients)
        }
    }

    /// Clears the momentum of the elements that were sent: u ← 0 where v = 0.
    fn mask(&self, tensors: &[Tensor], momentum: &Buffer, encoding: &Encoding) -> Result<()> {
        let Some(unsent) = encoding.state().get("error") else { return Ok(()) };
        let compressed = tensors.iter().filter(|tensor| self.is_compressed(tensor));
        let parts = compressed.map(|tensor| (tensor.elements.clone(), Mask));
        elementwise::each(parts.collect(), [unsent], [momentum])
    }

    /// Adds the weight decay and its momentum to the gradients of the optimizer.
    fn decay(&self, context: &Context, decay: &Buffer, bucket: &Bucket) -> Result<()> {
        context.blend(self.momentum, decay, self.weight_decay, &bucket.parameters)?;
        if self.nesterov {
            let terms = [(self.weight_decay, &bucket.parameters), (self.momentum, decay)];
            context.combine(1.0, &bucket.gradients, &terms)
        } else {
            context.add_scaled(1.0, decay, &bucket.gradients)
        }
    }
}

/// Masking of momenta: 0 where no unsent value is left.
#[derive(Debug)]
struct Mask;

impl Elementwise<f32, 1, 1> for Mask {
    #[inline(always)]
    fn run(&self, [unsent]: [&[f32]; 1], [momentum]: [&mut [f32]; 1]) {
        momentum.iter_mut().zip(unsent).filter(|(_, v)| **v == 0.0).for_each(|(u, _)| *u = 0.0);
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        KernelEntry { module: &MODULE, name: "dgc_mask", scalars: Vec::new() }
    }
}

impl Algorithm for Dgc {
    type State = DgcState;

    fn about(&self) -> About {
        About::new("dgc", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .needs_learning_rate(true)
            .source("Lin, Han, Mao, Wang and Dally, Deep gradient compression, ICLR 2018")
            .needs(Needs { parameters: self.weight_decay > 0.0, ..Needs::default() })
            .clipping(Clipping::Together)
            .optimizers(Optimizers::Sgd(
                "its momentum is on the senders' side, and a second one would act again",
            ))
    }

    fn without_warm_up(&self) -> Option<Self> {
        (self.warm_up > 0).then_some(Self { warm_up: 0, ..*self })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let share = "k/d, share of a matrix to send after the warm-up";
        options.field("fraction", &mut self.fraction, above(0.0).up_to(1.0), share)?;
        options.field("warm_up", &mut self.warm_up, 0.., "steps of each stage of the warm-up")?;
        options.field("momentum", &mut self.momentum, 0.0..1.0, "μ, momentum coefficient")?;
        options.field("nesterov", &mut self.nesterov, truth(), "use Nesterov momentum")?;
        options.field(
            "masking",
            &mut self.masking,
            truth(),
            "clear the momentum of elements that are sent",
        )?;
        options.field("weight_decay", &mut self.weight_decay, 0.0.., "λ, weight decay with momentum")?;
        options.field("vectors", &mut self.vectors, truth(), "compress vectors, too")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<DgcState> {
        check_f32(bucket)?;
        let kept = self.kept(context.own_step());
        let zeros = || context.zeros_like(&bucket.gradients);
        let decay = if self.weight_decay > 0.0 { Some(zeros()?) } else { None };
        let encoding = self.encoding(context, bucket, kept)?;
        Ok(DgcState { momentum: zeros()?, decay, encoding, kept })
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut DgcState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        self.warm_up(context, state, bucket)?;
        let tensors = Arc::clone(&bucket.tensors);
        let compressed = async |ranks: &Communicator, gradients: &mut Buffer| {
            self.accelerate(context, &state.momentum, gradients)?;
            let exchange = async |step: &mut Buffer| {
                ranks.all_reduce_sparse(step, ReduceOp::Mean, &mut state.encoding).await?;
                if self.masking { self.mask(&tensors, &state.momentum, &state.encoding) } else { Ok(()) }
            };
            context.as_step(gradients, exchange).await
        };
        context.among_hosts(&mut bucket.gradients, compressed).await?;
        match &state.decay {
            Some(decay) => self.decay(context, decay, bucket),
            None => Ok(()),
        }
    }

    fn checkpoint(&self, state: &mut DgcState, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| {
            fields.buffer("momentum", &mut state.momentum)?;
            if let Some(decay) = &mut state.decay {
                fields.buffer("decay", decay)?;
            }
            fields.encoding("encoding", &mut state.encoding)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Dgc;

    #[test]
    fn what_is_kept_falls_by_quarters() {
        let dgc = Dgc { fraction: 0.001, warm_up: 10, ..Dgc::default() };
        let stages = [0, 9, 10, 20, 30, 39, 40, u64::MAX].map(|step| dgc.kept(step));
        assert_eq!(stages, [0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.00390625, 0.001, 0.001]);
        assert_eq!(Dgc { warm_up: 0, ..dgc }.kept(0), 0.001);
    }
}
