//! SlowMo: local SGD, with a momentum over the changes of whole periods.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     every step, with this rank's own gradient
//! x̄  ← (1/n) Σⱼ xⱼ                           after every τ-th step: all-reduce of the parameters
//! u  ← β u + (x₀ − x̄) / γ̄                    x₀: x at the start of the period; γ̄: the mean γ of its steps
//! x₀ ← x₀ − α γ̄ u;  xᵢ ← x₀
//! ```
//!
//! α = 1 and β = 0 is local SGD; otherwise it is heavy-ball momentum on the changes of the periods. u is in units of gradients,
//! so that γ may change in any step. In the source, γ changes only between periods, so that γ̄ = γ. If γ was 0 in all of a
//! period, the period ends with the mean, and u stays.
//!
//! Use it with any optimizer that fits the base; each rank keeps its own optimizer state, such as a momentum. Replicas
//! are bit-identical after every τ-th step.
//!
//! The steps of a period may be those of another synchronous algorithm, the `base`, as in the source: for example
//! [`Sgp`](crate::sgp::Sgp), whose push-sum weights apply to replicas in x̄. A base that remembers parameters, such as
//! θ of DiLoCo, would treat the slow step as a change by its ranks, and is refused. With a codec ([`Averaging`]), x₀ −
//! xᵢ is encoded, with its feedback in units of the parameters.
//!
//! State: u and x₀, each of the size of the bucket, and that of the base. Bytes sent per rank and step: 2(n−1)/n · S /
//! τ, or (n−1) · S / τ if n · S ≤ 64 KiB, S being the size of the parameters, and the bytes of the base; f32 or f64.
//! Defaults: τ = 8, and α = 1 and β = .5, as in fairscale for eight ranks, which has .2 for four, .6 for sixteen, and τ
//! = 48 for large data. A β multiplies the learning rate by 1/(1−β) in the long run. Trigram: centralized, synchronous,
//! full precision. Source: Wang, Tantia, Ballas and Rabbat, "SlowMo: improving communication-efficient distributed SGD
//! with slow momentum", ICLR 2020.

use crate::elementwise::{self, Elementwise};
#[cfg(feature = "cuda")]
use crate::elementwise::{KernelEntry, name_for};
use crate::float_ext::FloatExt;
use crate::plugin::with_float;
use crate::plugin::{
    About, Algorithm, AnyAlgorithm, Averager, Averaging, Bucket, Context, Fields, ImplementedHooks, Instance,
    Needs, Slots, Trigram,
};
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Code, Module};
use hexagram_logical::options_text::{Catalogues, Options, OptionsText, Values, above, or};
use hexagram_logical::{Buffer, Result};

#[cfg(feature = "cuda")]
pub(crate) static MODULE: Module = Module { name: "slowmo", code: Code::Packed(hexagram_ptx::SLOWMO) };

/// Local SGD with slow momentum.
#[derive(Debug, Clone)]
pub struct SlowMo {
    /// Number τ of steps in a period, at least 1.
    pub period: u64,
    /// Slow learning rate α, above 0.
    pub slow_rate: f64,
    /// Slow momentum coefficient β, in [0, 1).
    pub slow_momentum: f64,
    /// Method of computing the mean at the end of a period. Default: in full precision.
    pub averaging: Averaging,
    /// Algorithm of the steps of a period, which must be synchronous and [remember no
    /// parameters](crate::About#structfield.remembers_parameters). Default: none; each rank steps on its own.
    pub base: Option<AnyAlgorithm>,
}

impl Default for SlowMo {
    fn default() -> Self {
        SlowMo { period: 8, slow_rate: 1.0, slow_momentum: 0.5, averaging: Averaging::default(), base: None }
    }
}

/// Base for ranks that step on their own, without communication.
#[derive(Debug, Clone)]
struct NoBase;

impl Algorithm for NoBase {
    type State = ();

    fn about(&self) -> About {
        About::new("alone", Trigram { centralized: true, synchronous: true, full_precision: true }).period(1)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }
}

/// Values of the base: the algorithms of the registry that parses the text, if they are synchronous and remember no
/// parameters.
struct BaseValues;

impl Values<AnyAlgorithm> for BaseValues {
    fn read(
        &self,
        spelling: &OptionsText,
        _: Option<&AnyAlgorithm>,
        known: &Catalogues,
    ) -> Result<Option<AnyAlgorithm>> {
        known.of::<AnyAlgorithm>().map(|algorithms| algorithms.read(spelling, known)).transpose()
    }

    fn write(&self, value: &AnyAlgorithm) -> OptionsText {
        value.spelling()
    }

    fn accepts(&self, value: &AnyAlgorithm) -> Result<bool> {
        value.check().map(|()| value.trigram().synchronous && !value.remembers_parameters())
    }

    fn describe(&self, _: &Catalogues) -> String {
        "a synchronous algorithm that remembers no parameters, such as sgp".to_owned()
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// State of one bucket; equal on all ranks.
pub struct SlowMoState {
    /// Parameters x₀ at the start of the period.
    start: Buffer,
    /// Slow momentum u.
    momentum: Buffer,
    /// Number of steps of the period so far; the next field is the sum of their γ.
    steps: u64,
    rates: f64,
    averager: Averager,
    /// Base algorithm at work.
    base: Box<dyn Instance>,
}

impl Algorithm for SlowMo {
    type State = SlowMoState;

    fn about(&self) -> About {
        let base = self.base();
        let full_precision = self.averaging.is_exact() && base.trigram().full_precision;
        // The least common multiple of τ and the period of the base.
        let period = base.period().map(|of_base| {
            (self.period / greatest_common_divisor(self.period, of_base)).saturating_mul(of_base)
        });
        let about = About::new("slowmo", Trigram { full_precision, ..base.trigram() });
        About { period, ..about }
            .needs_learning_rate(true)
            .source("Wang, Tantia, Ballas and Rabbat, SlowMo, ICLR 2020")
            // Replicas are equal only after every τ-th step.
            .keeps_replicas_identical(false)
            // x₀.
            .remembers_parameters(true)
            .remembers_gradients(base.remembers_gradients())
            .needs(Needs { parameters: true, ..base.needs() })
            .clipping(base.clipping())
            .optimizers(base.optimizers())
    }

    fn without_warm_up(&self) -> Option<Self> {
        let base = self.base.as_ref()?.without_warm_up()?;
        Some(Self { base: Some(base), ..self.clone() })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "τ, steps of a period")?;
        options.field("slow_rate", &mut self.slow_rate, above(0.0), "α, slow learning rate")?;
        options.field("slow_momentum", &mut self.slow_momentum, 0.0..1.0, "β, slow momentum coefficient")?;
        self.averaging.options(options)?;
        options.field("base", &mut self.base, or("none", BaseValues), "algorithm of the steps of a period")
    }

    fn evaluations(&self, own_step: u64) -> u32 {
        self.base().evaluations(own_step)
    }

    fn reads_slots(&self) -> bool {
        self.base().reads_slots()
    }

    fn written(&self) -> ImplementedHooks {
        ImplementedHooks { after_step: true, ..self.base().written() }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<SlowMoState> {
        let averager = self.averaging.state(context, bucket)?;
        let base = self.base().instance(context, bucket).await?;
        let start = context.copy_of(&bucket.parameters)?;
        let momentum = context.zeros_like(&bucket.parameters)?;
        Ok(SlowMoState { start, momentum, steps: 0, rates: 0.0, averager, base })
    }

    async fn before_forward(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        parameters: &Buffer,
    ) -> Result<()> {
        state.base.before_forward(context, parameters).await
    }

    async fn evaluated(&self, context: &Context, state: &mut SlowMoState, bucket: &mut Bucket) -> Result<()> {
        state.base.evaluated(context, bucket).await
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.base.gradients_ready(context, bucket).await
    }

    async fn after_backward(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.base.after_backward(context, bucket).await
    }

    async fn slots_ready(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        bucket: &mut Bucket,
        slots: &mut Slots,
    ) -> Result<()> {
        state.base.slots_ready(context, bucket, slots).await
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        state.base.after_step(context, bucket).await?;
        state.steps += 1;
        state.rates += context.learning_rate()?;
        if !context.ends_round(self.period) {
            return Ok(());
        }
        self.average(context, state, &mut bucket.parameters).await?;
        let rate = state.rates / state.steps as f64;
        state.steps = 0;
        state.rates = 0.0;
        if rate == 0.0 {
            return context.copy(&bucket.parameters, &state.start);
        }
        let alpha = self.slow_rate;
        let beta = self.slow_momentum;
        let written = [&bucket.parameters, &state.start, &state.momentum];
        with_float!(bucket.parameters.dtype(), T => {
            let outer = OuterStep::<T> { step: T::of(alpha * rate), per_rate: T::of(1.0 / rate), beta: T::of(beta) };
            elementwise::each(vec![(0..bucket.len(), outer)], [], written)
        })
    }

    async fn settle(&self, context: &Context, state: &mut SlowMoState, bucket: &mut Bucket) -> Result<()> {
        state.base.settle(context, bucket).await
    }

    fn weight(&self, state: &SlowMoState) -> f64 {
        state.base.weight()
    }

    fn checkpoint(&self, state: &mut SlowMoState, fields: &mut Fields) -> Result<()> {
        fields.within("base", |fields| state.base.checkpoint(fields))?;
        state.averager.checkpoint("averager", fields)?;
        fields.shared(|fields| {
            fields.buffer("start", &mut state.start)?;
            fields.buffer("momentum", &mut state.momentum)?;
            fields.count("steps", &mut state.steps)?;
            fields.number("rates", &mut state.rates)
        })
    }
}

/// Step at the end of a period, on some elements.
#[derive(Debug)]
struct OuterStep<T> {
    /// Product α γ̄.
    step: T,
    /// Quotient 1 / γ̄.
    per_rate: T,
    /// Slow momentum coefficient β.
    beta: T,
}

impl<T: FloatExt> Elementwise<T, 0, 3> for OuterStep<T> {
    #[inline(always)]
    fn run(&self, []: [&[T]; 0], [parameters, start, momentum]: [&mut [T]; 3]) {
        for ((x, start), u) in parameters.iter_mut().zip(start).zip(momentum) {
            *u = (self.beta * *u + (*start - *x) * self.per_rate).canonical();
            *start = (*start - self.step * *u).canonical();
            *x = *start;
        }
    }

    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry {
        let scalars = [self.step, self.per_rate, self.beta].map(T::argument).to_vec();
        KernelEntry { module: &MODULE, name: name_for::<T>(["slowmo_step_f32", "slowmo_step_f64"]), scalars }
    }
}

impl SlowMo {
    /// Returns the algorithm of the steps of a period.
    fn base(&self) -> AnyAlgorithm {
        self.base.clone().unwrap_or_else(|| NoBase.into())
    }

    /// Replaces the parameters by their mean over all ranks, weighted as in the base.
    async fn average(
        &self,
        context: &Context,
        state: &mut SlowMoState,
        parameters: &mut Buffer,
    ) -> Result<()> {
        let weight = self.weight(state);
        if self.averaging.is_exact() {
            context.scale(weight, parameters)?;
            return context.mean(parameters).await;
        }
        // Weights add up to n, so that x₀ − (1/n) Σᵢ wᵢ (x₀ − xᵢ) is the mean.
        context.blend(-weight, parameters, weight, &state.start)?;
        state.averager.mean(context, parameters).await?;
        context.blend(-1.0, parameters, 1.0, &state.start)
    }
}
